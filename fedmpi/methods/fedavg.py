"""Generalized FedAvg with amplified updates: the server's part of Algorithm 1 (Wang & Ji, 2022).

eta = 1 is FedAvg, P = 1 is FedAvg with two-sided learning rates. x and u are float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedmpi.config import Config


@dataclass(frozen=True)
class ServerState:
    """x_t, u and t_0 of Algorithm 1."""

    global_params: np.ndarray
    accumulated: np.ndarray
    anchor_round: int


class GeneralizedFedAvg:
    """The server steps of Algorithm 1, and when they happen."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._interval = config.algorithm.amplify_every

    def init(self, global_params: np.ndarray) -> ServerState:
        """t_0 = 0, u = 0."""
        return ServerState(global_params, np.zeros_like(global_params), anchor_round=0)

    def update(self, state: ServerState, weighted_sum: np.ndarray) -> ServerState:
        """x_{t+1} = x_t + sum_n q_t^n Delta_t^n."""
        return replace(state, global_params=state.global_params + weighted_sum)

    def accumulate(self, state: ServerState, weighted_sum: np.ndarray) -> ServerState:
        """u = u + sum_n q_t^n Delta_t^n."""
        return replace(state, accumulated=state.accumulated + weighted_sum)

    def interval_ends(self, state: ServerState, t: int) -> bool:
        """t + 1 - t_0 = P; the warm-up is an interval of its own, without amplification."""
        warmup = self._config.warmup_rounds
        return t + 1 == warmup if t < warmup else t + 1 - state.anchor_round == self._interval

    def amplify(self, state: ServerState, t: int) -> ServerState:
        """x_{t+1} = x_{t+1} + (eta - 1) u, with the eta of round t."""
        eta = self._config.amplification(t)
        return replace(state, global_params=state.global_params + (eta - 1) * state.accumulated)

    def restart(self, state: ServerState, t: int) -> ServerState:
        """t_0 = t + 1, u = 0."""
        return replace(state, anchor_round=t + 1, accumulated=np.zeros_like(state.accumulated))
