"""FedNova (Wang et al., 2020): clients that take more local steps do not weigh more.

x <- x + I_eff sum of q_n Delta_n / I_n, with I_n the local steps of client n and I_eff = sum of q_n I_n /
sum of q_n: the authors' tau_eff, for plain SGD, where |a_n|_1 = I_n. Equal steps: FedAvg.
"""

from __future__ import annotations

import math

import numpy as np

from fedmpi.methods.base import Method, ServerState, method


@method("fednova", start={"local_steps": [2, 8], "local_steps_law": "uniform"})
class FedNova(Method):
    """FedNova: updates are averaged for each local step, then scaled by the mean number of steps."""

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """q_n I_eff / I_n."""
        if len(clients) == 0:
            return clients, weights
        steps = self.local_steps.of(t, clients)
        effective = math.fsum(weights * steps) / math.fsum(weights)
        return clients, weights * (effective / steps)
