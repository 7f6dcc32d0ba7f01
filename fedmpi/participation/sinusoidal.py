"""Availability with a daily rhythm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import ParticipationConfig
from fedmpi.config.options import option
from fedmpi.data import rng
from fedmpi.participation.availability import availability
from fedmpi.participation.chance import Drawn
from fedmpi.participation.probabilities import ProbabilityKeys, draw_clients, probability_conflicts

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


@dataclass(frozen=True, kw_only=True)
class SinusoidalKeys:
    """Of sinusoidal."""

    rounds_per_day: float | None = option(
        None, "sinusoidal: rounds of a day", above=0, needed="a number > 0"
    )
    amplitude: float | None = option(
        None,
        "sinusoidal: how far the probability swings around its mean",
        at_least=0,
        at_most=1,
        needed="a number from 0 to 1",
    )
    phase_spread: float = option(
        1.0, "sinusoidal: share of the day over which clients' peaks are spread", at_least=0, at_most=1
    )


def _cycle(who: ParticipationConfig) -> int | None:
    day = who.rounds_per_day
    return round(day) if day and day == round(day) else None


@availability(
    "sinusoidal", SinusoidalKeys, ProbabilityKeys, conflicts=probability_conflicts,
    knows_probability=True, is_by_chance=lambda who: True, cycle=_cycle,
    start={"probability": 0.3, "amplitude": 0.25, "rounds_per_day": 25.0},
)  # fmt: skip
class Sinusoidal(Drawn):
    """Daily rhythm: p_n(t) = mean_n + amplitude * sin(2 pi (t / rounds_per_day + phase_n)), cut to [0, 1].

    Phases are spread evenly over `phase_spread` of the day: 1 is all time zones, 0 is a single one.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        super().__init__(config, num_clients, seed, labels)
        self._rounds_per_day = config.rounds_per_day
        self._amplitude = config.amplitude
        self._highest = min(self._highest + config.amplitude, 1.0)
        phases = config.phase_spread * rng.stream(seed, "phase").random(num_clients)
        # sin(a + b) from sines of the phases: no sine of N numbers in every round.
        self._sines, self._cosines = np.sin(2 * np.pi * phases), np.cos(2 * np.pi * phases)

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        return draw_clients(draws, self._num_clients, self._highest, lambda n: self.probability(t, n))

    def probability(self, t: int, clients: np.ndarray | slice) -> np.ndarray:
        """The probability at this time of day."""
        hour = 2 * np.pi * (t % self._rounds_per_day) / self._rounds_per_day
        swing = np.sin(hour) * self._cosines[clients] + np.cos(hour) * self._sines[clients]
        return np.clip(self._probability[clients] + self._amplitude * swing, 0, 1)
