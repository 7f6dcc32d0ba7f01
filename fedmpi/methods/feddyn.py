"""FedDyn (Acar et al., 2021): a penalty of each client's own, which makes local and global optima agree.

Client: y <- y - gamma (g - h_n + alpha (y - x)); then h_n <- h_n - alpha Delta_n.
Server: h <- h - (alpha / N) sum of Delta_n; x <- mean of y_n - h / alpha, where the mean has the weights q.
Invariant: h is the mean of all h_n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmpi.config.options import option
from fedmpi.methods.base import (
    Local,
    Method,
    Rate,
    Round,
    ServerState,
    Vectors,
    add_scaled,
    method,
    multiply,
)


@dataclass(frozen=True, kw_only=True)
class FedDynKeys:
    """Of feddyn."""

    alpha: float = option(0.1, "feddyn: of the penalty; the authors try 0.1, 0.01 and 0.001", above=0)


@method("feddyn", FedDynKeys)
class FedDyn(Method):
    """FedDyn: dynamic regularization; h_n and h are zero at first."""

    tables = ("control",)
    client_sums = ("change",)
    steps_by_itself = True
    rate_on_device = True
    step_options = ("alpha",)

    def initial_extras(self, num_params: int) -> Vectors:
        """h."""
        return {"control": np.zeros(num_params)}

    def step(self, local: Local, gradient: Any, local_lr: Rate) -> None:
        """Pull and penalty are taken at the same y as the gradient."""
        update = local["update"]
        multiply(update, 1 - local_lr * self.config.algorithm.alpha)
        add_scaled(update, gradient - local["control"], -local_lr)

    def finish_clients(self, local: Local, current: Round) -> None:
        """h_n <- h_n - alpha Delta_n."""
        control = local["control"]
        new = control - self.config.algorithm.alpha * local["update"]
        local["change"] = new.double() - control.double()
        control.copy_(new)

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """The weighted sum of updates, minus h / alpha with the new h."""
        control = state.extras["control"] + current.sums["change"] / self.num_clients
        return current.sums["weighted_sum"] - control / self.config.algorithm.alpha, {"control": control}
