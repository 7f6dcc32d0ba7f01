"""Whose update reaches the server: of those who train in a round, some may be lost on the way.

A lost update leaves nothing behind, neither with the server nor with its client, who begins again where it
was: the round is that of the clients whose updates arrive, and the server weighs those. Invariant: the fate
of a round is drawn from one stream addressed by (seed, t), after the choice of clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import Config, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.config.registry import METHODS, Finding
from fedmpi.data import rng
from fedmpi.participation.probabilities import length_conflicts, per_client

NEVER = -1
_NOBODY = np.arange(0)


@dataclass(frozen=True, kw_only=True)
class DeliveryKeys:
    """Of every selection."""

    dropout: float | list[float] = option(
        0.0, "chance that the update of a client that was chosen is lost, one number or one per client",
        at_least=0, at_most=1,
    )  # fmt: skip


def delivery_conflicts(config: Config) -> Iterator[Finding]:
    """One number for each client, and a method that hears who is there."""
    yield from length_conflicts(config, "dropout")
    method = config.algorithm.name
    if METHODS.fact(method, "ignores_participants") and np.any(config.participation.dropout):
        yield (
            "participation.dropout",
            f'algorithm.name = "{method}" waits for everybody: no update can be lost; expected 0',
        )


class Delivery:
    """Which of the updates of a round arrive."""

    def __init__(self, who: ParticipationConfig, num_clients: int, seed: int) -> None:
        self._seed = seed
        self._dropout = per_client(who, "dropout", num_clients)
        self.may_lose = bool(self._dropout.any())
        self._lost = _NOBODY

    def arriving(self, t: int, chosen: np.ndarray) -> np.ndarray:
        """Those of the clients chosen for round t whose updates arrive in it."""
        if not self.may_lose:
            return chosen
        draws = rng.at(self._seed, "delivery", counter=t)
        is_lost = draws.random(len(chosen)) < self._dropout[chosen]
        self._lost = chosen[is_lost]
        return chosen[~is_lost]

    @property
    def undelivered(self) -> tuple[np.ndarray, np.ndarray]:
        """The others, of the round asked for last, and in which round their updates arrive."""
        return self._lost, np.full(len(self._lost), NEVER)

    def chances(self, clients: np.ndarray) -> np.ndarray | float:
        """The probability that the update of each of these arrives."""
        return 1 - self._dropout[clients] if self.may_lose else 1.0
