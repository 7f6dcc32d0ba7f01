"""Availability by a chain of two states for each client: who is there tends to stay, who is away too.

Invariant: the chain starts in its stationary law, and step t is drawn from one stream addressed by
(seed, t); rounds are asked for in ascending order, and an earlier one is computed again from the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config import ParticipationConfig
from fedmpi.data import rng
from fedmpi.errors import UserError
from fedmpi.participation.availability import Availability, availability
from fedmpi.participation.probabilities import client_probabilities, draw_clients, per_client

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


@availability("markov")
class Markov(Availability):
    """Absent clients come with probability to_active in a round, present ones leave with to_inactive.

    Costs O(changes) a round where both are small, plus a scan of N flags.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        self._num_clients = num_clients
        self._seed = seed
        self._to_active = per_client(config, "to_active", num_clients)
        if config.to_inactive is not None:
            self._to_inactive = per_client(config, "to_inactive", num_clients)
            _refuse_stuck(self._to_active + self._to_inactive)
            self._stationary = self._to_active / (self._to_active + self._to_inactive)
        else:
            self._stationary = client_probabilities(config, num_clients, seed, labels)
            self._to_active, self._to_inactive = rates_of(self._stationary, self._to_active)
        self._highest = float(max(self._to_active.max(), self._to_inactive.max()))
        self._round: int | None = None
        self._is_active = np.zeros(num_clients, bool)
        self._available = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """Those in the active state."""
        if self._round is None or t < self._round:
            draws = rng.stream(self._seed, "availability")
            self._is_active = draws.random(self._num_clients) < self._stationary
            self._round = 0
            self._note()
        while self._round < t:
            self._step()
        return self._available

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The stationary law, which holds in each round."""
        return self._stationary[clients]

    def state(self) -> dict[str, np.ndarray]:
        """Who is there, and in which round."""
        if self._round is None:
            return {}
        return {"active": self._is_active.copy(), "round": np.array(self._round)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on after the round of the state."""
        if state:
            self._is_active, self._round = state["active"].astype(bool), int(state["round"])
            self._note()

    def _step(self) -> None:
        """One round on: those who change are drawn."""
        self._round += 1
        draws = rng.stream(self._seed, "availability", counter=self._round)
        changed = draw_clients(draws, self._num_clients, self._highest, self._rate)
        if len(changed):
            self._is_active[changed] ^= True
            self._note()

    def _rate(self, clients: np.ndarray | slice) -> np.ndarray:
        """The chance of each to change."""
        return np.where(self._is_active[clients], self._to_inactive[clients], self._to_active[clients])

    def _note(self) -> None:
        self._available = np.flatnonzero(self._is_active)


def rates_of(probability: np.ndarray, to_active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(to_active, to_inactive) with this stationary probability: to_inactive = to_active * (1/p - 1).

    Where that would exceed 1, to_active is lowered to p / (1 - p), which keeps the probability exact.
    """
    absent = 1 - probability
    # Present for one round at least: p * to_inactive <= p.
    to_active = np.where(absent * to_active > probability, probability / np.maximum(absent, 0.5), to_active)
    to_inactive = np.where(probability > 0, to_active * absent / np.maximum(probability, 1e-300), 1.0)
    return to_active, np.minimum(to_inactive, 1.0)


def _refuse_stuck(total: np.ndarray) -> None:
    if (total == 0).any():
        client = int(np.flatnonzero(total == 0)[0])
        raise UserError(
            f"config participation.to_active: client {client} has to_active = to_inactive = 0, a chain "
            "without a stationary law; expected one of them above 0"
        )
