"""FedVARP (Jhunjhunwala et al., 2022): remembered updates reduce the variance of partial participation.

v = (1/S) sum over participants of (Delta_n - y_n) + mean of all y_n; x <- x + eta v; then y_n <- Delta_n.
"""

from __future__ import annotations

import numpy as np

from fedmpi.methods.base import Local, Method, Round, ServerState, Vectors, method


@method("fedvarp", ignores_weights=True)
class FedVarp(Method):
    """FedVARP: variance reduction by remembered updates; y_n is a client's latest one, zero at first."""

    tables = ("memory",)
    client_sums = ("change",)

    def initial_extras(self, num_params: int) -> Vectors:
        """The mean of all y_n."""
        return {"mean": np.zeros(num_params)}

    def finish_clients(self, local: Local, current: Round) -> None:
        """Delta_n - y_n, and y_n <- Delta_n."""
        local["change"] = local["update"].double() - local["memory"].double()
        local["memory"].copy_(local["update"])

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """v."""
        mean, change = state.extras["mean"], current.sums["change"]
        return change / len(current.clients) + mean, {"mean": mean + change / self.num_clients}
