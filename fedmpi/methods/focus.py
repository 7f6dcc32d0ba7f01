"""FOCUS (Ying et al., 2025): gradient tracking under arbitrary participation.

Client: w <- x, z <- 0; I times: g = gradient at w, z <- z + g - h_n, h_n <- g, w <- w - gamma z.
Server: Y <- Y + sum of z_n; x <- x - gamma Y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmpi.methods.base import Local, Method, Rate, Round, ServerState, Vectors, add_scaled, method


@method("focus", ignores_weights=True)
class Focus(Method):
    """FOCUS: gradient tracking; h_n and the tracker Y are zero at first."""

    tables = ("last_gradient",)
    scratch = ("tracked",)
    client_sums = ("tracked",)
    steps_by_itself = True
    rate_on_device = True

    def initial_extras(self, num_params: int) -> Vectors:
        """The tracker Y."""
        return {"tracker": np.zeros(num_params)}

    def step(self, local: Local, gradient: Any, local_lr: Rate) -> None:
        """z <- z + g - h_n; h_n <- g; w <- w - gamma z (after the last step w is not used)."""
        local["tracked"].add_(gradient).sub_(local["last_gradient"])
        local["last_gradient"].copy_(gradient)
        add_scaled(local["update"], local["tracked"], -local_lr)

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """-gamma Y."""
        tracker = state.extras["tracker"] + current.sums["tracked"]
        return -current.local_lr * tracker, {"tracker": tracker}
