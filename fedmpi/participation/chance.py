"""Availability drawn anew in each round: groups that take turns, and bernoulli.

Invariant: round t is drawn from one stream addressed by (seed, t), so rounds may be asked for in any
order, and more than once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import Config, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.data import rng
from fedmpi.participation.availability import Availability, availability
from fedmpi.participation.probabilities import (
    ProbabilityKeys,
    client_probabilities,
    draw_clients,
    probability_conflicts,
)

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


class Drawn(Availability):
    """Keeps the round drawn last, so that asking again costs nothing and the same set is the same array."""

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None
    ) -> None:
        self._num_clients = num_clients
        self._seed = seed
        self._probability = client_probabilities(config, num_clients, seed, labels)
        self._highest = float(self._probability.max())
        self._round: int | None = None
        self._available = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """The draw of round t."""
        if t != self._round:
            now = self._draw(t, rng.at(self._seed, "availability", counter=t))
            self._round = t
            if not np.array_equal(now, self._available):
                self._available = now
        return self._available

    def correlation(self) -> float:
        """Each round is drawn anew."""
        return 0.0

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PeriodicKeys:
    """Of periodic."""

    num_groups: int | None = option(
        None, "periodic: groups that take turns", at_least=1, needed="an integer >= 1"
    )
    rounds_per_group: int | None = option(
        None, "periodic: rounds of a turn", at_least=1, needed="an integer >= 1"
    )
    random_offset: bool = option(False, "periodic: shorten the first turn at random")


def _periodic_conflicts(config: Config) -> Iterator[Finding]:
    num_groups, num_clients = config.participation.num_groups, config.data.num_clients
    if num_clients and (num_groups or 0) > num_clients:
        yield "participation.num_groups", f"{num_groups} groups for {num_clients} clients"
    yield from probability_conflicts(config, is_needed=False)


def _has_probability(who: ParticipationConfig) -> bool:
    return who.probability is not None or who.probability_from is not None


def _cycle(who: ParticipationConfig) -> int | None:
    return who.num_groups * who.rounds_per_group if who.num_groups and who.rounds_per_group else None


@availability(
    "periodic", PeriodicKeys, ProbabilityKeys, conflicts=_periodic_conflicts,
    knows_probability=True, is_by_chance=_has_probability, is_cheap=True, cycle=_cycle,
    start={"num_groups": 5, "rounds_per_group": 4},
)  # fmt: skip
class Periodic(Drawn):
    """Groups of contiguous clients take turns of `rounds_per_group` rounds.

    A random offset in [0, rounds_per_group) shortens the first turn, as in the paper's experiments. With
    a probability, members of the group whose turn it is are available by chance, drawn in each round.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        self._is_certain = not _has_probability(config)
        if not self._is_certain:
            super().__init__(config, num_clients, seed, labels)
        bounds = -(-np.arange(config.num_groups + 1) * num_clients // config.num_groups)
        self.groups = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
        self.rounds_per_group = config.rounds_per_group
        self.offset = 0
        if config.random_offset:
            self.offset = int(rng.stream(seed, "offset").integers(config.rounds_per_group))

    def available(self, t: int) -> np.ndarray:
        """The group whose turn it is, or the members who are available."""
        return self._group(t) if self._is_certain else super().available(t)

    def turn(self, t: int) -> int:
        """Turns before round t."""
        return (t + self.offset) // self.rounds_per_group

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Of members in their turn; all others have 0."""
        group = self._group(t)
        is_member = (clients >= group[0]) & (clients <= group[-1])
        return is_member * (1.0 if self._is_certain else self._probability[clients])

    def _group(self, t: int) -> np.ndarray:
        return self.groups[self.turn(t) % len(self.groups)]

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        group = self._group(t)
        mine = self._probability[group[0] : group[-1] + 1]
        return group[draw_clients(draws, len(group), self._highest, mine.__getitem__)]


@availability(
    "bernoulli", ProbabilityKeys, conflicts=probability_conflicts,
    knows_probability=True, is_by_chance=lambda who: True, start={"probability": 0.3},
)  # fmt: skip
class Bernoulli(Drawn):
    """Each client independently in each round, with its own probability."""

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        return draw_clients(draws, self._num_clients, self._highest, self._probability.__getitem__)

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The same in all rounds."""
        return self._probability[clients]
