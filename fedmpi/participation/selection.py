"""Which of the available clients take part.

Invariant: no client twice in a round; if fewer than S are available, all of them; ids are returned in
ascending order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.compositions import availabilities_in
from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import METHODS, SELECTIONS, Finding
from fedmpi.data import rng
from fedmpi.participation.delivery import DeliveryKeys, delivery_conflicts

# `selection(name, keys...)` registers a class (clients_per_round, num_clients, seed, and what other keys it
# declares, by name). Facts that others ask for: `gives_weights`, where it decides who takes part and with
# what weight; `chance_unknown`, where S of those available do not all have the same chance.
selection = SELECTIONS


@dataclass(frozen=True, kw_only=True)
class CountKeys:
    """Of every selection of S clients."""

    clients_per_round: int | None = option(
        None,
        "S, for uniform, permutation, least-recent, by-method and minimum-separation",
        at_least=1,
        needed="an integer >= 1",
    )


def _count_conflicts(config: Config) -> Iterator[Finding]:
    count, num_clients = config.participation.clients_per_round, config.data.num_clients
    if count is not None and num_clients and count > num_clients:
        yield "participation.clients_per_round", f"{count} exceeds data.num_clients = {num_clients}"
        return
    for one in availabilities_in(config.participation):
        groups = one.num_groups if one.availability == "periodic" else None
        largest = -(-(num_clients or 0) // groups) if groups else 0
        if count is not None and 0 < largest < count and groups <= num_clients:
            yield (
                "participation.clients_per_round",
                f"{count} exceeds the {largest} clients of a group: data.num_clients = {num_clients} in "
                f"participation.num_groups = {groups}",
            )


class Memoryless:
    """A selection whose rounds do not depend on each other."""

    def state(self) -> dict[str, np.ndarray]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, np.ndarray], available: np.ndarray, turn: int) -> None:
        """Nothing to restore."""


def _conflicts(config: Config) -> Iterator[Finding]:
    yield from _count_conflicts(config)
    yield from delivery_conflicts(config)


@selection("all", DeliveryKeys, conflicts=delivery_conflicts)
class All(Memoryless):
    """Every available client."""

    def __init__(self, clients_per_round: int | None, num_clients: int, seed: int) -> None:
        pass

    def select(self, t: int, available: np.ndarray, turn: int) -> np.ndarray:
        """All of them."""
        return available


@selection("uniform", CountKeys, DeliveryKeys, conflicts=_conflicts)
class Uniform(Memoryless):
    """S of the available clients at random without repetition, independently in every round."""

    def __init__(self, clients_per_round: int, num_clients: int, seed: int) -> None:
        self._count = clients_per_round
        self._seed = seed

    def select(self, t: int, available: np.ndarray, turn: int) -> np.ndarray:
        """A fresh draw for round t."""
        if len(available) <= self._count:
            return available
        draws = rng.at(self._seed, "selection", counter=t)
        return np.sort(available[draws.choice(len(available), self._count, replace=False, shuffle=False)])


@selection("permutation", CountKeys, DeliveryKeys, conflicts=_conflicts)
class Permutation:
    """S of the available clients in a random order: all of them once before any again (regularized).

    A pass takes every available client once. The clients not yet taken wait in a queue in random order;
    if it runs out during a round, a new pass fills the round with clients not yet in it. A new turn of the
    availability starts from the beginning. If the available set changes within a turn, the queue is built
    again: clients taken in fewer passes come first. Rounds must be asked for in ascending order.
    """

    def __init__(self, clients_per_round: int, num_clients: int, seed: int) -> None:
        self._count = clients_per_round
        self._seed = seed
        self._turn: int | None = None
        self._available: np.ndarray | None = None
        self._level = np.zeros(num_clients, np.int64)  # passes a client has been taken in, in this turn
        self._front = 1  # the level that this pass brings everybody available to
        self._queue = np.arange(0)  # available, not taken, in random order

    def select(self, t: int, available: np.ndarray, turn: int) -> np.ndarray:
        """The next S of the queue."""
        if turn != self._turn:
            self._level[available] = 0
        if turn != self._turn or available is not self._available:
            self._turn, self._available = turn, available
            self._front = int(self._level[available].max(initial=1))
            self._fill_queue(t, step=0)
        count = min(self._count, len(available))
        chosen = self._take(count)
        if len(chosen) < count:
            # The pass is complete. Those chosen already in this round wait until the round is full.
            self._front += 1
            self._fill_queue(t, step=1, last=chosen)
            chosen = np.concatenate([chosen, self._take(count - len(chosen))])
        return np.sort(chosen)

    def state(self) -> dict[str, np.ndarray]:
        """How often each client was taken, and who is waiting."""
        return {"level": self._level, "front": np.array(self._front), "queue": self._queue}

    def restore(self, state: dict[str, np.ndarray], available: np.ndarray, turn: int) -> None:
        """Continue after a round with these available clients, in this turn."""
        self._level, self._front, self._queue = state["level"], int(state["front"]), state["queue"]
        self._available, self._turn = available, turn

    def _take(self, count: int) -> np.ndarray:
        chosen, self._queue = self._queue[:count], self._queue[count:]
        self._level[chosen] = self._front
        return chosen

    def _fill_queue(self, t: int, step: int, last: np.ndarray | tuple = ()) -> None:
        """Queue the available clients not yet taken, those in `last` at the end."""
        waiting = self._available[self._level[self._available] < self._front]
        order = rng.at(self._seed, "selection", client=step, counter=t).permutation(waiting)
        order = order[np.argsort(self._level[order], kind="stable")]  # longest waiting first
        if len(last):
            in_last = np.isin(order, last)
            order = np.concatenate([order[~in_last], order[in_last]])
        self._queue = order


@selection("least-recent", CountKeys, DeliveryKeys, conflicts=_conflicts)
class LeastRecent:
    """The S available clients that took part longest ago, those who never did first; ties at random."""

    def __init__(self, clients_per_round: int, num_clients: int, seed: int) -> None:
        self._count = clients_per_round
        self._seed = seed
        self._last = np.full(num_clients, -1)

    def select(self, t: int, available: np.ndarray, turn: int) -> np.ndarray:
        """The S with the oldest last participation."""
        chosen = available
        if len(available) > self._count:
            shuffled = rng.at(self._seed, "selection", counter=t).permutation(available)
            oldest = np.argsort(self._last[shuffled], kind="stable")[: self._count]
            chosen = np.sort(shuffled[oldest])
        self._last[chosen] = t
        return chosen

    def state(self) -> dict[str, np.ndarray]:
        """When each client last took part."""
        return {"last": self._last}

    def restore(self, state: dict[str, np.ndarray], available: np.ndarray, turn: int) -> None:
        """Continue."""
        self._last = state["last"]


def _by_method_conflicts(config: Config) -> Iterator[Finding]:
    yield from _count_conflicts(config)
    name = config.algorithm.name
    if name in METHODS and not METHODS.fact(name, "chooses"):
        able = ", ".join(f'"{part.name}"' for part in METHODS.parts() if part.facts.get("chooses"))
        yield (
            "participation.selection",
            f'"by-method" needs a method that chooses, and algorithm.name = "{name}" does not; use {able}, '
            'or another selection, such as "uniform"',
        )


@selection("by-method", CountKeys, conflicts=_by_method_conflicts, chance_unknown=True)
class ByMethod(Memoryless):
    """Every available client is offered; the method chooses S of them by what it knows."""

    def __init__(self, clients_per_round: int, num_clients: int, seed: int) -> None:
        pass

    def select(self, t: int, available: np.ndarray, turn: int) -> np.ndarray:
        """All of them."""
        return available


@dataclass(frozen=True, kw_only=True)
class SeparationKeys:
    """Of minimum-separation."""

    min_separation: int | None = option(
        None,
        "minimum-separation: R, rounds that a client waits after each participation; 0 = uniform",
        at_least=0,
        needed="an integer >= 0",
    )


@selection(
    "minimum-separation", CountKeys, DeliveryKeys, SeparationKeys, conflicts=_conflicts, chance_unknown=True
)
class MinimumSeparation:
    """S of the available clients that have waited for R rounds, at random; R = 0 is `uniform`.

    Everybody may come in the first round. If fewer than S may come, all of them do (Sun et al., 2025).
    """

    def __init__(self, clients_per_round: int, num_clients: int, seed: int, min_separation: int) -> None:
        self._uniform = Uniform(clients_per_round, num_clients, seed)
        self._wait = min_separation
        self._last = np.full(num_clients, -1 - min_separation)

    def select(self, t: int, available: np.ndarray, turn: int) -> np.ndarray:
        """A draw among those that have waited."""
        chosen = self._uniform.select(t, available[t - self._last[available] > self._wait], turn)
        self._last[chosen] = t
        return chosen

    def state(self) -> dict[str, np.ndarray]:
        """When each client last took part."""
        return {"last": self._last}

    def restore(self, state: dict[str, np.ndarray], available: np.ndarray, turn: int) -> None:
        """Continue."""
        self._last = state["last"]
