"""Availability by chance, drawn afresh in each round: bernoulli, sinusoidal, and groups that take turns.

Invariant: round t is drawn from one stream addressed by (seed, t), so rounds may be asked for in any
order and again.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config import ParticipationConfig
from fedmpi.data import rng
from fedmpi.participation.availability import Availability, availability
from fedmpi.participation.probabilities import client_probabilities, draw_clients

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
            now = self._draw(t, rng.stream(self._seed, "availability", counter=t))
            self._round = t
            if not np.array_equal(now, self._available):
                self._available = now
        return self._available

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


@availability("bernoulli")
class Bernoulli(Drawn):
    """Each client by itself, in each round anew, with its own probability."""

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        return draw_clients(draws, self._num_clients, self._highest, self._probability.__getitem__)

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The same in all rounds."""
        return self._probability[clients]


@availability("sinusoidal")
class Sinusoidal(Drawn):
    """A day rhythm: p_n(t) = mean_n + amplitude * sin(2 pi (t / rounds_per_day + phase_n)), cut to [0, 1].

    Phases are strewn evenly over `phase_spread` of the day: 1 is a world of all time zones, 0 one place.
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
        """That of the time of day."""
        hour = 2 * np.pi * (t % self._rounds_per_day) / self._rounds_per_day
        swing = np.sin(hour) * self._cosines[clients] + np.cos(hour) * self._sines[clients]
        return np.clip(self._probability[clients] + self._amplitude * swing, 0, 1)


@availability("periodic")
class Periodic(Drawn):
    """Groups of contiguous clients take turns of `rounds_per_group` rounds.

    A random offset in [0, rounds_per_group) shortens the first turn, as in the paper's experiments. With
    a probability, the members of the group whose turn it is are there by chance, in each round anew.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        self._is_certain = config.probability is None and config.probability_from is None
        if not self._is_certain:
            super().__init__(config, num_clients, seed, labels)
        bounds = -(-np.arange(config.num_groups + 1) * num_clients // config.num_groups)
        self.groups = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
        self.rounds_per_group = config.rounds_per_group
        self.offset = 0
        if config.random_offset:
            self.offset = int(rng.stream(seed, "offset").integers(config.rounds_per_group))

    def available(self, t: int) -> np.ndarray:
        """The group whose turn it is, or those of it who are there."""
        return self._group(t) if self._is_certain else super().available(t)

    def turn(self, t: int) -> int:
        """Turns before round t."""
        return (t + self.offset) // self.rounds_per_group

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Of members in their turn; nobody else is there."""
        group = self._group(t)
        is_member = (clients >= group[0]) & (clients <= group[-1])
        return is_member * (1.0 if self._is_certain else self._probability[clients])

    def _group(self, t: int) -> np.ndarray:
        return self.groups[self.turn(t) % len(self.groups)]

    def _draw(self, t: int, draws: np.random.Generator) -> np.ndarray:
        group = self._group(t)
        mine = self._probability[group[0] : group[-1] + 1]
        return group[draw_clients(draws, len(group), self._highest, mine.__getitem__)]
