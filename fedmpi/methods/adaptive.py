"""Adaptive server optimizers (Reddi et al., 2021) and server momentum, on d = sum_n q_n Delta_n."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.config.options import option
from fedmpi.methods.base import Method, Round, ServerState, Vectors, method, sign, sqrt


@dataclass(frozen=True, kw_only=True)
class MomentKeys:
    """Of fedadam and fedyogi."""

    beta1: float = option(0.9, "fedadam, fedyogi: of the first moment", at_least=0, at_most=1)
    beta2: float = option(0.99, "fedadam, fedyogi: of the second moment", at_least=0, at_most=1)
    tau: float = option(1e-3, "fedadam, fedyogi: added to the root; v starts at its square", above=0)


@method("fedadam", MomentKeys, takes_late=True)
class FedAdam(Method):
    """m <- b1 m + (1 - b1) d; v <- b2 v + (1 - b2) d^2; x <- x + eta m / (sqrt v + tau)."""

    default_server_lr = 0.1

    def initial_extras(self, num_params: int) -> Vectors:
        """m = 0, v = tau^2: Reddi et al. ask for v of at least tau^2."""
        least = self.config.algorithm.tau**2
        return {"first_moment": np.zeros(num_params), "second_moment": np.full(num_params, least)}

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """m / (sqrt v + tau)."""
        options, d = self.config.algorithm, current.sums["weighted_sum"]
        m = options.beta1 * state.extras["first_moment"] + (1 - options.beta1) * d
        v = self.second_moment(state.extras["second_moment"], d * d)
        return m / (sqrt(v) + options.tau), {"first_moment": m, "second_moment": v}

    def second_moment(self, v: np.ndarray, squared: np.ndarray) -> np.ndarray:
        """A running mean of d^2."""
        beta2 = self.config.algorithm.beta2
        return beta2 * v + (1 - beta2) * squared


@method("fedyogi", MomentKeys, takes_late=True)
class FedYogi(FedAdam):
    """As FedAdam with v <- v - (1 - b2) d^2 sign(v - d^2)."""

    def second_moment(self, v: np.ndarray, squared: np.ndarray) -> np.ndarray:
        """Moves towards d^2 by at most (1 - b2) d^2."""
        return v - (1 - self.config.algorithm.beta2) * squared * sign(v - squared)


@method("fedavgm", takes_late=True)
class FedAvgM(Method):
    """m <- beta m + d; x <- x + eta m: FedAvg with `server_momentum`, 0.9 if not given."""

    default_momentum = 0.9
