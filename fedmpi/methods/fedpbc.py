"""FedPBC (Xiang et al., 2023): everybody trains in every round, and the mean comes only to those available.

Client: x_n <- I steps from x_n, available or not. Server: x <- mean of x_n over those available, who then
get it: "postponed broadcast". x is what is evaluated; the authors' code evaluates the mean of all x_n.
Everybody available in every round: FedAvg.
"""

from __future__ import annotations

import numpy as np

from fedmpi.methods.base import Local, Round, ServerState, Vectors, method
from fedmpi.methods.own_models import OwnModels


@method("fedpbc", ignores_weights=True)
class FedPbc(OwnModels):
    """FedPBC: all clients train from their own models; those available are averaged, and get the mean."""

    absent_train = True

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Everybody: 1/S for those available, 0 for the others, who only train."""
        everybody = np.zeros(self.num_clients)
        everybody[clients] = self.mean(clients)
        return np.arange(self.num_clients), everybody

    def finish_clients(self, local: Local, current: Round) -> None:
        """x_n <- y_n, which is also what is sent."""
        local["own"].add_(local["update"])
        local["update"].copy_(local["own"])

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """To the mean of those available."""
        return self.towards(state, current.sums["weighted_sum"]), {}
