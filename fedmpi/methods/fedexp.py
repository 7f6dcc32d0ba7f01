"""FedExP (Jhunjhunwala, Wang & Joshi, 2023): the server steps further where the clients disagree.

d = sum of q_n Delta_n; eta_g = max(1, sum of q_n |Delta_n|^2 / (2 (|d|^2 + epsilon))); x <- x + eta_g d.
With q_n = 1/S these are the paper's; other weights are scaled to a sum of 1 in eta_g, as the authors do.
The squares are summed as the updates are, entry by entry and exactly, and only then over the entries: so
the same bits come from any number of ranks, which norms of single updates would not promise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.config.options import option
from fedmpi.methods.base import Local, Method, Round, ServerState, Vectors, method, total


@dataclass(frozen=True, kw_only=True)
class FedExPKeys:
    """Of fedexp."""

    epsilon: float = option(1e-3, "fedexp: added to the squared norm of the mean update", above=0)


@method("fedexp", FedExPKeys)
class FedExP(Method):
    """FedExP: FedAvg with a server rate from the updates' squared norms, at least 1."""

    client_sums = ("squares",)

    def finish_clients(self, local: Local, current: Round) -> None:
        """q_n times the square of each entry."""
        squares = local["update"].double().square()  # a new tensor, also in float64
        local["squares"] = squares.mul_(squares.new_tensor(current.weights[current.mine])[:, None])

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """eta_g d."""
        d, whole = current.sums["weighted_sum"], float(current.weights.sum())
        mean_square = total(current.sums["squares"]) / whole
        square_of_mean = total(d * d) / whole**2
        # Of numbers that may lie on a GPU: nobody waits for them.
        rate = mean_square / (2 * (square_of_mean + self.config.algorithm.epsilon))
        return rate.clip(1.0) * d, {}
