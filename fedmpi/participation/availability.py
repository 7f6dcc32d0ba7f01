"""Who could take part in round t.

Invariant: `available(t)` is a pure function of (seed, t); it returns the same array object while the set
does not change, which lets a selection work in O(participants) a round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from fedmpi import rng
from fedmpi.config import ParticipationConfig
from fedmpi.errors import UserError


class Availability:
    """The available clients of each round."""

    def available(self, t: int) -> np.ndarray:
        """Ids of the available clients in ascending order."""
        raise NotImplementedError

    def turn(self, t: int) -> int:
        """Number of the turn round t belongs to; a permutation starts anew with each turn.

        By default one turn that never ends: a permutation goes on while the set changes.
        """
        return 0

    def digest(self) -> str:
        """Changes when availability would, beyond what the config tells."""
        return ""


AVAILABILITIES: dict[str, Callable[[ParticipationConfig, int, int], Availability]] = {}


def availability(name: str) -> Callable:
    """Register a class (config, num_clients, seed) under a name of `participation.availability`."""

    def register(kind: Callable) -> Callable:
        AVAILABILITIES[name] = kind
        return kind

    return register


def make_availability(config: ParticipationConfig, num_clients: int, seed: int) -> Availability:
    """The availability that a config names."""
    kind = AVAILABILITIES.get(config.availability, UserFunction)
    return kind(config, num_clients, seed)


@availability("always")
class Always(Availability):
    """Everybody, in every round."""

    def __init__(self, config: ParticipationConfig, num_clients: int, seed: int) -> None:
        self._everybody = np.arange(num_clients)

    def available(self, t: int) -> np.ndarray:
        """All clients."""
        return self._everybody


@availability("periodic")
class Periodic(Availability):
    """Groups of contiguous clients take turns of `rounds_per_group` rounds.

    A random offset in [0, rounds_per_group) shortens the first turn, as in the paper's experiments.
    """

    def __init__(self, config: ParticipationConfig, num_clients: int, seed: int) -> None:
        bounds = -(-np.arange(config.num_groups + 1) * num_clients // config.num_groups)
        self.groups = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
        self.rounds_per_group = config.rounds_per_group
        self.offset = 0
        if config.random_offset:
            self.offset = int(rng.stream(seed, "offset").integers(config.rounds_per_group))

    def available(self, t: int) -> np.ndarray:
        """The group whose turn it is."""
        return self.groups[self.turn(t) % len(self.groups)]

    def turn(self, t: int) -> int:
        """Turns before round t."""
        return (t + self.offset) // self.rounds_per_group


class UserFunction(Availability):
    """package.module:function(t, num_clients, seed) -> ids of the available clients."""

    def __init__(self, config: ParticipationConfig, num_clients: int, seed: int) -> None:
        from fedmpi.plugins import import_function

        self._name = config.availability
        self._function = import_function(config.availability, "participation.availability")
        self._num_clients = num_clients
        self._seed = seed
        self._last = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """What the function returns, checked."""
        try:
            answer = self._function(t=t, num_clients=self._num_clients, seed=self._seed)
            ids = np.asarray(answer)
            if ids.size and ids.dtype.kind not in "iu":
                raise TypeError(f"expected integer ids, got {ids.dtype}")
            clients = np.unique(ids.astype(np.int64))
        except Exception as error:
            raise UserError(
                f'config participation.availability = "{self._name}": round {t} raised '
                f"{type(error).__name__}: {error}"
            ) from error
        if len(clients) and not 0 <= clients[0] <= clients[-1] < self._num_clients:
            raise UserError(
                f'config participation.availability = "{self._name}": round {t} returned client '
                f"{clients[0] if clients[0] < 0 else clients[-1]}; expected 0 to {self._num_clients - 1}"
            )
        if not np.array_equal(clients, self._last):
            self._last = clients
        return self._last
