"""Clients with a model of their own, from which they start: x_n, the last that they received or made.

A client's table holds x_n - x_b, with x_b the x at which the method begins: at x_0, or after the warm-up.
So nothing needs to be written for a client before it trains for the first time. Invariant: whoever takes
part has x_n = x after the round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmpi.methods.base import Local, Method, Round, ServerState, Vectors


class OwnModels(Method):
    """Clients start from x_n; those who take part get the new x."""

    tables = ("own",)
    broadcasts = ("origin",)
    has_own_starts = True
    takes_back = True

    def initial_extras(self, num_params: int) -> Vectors:
        """x_b."""
        return {"origin": np.zeros(num_params)}

    def begin(self, state: ServerState) -> ServerState:
        """x_b is this x, for everybody."""
        return self.with_extras(state, origin=state.global_params)

    def start(self, local: Local) -> Any:
        """x_n."""
        return local["own"] + local["server_origin"]

    def take_back(self, local: Local, current: Round) -> None:
        """x_n <- x."""
        local["own"].copy_(local["server_x"] - local["server_origin"])

    def mean(self, clients: np.ndarray) -> np.ndarray:
        """Weights of a plain mean over some clients."""
        return np.full(len(clients), 1 / max(len(clients), 1))

    def towards(self, state: ServerState, mean: np.ndarray) -> np.ndarray:
        """From x to x_b + `mean`."""
        return state.extras["origin"] - state.global_params + mean
