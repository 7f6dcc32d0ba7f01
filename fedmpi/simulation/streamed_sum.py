"""Sums over the clients of a round of which each update is added as soon as it is trained.

Memory and messages do not depend on the number of clients: a running total (running_total.py) for each sum
of each run, and one message with all of them. Invariant: as in aggregate.py, every rank calls all
collectives, whatever it trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import numpy as np
from torch import Tensor

from fedmpi.mpi import Comm
from fedmpi.simulation.aggregate import Agreed, WeightedSum
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.running_total import RunningTotal
from fedmpi.simulation.shares import Reduced, Share, Vector, non_finite, placed
from fedmpi.storage.columns import IDLE, REDUCTION

Totals = Mapping[str, RunningTotal]


class StreamedSum:
    """Running totals in the memory of a `WeightedSum`, which it also uses for messages."""

    def __init__(self, comm: Comm, messages: WeightedSum) -> None:
        self._comm, self._messages = comm, messages

    def totals(self, names: Sequence[Sequence[str]], counts: Sequence[int]) -> list[Totals]:
        """Empty totals: for each run the names of its sums, and how many participants it has."""
        room, totals = self._messages.room(2 * sum(map(len, names))), []
        place = count(step=2)
        for own, number in zip(names, counts, strict=True):
            totals.append({name: RunningTotal(_words(room, next(place)), number) for name in own})
        return totals

    def reduce(self, shares: Sequence[Share], clock: Stopwatch) -> list[Reduced | Exception]:
        """Collective. As `WeightedSum.reduce`, for runs that have totals instead of rows."""
        # First collective: the largest value of each client's update, and every rank's report.
        with clock(IDLE):
            agreed = self._messages.agree(shares)

        # Second collective: all totals, on the same grids on all ranks; the time that each rank computed
        # takes the place behind the first.
        with clock(REDUCTION):
            room = self._messages.room(2 * sum(len(share.totals) for share in shares))
            room[:, -1:] = 0
            place = 0
            for share, known in zip(shares, agreed, strict=True):
                room[place, -1:] = int(1e9 * share.report.seconds)
                place += 2 * len(share.totals)
                if isinstance(known, Agreed):
                    for total, largest in zip(share.totals.values(), known.largest, strict=True):
                        total.move_to(largest)
            room = self._messages.sum_over_ranks(room)

            # Their values.
            answers, place = [], 0
            for share, known in zip(shares, agreed, strict=True):
                answers.append(self._answer(known, room[place:]) if isinstance(known, Agreed) else known)
                place += 2 * len(share.totals)
            return answers

    def _answer(self, known: Agreed, room: np.ndarray | Tensor) -> Reduced:
        """`room` begins with this run's totals."""
        sums = {
            name: self._messages.delivered(total.value(_words(room, place)))
            for (name, total), place in zip(known.share.totals.items(), count(step=2), strict=False)
        }
        return self._messages.reduced(known, sums, int(room[0, -1]))

    def total(self, pieces: Iterable[tuple[Tensor, np.ndarray]], clients: np.ndarray) -> Vector:
        """Collective. As `WeightedSum.total`, of rows that come in pieces, with their clients' places."""
        (totals,) = self.totals([("total",)], [len(clients)])
        total, peaks = totals["total"], np.zeros(len(clients))
        for rows, places in pieces:
            here = placed(self._messages.magnitudes([rows])[0], len(clients), places)
            peaks += here
            if np.isfinite(here).all():
                total.add(rows, np.ones(len(places)), float(here.max(initial=0)))

        # What all ranks have, on the same grids.
        peaks = self._comm.maximum(peaks)
        if error := non_finite(clients, peaks):
            raise error
        total.move_to(float(peaks.max(initial=0)))
        room = self._messages.room(2)
        room[:, -1:] = 0
        return self._messages.delivered(total.value(_words(self._messages.sum_over_ranks(room), 0)))


def _words(room: np.ndarray | Tensor, place: int) -> np.ndarray | Tensor:
    """Two neighbouring rows, without the numbers behind them."""
    return room[place : place + 2, :-1]
