"""FedExP (Jhunjhunwala, Wang & Joshi, 2023): the server steps further where the clients disagree.

d = sum of q_n Delta_n; eta_g = max(1, sum of q_n |Delta_n|^2 / (2 (|d|^2 + epsilon))); x <- x + eta_g d.
With q_n = 1/S these are the paper's; other weights are scaled to a sum of 1 in eta_g, as the authors do.
Each client sends |Delta_n|^2, one number, whose entries are added in an order of their own (`total`): so it
has the same bits on any rank, beside any other clients.
"""

from __future__ import annotations

import math
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

    client_numbers = ("square",)

    def finish_clients(self, local: Local, current: Round) -> None:
        """|Delta_n|^2."""
        local["square"] = total(local["update"].double().square())

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """eta_g d."""
        d, whole = current.sums["weighted_sum"], math.fsum(current.weights)
        mean_square = math.fsum(current.weights * current.numbers["square"]) / whole
        if mean_square == 0:
            return d, {}
        square_of_mean = total(d * d) / whole**2
        # 1 / eta_g. Its numbers may lie on a GPU: nobody waits for them.
        inverse = (square_of_mean + self.config.algorithm.epsilon) * (2 / mean_square)
        return d / inverse.clip(None, 1.0), {}
