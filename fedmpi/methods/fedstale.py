"""FedStale (Rodio & Neglia, 2024): fresh updates beside remembered ones, which count with beta.

v = sum over participants of q_n (Delta_n - beta h_n) + beta * mean of all h_n; x <- x + eta v; then
h_n <- Delta_n. With the paper's q_n = 1 / (N p_n), weighting = "inverse-probability", v is without bias.
beta = 0 is FedAvg with the same weights; beta = 1 with the weights 1/S is FedVARP.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.config.options import option
from fedmpi.methods.base import Local, Method, Round, ServerState, Vectors, method


@dataclass(frozen=True, kw_only=True)
class FedStaleKeys:
    """Of fedstale."""

    beta: float = option(
        0.5, "fedstale: of remembered updates; 0 = FedAvg, 1 = FedVARP", at_least=0, at_most=1
    )


@method("fedstale", FedStaleKeys)
class FedStale(Method):
    """FedStale: remembered updates count with `beta`; h_n is a client's latest update, zero at first."""

    tables = ("memory",)
    client_sums = ("change",)

    def initial_extras(self, num_params: int) -> Vectors:
        """The mean of all h_n."""
        return {"mean": np.zeros(num_params)}

    def finish_clients(self, local: Local, current: Round) -> None:
        """What is summed with weights: Delta_n - beta h_n. Then h_n <- Delta_n."""
        update, memory, new = local["update"], local["memory"], local["update"].clone()
        local["change"] = new.double() - memory.double()
        update.sub_(memory, alpha=self.config.algorithm.beta)
        memory.copy_(new)

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """v, with the mean of before."""
        mean = state.extras["mean"]
        v = current.sums["weighted_sum"] + self.config.algorithm.beta * mean
        return v, {"mean": mean + current.sums["change"] / self.num_clients}
