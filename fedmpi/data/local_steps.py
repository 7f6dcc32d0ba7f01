"""I of each client in each round: the same for all, one for each client, or drawn anew.

Invariant: a pure function of (seed, client, round), the same on every rank and for a lent client.
"""

from __future__ import annotations

import numpy as np

from fedmpi.config import Config
from fedmpi.data import rng
from fedmpi.errors import UserError


class LocalSteps:
    """`algorithm.local_steps`, and how it is read."""

    def __init__(self, config: Config, num_clients: int) -> None:
        options = config.algorithm
        self.the_same = options.local_steps if isinstance(options.local_steps, int) else None  # for all
        self._seed, self._given = config.run.seed, np.atleast_1d(options.local_steps)
        self._is_drawn = options.local_steps_law == "uniform"
        if self.the_same is None and not self._is_drawn and len(self._given) != num_clients:
            raise UserError(
                f"config algorithm.local_steps: {len(self._given)} numbers for {num_clients} clients; "
                'expected one for each, or [least, most] with algorithm.local_steps_law = "uniform"'
            )

    def of(self, t: int, clients: np.ndarray) -> np.ndarray:
        """How many steps these clients take in round t."""
        if self.the_same is not None:
            return np.full(len(clients), self.the_same)
        if not self._is_drawn:
            return self._given[clients]
        least, most = self._given.tolist()
        draws = (
            rng.at(self._seed, "local-steps", n, t).integers(least, most + 1) for n in clients.tolist()
        )
        return np.fromiter(draws, np.int64, len(clients))
