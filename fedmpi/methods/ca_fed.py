"""CA-Fed (Rodio et al., 2023): correlated and rarely available clients are left out where it costs little.

The server estimates pi_n, how often client n is available, and lambda_n, how much of its state is left in
the next round, and hears the losses F_n(x_t) of those available. It begins with q_n = 1 / (N pi_n) for
everybody; one client after another, the most correlated first and then the least available first, is left
out if this makes sum of w_n F_n + kappa max F_n d_TV(w, 1/N)^2 smaller by at least the tolerance, where
w_n is pi_n q_n, scaled to a sum of 1. Then x <- x + sum over those available of q_n Delta_n.

The losses stand for gaps F_n - F_n*, with F_n* = 0; the authors minimize each F_n beforehand. pi_n and
lambda_n come from counts with half a visit added to each (the authors' prior is the true value). Invariant:
sums are folded (`total`), so all ranks make the same choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.methods.base import Method, ServerState, Vectors, method, total


@dataclass(frozen=True, kw_only=True)
class CaFedKeys:
    """Of ca-fed."""

    tolerance: float = option(
        0.0, "ca-fed: tau, by how much the error falls where a client is left out", at_least=0
    )
    bias_weight: float = option(1.0, "ca-fed: kappa, of the bias; large = nobody is left out", at_least=0)
    loss_memory: float = option(
        0.0, "ca-fed: of a client's loss of before in its estimate", at_least=0, at_most=1
    )


def _conflicts(config: Config) -> Iterator[Finding]:
    selection = config.participation.selection
    if selection != "all":
        yield (
            "participation.selection",
            f'"{selection}": algorithm.name = "ca-fed" itself chooses among all who are available, and how '
            'many; expected "all"',
        )


@method(
    "ca-fed", CaFedKeys, conflicts=_conflicts, ignores_weights=True,
    start={"participation.selection": "all"},
)  # fmt: skip
class CaFed(Method):
    """CA-Fed: correlated and rarely available clients are left out where their losses allow it."""

    asks_losses = True

    def initial_extras(self, num_params: int) -> Vectors:
        """Rounds, visits, rounds of staying there and away; the last presence; losses; q_n."""
        counts = ("visits", "stays", "absences", "was_there")
        numbers = {name: np.zeros(self.num_clients, np.int64) for name in counts}
        reals = {name: np.zeros(self.num_clients) for name in ("losses", "allocation")}
        return {"rounds": np.zeros(1, np.int64), "heard": np.zeros(1, np.int64), **numbers, **reals}

    def notice(
        self, state: ServerState, t: int, clients: np.ndarray, losses: np.ndarray | None
    ) -> ServerState:
        """Count, note the losses, and decide about everybody."""
        old = state.extras
        there = np.zeros(self.num_clients, np.int64)
        there[clients] = 1
        is_later = old["rounds"][0] > 0
        changed = {
            "rounds": old["rounds"] + 1,
            "heard": old["heard"] | int(len(clients) > 0),
            "visits": old["visits"] + there,
            "stays": old["stays"] + is_later * old["was_there"] * there,
            "absences": old["absences"] + is_later * (1 - old["was_there"]) * (1 - there),
            "was_there": there,
            "losses": self._losses(old, clients, losses),
        }
        changed["allocation"] = self._allocation({**old, **changed})
        return self.with_extras(state, **changed)

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Those who are not left out, with q_n."""
        kept = clients[state.extras["allocation"][clients] > 0]
        return kept, state.extras["allocation"][kept]

    def _losses(self, old: Vectors, clients: np.ndarray, losses: np.ndarray) -> np.ndarray:
        """The latest of each; before the first of a client, the mean of the first that were heard."""
        if len(clients) == 0:
            return old["losses"]
        if not old["heard"][0]:
            new = np.full(self.num_clients, total(losses)[0] / len(losses))
            new[clients] = losses
            return new
        memory, new = self.config.algorithm.loss_memory, old["losses"].copy()
        new[clients] = memory * new[clients] + (1 - memory) * losses
        return new

    def _allocation(self, seen: Vectors) -> np.ndarray:
        """q_n of everybody; 0 for those who are left out."""
        # pi_n and lambda_n.
        rounds, visits = seen["rounds"][0], seen["visits"]
        available = (visits + 0.5) / (rounds + 1)
        before = visits - seen["was_there"]  # visits that a round followed
        stays = (seen["stays"] + 0.5) / (before + 1)
        absences = (seen["absences"] + 0.5) / (rounds - 1 - before + 1)
        correlation = np.abs(stays + absences - 1)

        # The most correlated first, then the least available first; of equal ones the first by id.
        allocation = 1 / (self.num_clients * available)
        for order in (np.argsort(-correlation, kind="stable"), np.argsort(available, kind="stable")):
            allocation = self._without(allocation, order, available, seen["losses"])
        return allocation

    def _without(
        self, allocation: np.ndarray, order: np.ndarray, available: np.ndarray, losses: np.ndarray
    ) -> np.ndarray:
        """Leave out one after another where the error falls."""
        kept, error = allocation, self._error(allocation, available, losses)
        for n in order.tolist():
            tried = kept.copy()
            tried[n] = 0
            if not tried.any():
                break
            new = self._error(tried, available, losses)
            if error - new >= self.config.algorithm.tolerance:
                kept, error = tried, new
        return kept

    def _error(self, allocation: np.ndarray, available: np.ndarray, losses: np.ndarray) -> float:
        """What is left of the loss with these clients, and the bias that they bring."""
        w = available * allocation
        w = w / total(w)
        distance = total(np.abs(w - 1 / self.num_clients))[0] / 2
        return float(total(w * losses)[0] + self.config.algorithm.bias_weight * losses.max() * distance**2)
