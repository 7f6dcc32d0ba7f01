"""MimeLite (Karimireddy et al., 2021): clients step with the server's momentum, which they do not change.

Client: y <- y - gamma (b m + (1 - b) g), with m of the round's start. Server: x <- x + sum of q_n Delta_n,
and m <- b m + (1 - b) mean of grad F_n(x_t) over participants, on all of their data. b = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmpi.config.options import option
from fedmpi.methods.base import Local, Method, Rate, Round, ServerState, Vectors, add_scaled, method


@dataclass(frozen=True, kw_only=True)
class MimeLiteKeys:
    """Of mimelite."""

    local_momentum: float = option(
        0.9, "mimelite: b, of the server's momentum in local steps", at_least=0, at_most=1
    )


@method("mimelite", MimeLiteKeys)
class MimeLite(Method):
    """MimeLite: momentum SGD in local steps, with a momentum from whole gradients at x."""

    broadcasts = ("statistics",)
    client_sums = ("gradient_at_x",)
    asks_gradients = True
    sends = receives = 2  # the update and grad F_n(x); x and m
    steps_by_itself = True
    rate_on_device = True
    step_options = ("local_momentum",)

    def initial_extras(self, num_params: int) -> Vectors:
        """m."""
        return {"statistics": np.zeros(num_params)}

    def step(self, local: Local, gradient: Any, local_lr: Rate) -> None:
        """y <- y - gamma (b m + (1 - b) g)."""
        b = self.config.algorithm.local_momentum
        add_scaled(local["update"], b * local["server_statistics"] + (1 - b) * gradient, -local_lr)

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """The weighted sum of updates; m follows the mean gradient at x."""
        b, mean = self.config.algorithm.local_momentum, current.sums["gradient_at_x"] / len(current.clients)
        return current.sums["weighted_sum"], {"statistics": b * state.extras["statistics"] + (1 - b) * mean}
