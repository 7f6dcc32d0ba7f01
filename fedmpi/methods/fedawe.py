"""FedAWE (Xiang et al., 2024): clients that come back echo their update for the rounds that they missed.

Client: y <- I steps from x_n, its own last model; it sends x_n + eta_g (t - tau_n) (y - x_n), with tau_n
the round in which it took part last. Server: x <- mean of what was sent, and only those who sent get x.
Everybody in every round: FedAvg, with eta_g as a server rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.config.options import option
from fedmpi.methods.base import Round, ServerState, Vectors, method
from fedmpi.methods.own_models import OwnModels


@dataclass(frozen=True, kw_only=True)
class FedAweKeys:
    """Of fedawe."""

    echo: float = option(1.0, "fedawe: eta_g, of an update for each round since the last", above=0)


@method("fedawe", FedAweKeys, ignores_weights=True)
class FedAwe(OwnModels):
    """FedAWE: own models, and updates that count (t - tau_n) times; unseen clients have tau_n = -1."""

    client_sums = ("own",)  # x_n - x_b, as it was before the round

    def initial_extras(self, num_params: int) -> Vectors:
        """x_b, and tau_n."""
        last = np.full(self.num_clients, self.config.warmup_rounds - 1)
        return super().initial_extras(num_params) | {"last_round": last}

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """eta_g (t - tau_n) / S."""
        missed = t - state.extras["last_round"][clients]
        return clients, self.config.algorithm.echo * missed * self.mean(clients)

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """To the mean of what was sent; tau_n <- t."""
        last = state.extras["last_round"].copy()
        last[current.clients] = current.t
        sent = current.sums["own"] / len(current.clients) + current.sums["weighted_sum"]
        return self.towards(state, sent), {"last_round": last}
