"""F3AST (Ribero et al., 2022): the server chooses whom it has heard least, and weighs by how little.

Of those available the S with the largest p_n^2 / r_n^2 are chosen, p_n = 1/N; then r_n <- (1 - b) r_n +
b [n was chosen], for everybody; x <- x + sum over the chosen of (p_n / r_n) Delta_n. r_n is 1/N at first,
and of equal ones the first by id is chosen. The authors' program also divides by S, which server_lr can do.
With all available chosen, r_n counts availability, as in the program of CA-Fed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.methods.base import Method, ServerState, Vectors, method


@dataclass(frozen=True, kw_only=True)
class F3astKeys:
    """Of f3ast."""

    rate_step: float = option(0.001, "f3ast: b, how fast rates of participation follow", above=0, at_most=1)


def _conflicts(config: Config) -> Iterator[Finding]:
    selection = config.participation.selection
    if selection not in ("by-method", "all"):
        yield (
            "participation.selection",
            f'"{selection}": algorithm.name = "f3ast" itself chooses among all who are available; expected '
            '"by-method", which chooses clients_per_round of them, or "all"',
        )


@method(
    "f3ast", F3astKeys, conflicts=_conflicts, ignores_weights=True, chooses=True,
    start={"participation.selection": "by-method"},
)  # fmt: skip
class F3ast(Method):
    """F3AST: those with the lowest rates of participation so far are chosen, with 1 / (N r_n)."""

    def initial_extras(self, num_params: int) -> Vectors:
        """r_n, and who is chosen in this round."""
        rates = np.full(self.num_clients, 1 / self.num_clients)
        return {"rates": rates, "is_chosen": np.zeros(self.num_clients, np.uint8)}

    def notice(
        self, state: ServerState, t: int, clients: np.ndarray, losses: np.ndarray | None
    ) -> ServerState:
        """Choose by the rates of before; then they follow."""
        who, rates = self.config.participation, state.extras["rates"]
        chosen = clients
        if who.selection == "by-method":
            chosen = clients[np.argsort(rates[clients], kind="stable")[: who.clients_per_round]]
        is_chosen = np.zeros(self.num_clients, np.uint8)
        is_chosen[chosen] = 1
        step = self.config.algorithm.rate_step
        return self.with_extras(state, rates=(1 - step) * rates + step * is_chosen, is_chosen=is_chosen)

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """p_n / r_n."""
        chosen = np.flatnonzero(state.extras["is_chosen"])
        return chosen, 1 / (self.num_clients * state.extras["rates"][chosen])
