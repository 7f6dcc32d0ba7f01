"""FedAU (Wang & Ji, 2024): averaging by intervals of absence, where participation statistics are unknown.

Client n is weighted by w_n / N, with w_n the mean length of its intervals between participations, each cut
off at K: an estimate of 1 / p_n. Invariant: a round touches only the numbers of its participants, so it
costs O(participants) at any N.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.config.options import option
from fedmpi.methods.base import Method, Round, ServerState, Vectors, method


@dataclass(frozen=True, kw_only=True)
class FedAUKeys:
    """Of fedau."""

    cutoff: int | None = option(None, "fedau: K, longest interval recorded; default: none", at_least=1)


@method("fedau", FedAUKeys, ignores_weights=True)
class FedAU(Method):
    """FedAU: x <- x + eta (1/N) sum_n w_n Delta_n; K is `cutoff`, without it intervals are never cut."""

    def initial_extras(self, num_params: int) -> Vectors:
        """The last participation of each client, and mean and number of its intervals."""
        return {
            "last_round": np.full(self.num_clients, self.config.warmup_rounds - 1),
            "mean_interval": np.zeros(self.num_clients),
            "num_intervals": np.zeros(self.num_clients, np.int64),
        }

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """w_n / N; w_n = 1 before the first interval is known."""
        mean, count, _ = self._until(state, t, clients)
        return clients, np.where(count > 0, mean, 1.0) / self.num_clients

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """The weighted sum; and the interval that ends here is recorded."""
        mean, count, absent = self._until(state, current.t, current.clients)
        changed = {name: state.extras[name].copy() for name in self.initial_extras(0)}
        changed["mean_interval"][current.clients] = (mean * count + absent + 1) / (count + 1)
        changed["num_intervals"][current.clients] = count + 1
        changed["last_round"][current.clients] = current.t
        return current.sums["weighted_sum"], changed

    def _until(
        self, state: ServerState, t: int, clients: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and number of intervals up to round t, those cut off included, and rounds absent since."""
        mean, count = state.extras["mean_interval"][clients], state.extras["num_intervals"][clients]
        absent = t - state.extras["last_round"][clients] - 1
        cutoff = self.config.algorithm.cutoff
        if cutoff is None:
            return mean, count, absent
        cuts, rest = np.divmod(absent, cutoff)
        number = np.maximum(count + cuts, 1)
        return (mean * count + cutoff * cuts) / number, count + cuts, rest
