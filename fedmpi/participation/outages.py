"""Availability of groups that fail together: a region, a network or a power supply that is away as a whole.

Invariant: round t is drawn from one stream addressed by (seed, t), the groups before the clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import Config, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.participation.availability import availability
from fedmpi.participation.chance import Drawn
from fedmpi.participation.probabilities import (
    PROBABILITY,
    ProbabilityKeys,
    draw_clients,
    probability_conflicts,
)

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


@dataclass(frozen=True, kw_only=True)
class OutageKeys:
    """Of outages."""

    outage_groups: int | None = option(
        None,
        "outages: groups of contiguous clients that fail together",
        at_least=1,
        needed="an integer >= 1",
    )
    outage_probability: float | None = option(
        None, "outages: chance that a group fails in a round", at_least=0, at_most=1,
        needed="a number from 0 to 1",
    )  # fmt: skip


def _conflicts(config: Config) -> Iterator[Finding]:
    groups, num_clients = config.participation.outage_groups, config.data.num_clients
    if num_clients and (groups or 0) > num_clients:
        yield "participation.outage_groups", f"{groups} groups for {num_clients} clients"
    yield from probability_conflicts(config, is_needed=False)


@availability(
    "outages", OutageKeys, ProbabilityKeys, conflicts=_conflicts,
    start={"outage_groups": 5, "outage_probability": 0.2},
    knows_probability=True, is_by_chance=lambda who: True, leaves=lambda who: PROBABILITY,
)  # fmt: skip
class Outages(Drawn):
    """In each round each group is away as a whole with `outage_probability`; others as in bernoulli.

    In a list with other availabilities a `probability` of the section is theirs.
    """

    is_independent = False

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        super().__init__(config, num_clients, seed, labels)
        self._num_groups, self._outage = config.outage_groups, config.outage_probability

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        is_up = draws.random(self._num_groups) >= self._outage
        clients = draw_clients(draws, self._num_clients, self._highest, self._probability.__getitem__)
        return clients[is_up[clients * self._num_groups // self._num_clients]]

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Of a client alone, in any round."""
        return (1 - self._outage) * self._probability[clients]
