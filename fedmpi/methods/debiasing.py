"""Debiasing FedAvg (Sun et al., 2025): weights from visits counted so far, under unknown participation.

x <- x + eta sum over participants of Delta_n / (N r_n), with r_n the share of rounds, this one included, in
which client n took part: an estimate of its rate on line. The paper studies it with clients that wait R
rounds after each visit: selection = "minimum-separation".
"""

from __future__ import annotations

import numpy as np

from fedmpi.methods.base import Method, Round, ServerState, Vectors, method


@method("debiasing-fedavg", ignores_weights=True)
class DebiasingFedAvg(Method):
    """Debiasing FedAvg: x <- x + eta sum_n Delta_n / (N r_n), r_n being the rate of visits so far."""

    def initial_extras(self, num_params: int) -> Vectors:
        """Visits of each client since the warm-up."""
        return {"visits": np.zeros(self.num_clients, np.int64)}

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """1 / (N r_n)."""
        rounds = t + 1 - self.config.warmup_rounds
        return clients, rounds / (self.num_clients * (state.extras["visits"][clients] + 1.0))

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """The weighted sum; and the visit is counted."""
        visits = state.extras["visits"].copy()
        visits[current.clients] += 1
        return current.sums["weighted_sum"], {"visits": visits}
