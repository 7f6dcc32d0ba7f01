"""Several availabilities at once: those whom all of them let.

Invariant: the parts draw from streams of their own, so that they are independent of each other, whatever
they are; the first of the list has the draws that it has alone, and each further part only takes away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.compositions import availabilities_in
from fedmpi.config.keys import ParticipationConfig
from fedmpi.config.registry import AVAILABILITIES
from fedmpi.data import rng
from fedmpi.participation.availability import Availability, UserFunction

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


def make_availability(
    config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
) -> Availability:
    """What a config names, one or several. `labels` is used only by those that depend on the label mix."""
    alone = availabilities_in(config)
    parts = [
        AVAILABILITIES.get(one.availability, UserFunction)(one, num_clients, own_seed, labels)
        for one, own_seed in zip(alone, seeds_of(seed, len(alone)), strict=True)
    ]
    return parts[0] if len(parts) == 1 else Intersection(parts, num_clients)


def seeds_of(seed: int, count: int) -> list[int]:
    """The run's own for the first part, and one for each further part."""
    return [seed, *(rng.integer(seed, "availability-part", client=k) for k in range(1, count))]


class Intersection(Availability):
    """Clients that are available in every part."""

    def __init__(self, parts: Sequence[Availability], num_clients: int) -> None:
        self._parts, self._num_clients = parts, num_clients
        self.is_independent = all(part.is_independent for part in parts)
        self._seen: list[np.ndarray] = []  # what the parts answered last
        self._available = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """Those in all answers; the same array while no part's set changes what comes of it."""
        answers = [part.available(t) for part in self._parts]
        if len(self._seen) != len(answers) or any(
            a is not b for a, b in zip(answers, self._seen, strict=True)
        ):
            now = _in_all(answers, self._num_clients)
            self._seen = answers
            if not np.array_equal(now, self._available):
                self._available = now
        return self._available

    def turn(self, t: int) -> int:
        """Another number whenever a part's turn changes: turns only grow, so their sum does."""
        return sum(part.turn(t) for part in self._parts)

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The product: the parts are independent."""
        return self._product(lambda part: part.probability(t, clients))

    def chances(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The product, for who knows the run."""
        return self._product(lambda part: part.chances(t, clients))

    def correlation(self) -> float | None:
        """0 where no part remembers. A product of chains forgets at several rates: no single number."""
        kept = [part.correlation() for part in self._parts]
        return 0.0 if all(part is not None and not np.any(part) for part in kept) else None

    def state(self) -> dict[str, np.ndarray]:
        """That of every part, under its place in the list."""
        return {
            f"{place}.{name}": value
            for place, part in enumerate(self._parts)
            for name, value in part.state().items()
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Each part from its own."""
        for place, part in enumerate(self._parts):
            prefix = f"{place}."
            part.restore({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        self._seen = []

    def digest(self) -> str:
        """Those of the parts that have one, with their places."""
        return ",".join(f"{k}:{part.digest()}" for k, part in enumerate(self._parts) if part.digest())

    def _product(self, of: Callable[[Availability], np.ndarray]) -> np.ndarray:
        return math.prod(of(part) for part in self._parts)


def _in_all(answers: Sequence[np.ndarray], num_clients: int) -> np.ndarray:
    """Ids that stand in every one of these ascending lists."""
    ordered = sorted(answers, key=len)
    common = ordered[0]
    for other in ordered[1:]:
        if len(other) == num_clients or len(common) == 0:
            continue
        is_in = np.zeros(num_clients, bool)
        is_in[other] = True
        common = common[is_in[common]]
    return common
