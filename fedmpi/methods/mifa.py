"""MIFA (Gu et al., 2021): the latest update of every client is stored and reused while it is absent.

G_n = (y - x) / gamma of the round that client n last took part in; x <- x + gamma * mean over all N of G_n.
The owners keep the table of G_n; only its change is summed, so keeping the mean up to date costs as much as
a FedAvg round. x moves in every round, also in one in which nobody takes part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.methods.base import Local, Method, Round, ServerState, Vectors, method, zeros_like


@dataclass(frozen=True, kw_only=True)
class MifaKeys:
    """Of mifa."""

    warm_start: bool = option(True, "mifa: x waits until every client has taken part once")


@method("mifa", MifaKeys, ignores_weights=True)
class Mifa(Method):
    """MIFA: the latest update of every client counts in every round.

    With `warm_start` x waits until every client has taken part once; otherwise missing ones count as zero.
    """

    tables = ("memory",)
    client_sums = ("change",)
    moves_without_participants = True  # the authors' loop has no other case

    @property
    def warm_start(self) -> bool:
        """Whether x waits for everybody."""
        return self.config.algorithm.warm_start

    def initial_extras(self, num_params: int) -> Vectors:
        """Mean of the table, and who has been seen."""
        return {"mean": np.zeros(num_params), "seen": np.zeros(self.num_clients, np.uint8)}

    def finish_clients(self, local: Local, current: Round) -> None:
        """G_n <- Delta_n / gamma."""
        new = local["update"] / current.local_lr
        local["change"] = new.double() - local["memory"].double()
        local["memory"].copy_(new)

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """gamma * mean_n G_n."""
        mean = state.extras["mean"] + current.sums["change"] / self.num_clients
        seen = state.extras["seen"].copy()
        seen[current.clients] = 1
        waits = self.warm_start and not seen.all()
        added = zeros_like(mean) if waits else current.local_lr * mean
        return added, {"mean": mean, "seen": seen}


def _fedlaavg_conflicts(config: Config) -> Iterator[Finding]:
    selection = config.participation.selection
    if selection != "least-recent":
        yield (
            "participation.selection",
            f'"{selection}": algorithm.name = "fedlaavg" takes the clients absent for longest; '
            'expected "least-recent"',
        )


@method(
    "fedlaavg", conflicts=_fedlaavg_conflicts, ignores_weights=True,
    start={"participation.selection": "least-recent"},
)  # fmt: skip
class FedLaAvg(Mifa):
    """FedLaAvg (Yan et al., 2020): MIFA from zeros, on the K available clients absent for longest.

    They are chosen by the selection `least-recent`.
    """

    warm_start = False
