"""A run's round with many participants: on each rank some are trained after others, and only sums stay.

Invariant: the plan covers the whole round and is the same on all ranks, so that each knows when another
needs samples that it lends. Memory does not depend on the number of participants, apart from a few
numbers for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmpi.data.ownership import owner_of
from fedmpi.errors import ClientError
from fedmpi.mpi import Comm
from fedmpi.simulation.parts import Order, Part, share_of
from fedmpi.simulation.rank_report import RankReport
from fedmpi.simulation.shares import Share
from fedmpi.simulation.streamed_sum import Totals


class Stream:
    """The participants of one run, up to `at_once` at a time on each rank."""

    def __init__(self, order: Order, totals: Totals, comm: Comm, at_once: int) -> None:
        self._order, self._totals, self._at_once = order, totals, at_once
        clients = order.current.clients
        self._mine, self._num_own, self._trainers = share_of(order)
        busiest = len(clients)
        if self._trainers is not None:
            busiest = int(np.bincount(self._trainers, minlength=1).max())
            self._lent, self._when = _lent(clients, self._trainers, comm.size, at_once)
        self.length = -(-busiest // at_once)  # parts, the same on all ranks
        self._peaks = [np.zeros(len(clients)) for _ in totals]
        self._numbers = {name: np.zeros(len(clients)) for name in order.method.client_numbers}
        self._seconds, self._failure = 0.0, None

    def part(self, number: int) -> Part:
        """What this rank trains next; none after its last client."""
        order, first = self._order, number * self._at_once
        if isinstance(self._mine, slice):
            mine = np.arange(first, min(first + self._at_once, len(order.current.clients)))
        else:
            mine = self._mine[first : first + self._at_once]
        num_own = min(max(self._num_own - first, 0), len(mine))
        lending = slice(None) if self._trainers is None else self._lent[self._when == number]
        return Part(order, mine, num_own, self._trainers, order.current.clients[mine], lending)

    def take(
        self, part: Part, values: Sequence[np.ndarray], seconds: float, failure: ClientError | None
    ) -> None:
        """Add the updates of a part that is trained. `values`: largest magnitudes in each row."""
        self._seconds += seconds
        self._failure = self._failure or failure
        for name, numbers in part.numbers().items():
            self._numbers[name][part.mine] = numbers
        weights = self._order.current.weights[part.mine]
        for rows, total, peaks, own in zip(
            part.rows().values(), self._totals.values(), self._peaks, values, strict=True
        ):
            # Updates count with their weights, the method's own vectors, which come after them, without.
            peaks[part.mine] = here = np.where(np.isnan(own), np.inf, own)  # a maximum over ranks loses nan
            largest = float((weights * here).max(initial=0.0))
            if np.isfinite(largest) and self._failure is None:
                total.add(rows, weights, largest)
            weights = np.ones(len(part.mine))

    def share(self) -> Share:
        """For the reduction, after the last part."""
        order = self._order
        return Share(
            clients=order.current.clients,
            weights=order.current.weights,
            mine=self._mine,
            rows={},
            peaks=self._peaks,
            totals=self._totals,
            numbers=self._numbers,
            report=RankReport(
                stop=order.report.stop,
                wants_checkpoint=order.report.wants_checkpoint,
                failed=self._failure is not None,
                seconds=self._seconds,
            ),
            failure=self._failure,
        )


def _lent(
    clients: np.ndarray, trainers: np.ndarray, num_ranks: int, at_once: int
) -> tuple[np.ndarray, np.ndarray]:
    """The places of lent clients, and with which part their trainers train them: own clients come first."""
    is_lent = owner_of(clients, num_ranks) != trainers
    order = np.lexsort((is_lent, trainers))  # stable: as they stand among the participants
    begins = np.searchsorted(trainers[order], np.arange(num_ranks))
    place = np.empty(len(clients), np.int64)
    place[order] = np.arange(len(clients)) - begins[trainers[order]]
    lent = np.flatnonzero(is_lent)
    return lent, place[lent] // at_once
