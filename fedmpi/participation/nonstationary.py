"""Availability by chance whose law changes over rounds for everybody at once, as in FedAWE's experiments.

Invariant: the probability of a round is a pure function of (config, seed, label mix, t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import Config, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.participation.availability import availability
from fedmpi.participation.chance import Drawn
from fedmpi.participation.probabilities import ProbabilityKeys, draw_clients, probability_conflicts

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels

_SWINGS = {"sine": 0.3, "interleaved-sine": 0.3, "staircase": 0.6}  # FedAWE's


def _is_cut(config: Config) -> bool:
    return config.participation.shape == "interleaved-sine"


@dataclass(frozen=True, kw_only=True)
class NonStationaryKeys:
    """Of non-stationary."""

    shape: str | None = option(
        None, "non-stationary: f(t), by which all probabilities are multiplied", choices=tuple(_SWINGS),
        needed='"sine", "interleaved-sine" or "staircase"',
    )  # fmt: skip
    shape_rounds: int = option(20, "non-stationary: rounds after which f repeats", at_least=2)
    shape_swing: float | None = option(
        None, "non-stationary: how deep f goes; default: 0.3, staircase 0.6", at_least=0, at_most=1
    )
    shape_cutoff: float = option(
        0.1, "interleaved-sine: smaller probabilities count as 0", at_least=0, at_most=1, has_effect=_is_cut
    )


@availability(
    "non-stationary", NonStationaryKeys, ProbabilityKeys, conflicts=probability_conflicts,
    knows_probability=True, is_by_chance=lambda who: True, cycle=lambda who: who.shape_rounds,
    start={"probability": 0.3, "shape": "sine", "shape_rounds": 20},
)  # fmt: skip
class NonStationary(Drawn):
    """p_n(t) = p_n f(t), with f a sine, a sine with a cut-off, or a staircase of two steps (FedAWE).

    sine: f = 1 - swing + swing * sin(2 pi t / rounds). interleaved-sine: the same, and probabilities below
    the cut-off are 0, so some clients are away for a part of each period. staircase: 1 for the first half
    of a period, then 1 - swing.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        super().__init__(config, num_clients, seed, labels)
        self._shape, self._rounds = config.shape, config.shape_rounds
        self._swing = _SWINGS[config.shape] if config.shape_swing is None else config.shape_swing
        self._cutoff = config.shape_cutoff if config.shape == "interleaved-sine" else 0.0

    def factor(self, t: int) -> float:
        """f(t), at most 1."""
        place = t % self._rounds / self._rounds
        if self._shape == "staircase":
            return 1.0 if place < 0.5 else 1 - self._swing
        return max(1 - self._swing + self._swing * float(np.sin(2 * np.pi * place)), 0.0)

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        return draw_clients(draws, self._num_clients, self._highest, lambda n: self.probability(t, n))

    def probability(self, t: int, clients: np.ndarray | slice) -> np.ndarray:
        """The probability in this round."""
        now = self._probability[clients] * self.factor(t)
        return np.where(now < self._cutoff, 0.0, now)
