"""Availability in a cycle with a phase of its own for each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import ParticipationConfig
from fedmpi.config.options import option
from fedmpi.data import rng
from fedmpi.participation.availability import Availability, availability
from fedmpi.participation.probabilities import (
    ProbabilityKeys,
    client_probabilities,
    probability_conflicts,
)

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


@dataclass(frozen=True, kw_only=True)
class CyclicKeys:
    """Of cyclic."""

    cycle_rounds: int | None = option(
        None, "cyclic: rounds of the cycle; FedAU has 100", at_least=1, needed="an integer >= 1"
    )


def _cycle(who: ParticipationConfig) -> int:
    return who.cycle_rounds


@availability(
    "cyclic", CyclicKeys, ProbabilityKeys, conflicts=probability_conflicts,
    knows_probability=True, is_by_chance=lambda who: True, cycle=_cycle,
    start={"cycle_rounds": 20, "probability": 0.3},
)  # fmt: skip
class Cyclic(Availability):
    """Each client is there for one stretch of every cycle, with a phase of its own, as FedAU's cyclic.

    The stretch is its probability times `cycle_rounds`, rounded, one round at least where the probability
    is not 0. As there, everybody is absent at first: the stretch begins in a random round of the absence.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        self._cycle = config.cycle_rounds
        probability = client_probabilities(config, num_clients, seed, labels)
        stretch = np.round(self._cycle * probability).astype(np.int64)
        self._stretch = np.where(probability > 0, np.maximum(stretch, 1), 0)
        absence = np.maximum(self._cycle - self._stretch, 1)
        self._begin = (rng.stream(seed, "phase").random(num_clients) * absence).astype(np.int64)
        self._available = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """Those in their stretch."""
        now = np.flatnonzero(self._is_there(t))
        if not np.array_equal(now, self._available):
            self._available = now
        return self._available

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The share of the cycle for which they are there: who knows no phases knows no more."""
        return self._stretch[clients] / self._cycle

    def chances(self, t: int, clients: np.ndarray) -> np.ndarray:
        """None or certainty: the phases are those of the run."""
        return self._is_there(t)[clients].astype(float)

    def _is_there(self, t: int) -> np.ndarray:
        return (t - self._begin) % self._cycle < self._stretch
