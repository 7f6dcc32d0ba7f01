"""FedProx (Li et al., 2020): local steps on F_n(y) + mu/2 |y - x|^2. mu = 0 is FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedmpi.config.options import option
from fedmpi.methods.base import Local, Method, Rate, add_scaled, method, multiply


@dataclass(frozen=True, kw_only=True)
class FedProxKeys:
    """Of fedprox."""

    mu: float = option(0.01, "fedprox: pull towards x", at_least=0)


@method("fedprox", FedProxKeys, takes_late=True)
class FedProx(Method):
    """FedProx: y <- y - gamma (g + mu (y - x)), and y - x is the update."""

    steps_by_itself = True
    rate_on_device = True
    step_options = ("mu",)

    def step(self, local: Local, gradient: Any, local_lr: Rate) -> None:
        """The pull towards x is taken at the same y as the gradient."""
        update = local["update"]
        multiply(update, 1 - local_lr * self.config.algorithm.mu)
        add_scaled(update, gradient, -local_lr)
