"""Waiting for everybody: the paper's baselines wait-minibatch and wait-full.

Once in a cycle of availability all N clients take I steps from the same x, and x moves by their plain
average. The clock does not stand still meanwhile: a cycle of P rounds counts P rounds, of which all but the
last have no participant. The warm-up takes whom participation gives.
"""

from __future__ import annotations

import numpy as np

from fedmpi.config import Config
from fedmpi.methods.base import Method, ServerState
from fedmpi.methods.registry import method


@method("wait-minibatch")
class WaitMinibatch(Method):
    """All clients, on minibatches, in the last round of each cycle."""

    def __init__(self, config: Config, num_clients: int) -> None:
        super().__init__(config, num_clients)
        self.cycle = config.wait_rounds

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Everybody with 1/N when the cycle is over, nobody before."""
        waited = t - self.config.warmup_rounds + 1
        if waited <= 0:
            return clients, weights
        if waited % self.cycle:
            return clients[:0], weights[:0]
        return np.arange(self.num_clients), np.full(self.num_clients, 1 / self.num_clients)


@method("wait-full")
class WaitFull(WaitMinibatch):
    """The same, with all of a client's data in each step."""

    def uses_full_data(self, t: int) -> bool:
        """After the warm-up."""
        return t >= self.config.warmup_rounds
