"""The sum of q * update over all participants of a run, the same bits on any number of ranks.

Two collectives for all runs of a pack: the maximum of a few numbers and of each client's update (a third
one for many clients), then the fixed-point sum. A few updates are kept until then and summed with an
exponent that fits all of them (exact.py); many are added as they come (streamed_sum.py). Invariant: every
rank calls all collectives, whatever it trained; nothing of a run is summed unless all updates are finite.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.errors import UserError
from fedmpi.models.flat import aligned_rows
from fedmpi.mpi import Comm
from fedmpi.simulation import exact
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.rank_report import SLOTS, RankReport
from fedmpi.simulation.shares import Reduced, Share, Vector, non_finite, placed
from fedmpi.storage.columns import IDLE, REDUCTION

_HEAD = 64  # numbers of the first collective: a rank's report, then the values of up to 56 clients
_REPORT = len(SLOTS)


@dataclass(slots=True)
class Term:
    """One sum of a reduction: rows with their weights, in multiples of 2**-exponent."""

    rows: Tensor  # of this rank
    weights: np.ndarray
    exponent: int
    count: int = 0  # added up over ranks beside the sum


@dataclass(slots=True)
class Agreed:
    """What all ranks know of a run before the sums."""

    share: Share
    update_max: np.ndarray  # largest magnitude in each client's update
    largest: list[float]  # contribution to each sum
    report: RankReport  # of all ranks together


class WeightedSum:
    """Buffers for the updates of one rank, and their sums over all ranks, of one run or of all in a pack.

    On a CPU; see gpu_aggregate.py for a GPU. The vectors that come out are float64 arrays.
    """

    def __init__(self, comm: Comm, num_params: int, dtype: torch.dtype, device: torch.device) -> None:
        self._comm, self._num_params, self._device = comm, num_params, device
        self._needs_no_messages = comm.size == 1
        self._updates = torch.empty((0, num_params), dtype=dtype, device=device)
        self._capacity = 0  # rows
        self._some, self._count = self._updates, -1  # those of the last round
        self._array: np.ndarray | None = None  # the same as an array
        self._totals = np.empty((0, num_params + 1), np.int64)  # rows of sums, with one extra number each

    def buffers(self, count: int) -> Tensor:
        """(count, num_params): one row for each update. Kept and reused."""
        if count > self._capacity:
            self._updates, self._capacity = aligned_rows(count, self._num_params, self._updates), count
        if count != self._count:
            self._some, self._count = self._updates[:count], count
            self._array = self._some.numpy() if self._device.type == "cpu" else None
        return self._some

    def _numpy(self, rows: Tensor) -> np.ndarray:
        """The same memory as an array; that of the buffers is made once."""
        return self._array if rows is self._some else rows.numpy()

    def magnitudes(self, rows: Sequence[Tensor]) -> list[np.ndarray]:
        """The largest magnitude in each row of each tensor, nan where one holds a nan.

        Waits for the device.
        """
        return [exact.magnitudes(self._numpy(part)) for part in rows]

    def reduce(self, shares: Sequence[Share], clock: Stopwatch) -> list[Reduced | Exception]:
        """Collective. For each run the sum of q * update over all its clients, and the combined report of
        all ranks; or the error that ends the run, the same on all ranks.
        """
        if self._needs_no_messages:
            with clock(REDUCTION):
                return [self._reduced_here(share) for share in shares]

        # First collective: the largest value of each client's update, and every rank's report.
        with clock(IDLE):  # the time until the slowest rank arrives
            agreed = self.agree(shares)

        # Second collective: the sums in fixed point, with exponents that fit all clients.
        with clock(REDUCTION):
            fine = [known for known in agreed if not isinstance(known, Exception)]
            sums = iter(self._sums(fine))
            return [known if isinstance(known, Exception) else next(sums) for known in agreed]

    def total(self, rows: Tensor, clients: np.ndarray, mine: np.ndarray) -> Vector:
        """Collective. The sum over all `clients` of one vector each, without weights.

        `rows` are those of `clients[mine]`; their precision may be higher than that of the updates.
        """
        peaks = self._comm.maximum(placed(self.magnitudes([rows])[0], len(clients), mine))
        if error := non_finite(clients, peaks):
            raise error
        exponent = exact.common_exponent(float(peaks.max(initial=0)), len(clients))
        return self._add_up([Term(rows, np.ones(len(mine)), exponent)])[0][0]

    def _reduced_here(self, share: Share) -> Reduced | Exception:
        """As `reduce`, for one run on a single rank."""
        if share.failure:
            return self._comm.shared_failure(share.failure)
        sums, weights, total = {}, share.weights, self.room(1)[0, :-1]
        for (name, rows), peaks in zip(share.rows.items(), share.peaks, strict=True):
            # Updates count with their weights, the method's own vectors, which come after them, without.
            weights = weights if name == "weighted_sum" else np.ones(len(weights))
            weighted = weights * peaks
            largest = float(weighted.max(initial=0.0))
            if not math.isfinite(largest):
                return non_finite(share.clients, weighted)
            exponent = exact.common_exponent(largest, len(weights))
            total.fill(0)
            exact.add_contributions(total, self._numpy(rows), weights.tolist(), exponent)
            sums[name] = exact.to_float(total, exponent)
        report = share.report
        return Reduced(
            sums=sums,
            update_max=share.peaks[0],
            compute_time=report.seconds,
            idle_time=0.0,
            stop=report.stop,
            checkpoint=report.wants_checkpoint,
            numbers=share.numbers,
        )

    def _sums(self, agreed: Sequence[Agreed]) -> list[Reduced]:
        """Collective. All sums of all runs, in one message."""
        # Updates count with their weights, the method's own vectors without. What is counted beside the
        # former are the nanoseconds that all ranks computed.
        terms = []
        for known in agreed:
            share, count = known.share, len(known.share.clients)
            weights, spent = share.weights[share.mine], int(1e9 * share.report.seconds)
            (updates, *others), (first, *rest) = share.rows.values(), known.largest
            terms.append(Term(updates, weights, exact.common_exponent(first, count), spent))
            for rows, largest in zip(others, rest, strict=True):
                terms.append(Term(rows, np.ones(len(weights)), exact.common_exponent(largest, count)))
        vectors = iter(self._add_up(terms))

        reduced = []
        for known in agreed:
            own = {name: next(vectors) for name in known.share.rows}
            sums = {name: vector for name, (vector, _) in own.items()}
            reduced.append(self.reduced(known, sums, own["weighted_sum"][1]))
        return reduced

    def reduced(self, known: Agreed, sums: dict[str, Vector], computed: int) -> Reduced:
        """`computed`: nanoseconds, of all ranks."""
        report = known.report
        return Reduced(
            sums=sums,
            update_max=known.update_max,
            compute_time=report.seconds,
            idle_time=max(report.seconds - 1e-9 * computed / self._comm.size, 0.0),
            stop=report.stop,
            checkpoint=report.wants_checkpoint,
            numbers=known.share.numbers,
        )

    def _add_up(self, terms: Sequence[Term]) -> list[tuple[Vector, int]]:
        """Collective. For each term the weighted sum of all ranks' rows, and that of their counts."""
        # This rank's part; the count takes the last entry.
        totals = self.room(len(terms))
        totals.fill(0)
        for total, term in zip(totals, terms, strict=True):
            exact.add_contributions(
                total[:-1], self._numpy(term.rows), term.weights.tolist(), term.exponent
            )
            total[-1] = term.count

        # All ranks together.
        self.sum_over_ranks(totals)
        return [
            (exact.to_float(total[:-1], term.exponent), int(total[-1]))
            for total, term in zip(totals, terms, strict=True)
        ]

    def sum_over_ranks(self, rows: np.ndarray) -> np.ndarray:
        """Collective. Rows of integers, in one message; they may come back elsewhere."""
        self._comm.sum_in_place(rows.reshape(-1))
        return rows

    def delivered(self, vector: Vector) -> Vector:
        """Where results are used."""
        return vector

    def room(self, count: int) -> np.ndarray:
        """Rows for sums, kept and reused."""
        if len(self._totals) < count:
            self._totals = np.empty((count, self._num_params + 1), np.int64)
        return self._totals[:count]

    def agree(self, shares: Sequence[Share]) -> list[Agreed | Exception]:
        """Collective. What all ranks know of each run before the sums; or the error that ends it."""
        # One rank knows all; several tell each other.
        if self._comm.size == 1:
            told = [(share.peaks, share.report) for share in shares]
        else:
            told = self._tell(shares)

        # A failure of any rank ends its run on all, and so does an infinite update.
        agreed: list[Agreed | Exception] = []
        for share, (peaks, report) in zip(shares, told, strict=True):
            if report.failed:
                agreed.append(self._comm.shared_failure(share.failure))
                continue
            weighted = [share.weights * peaks[0], *peaks[1:]]
            largest = [float(values.max(initial=0.0)) for values in weighted]
            errors = (non_finite(share.clients, values) for values in weighted)
            is_finite = all(map(math.isfinite, largest))
            known = Agreed(share, peaks[0], largest, report)
            agreed.append(known if is_finite else next(error for error in errors if error))
        return agreed

    def _tell(self, shares: Sequence[Share]) -> list[tuple[list[np.ndarray], RankReport]]:
        """Collective. The maximum over ranks of all peaks and reports."""
        # Report, plan and the values of a few clients in one message. Its length is fixed, so that ranks
        # which disagree on the participants can still compare.
        heads, long = np.zeros((len(shares), _HEAD)), []
        for head, share in zip(heads, shares, strict=True):
            plan = zlib.crc32(share.clients.tobytes() + share.weights.tobytes())
            head[:_REPORT] = share.report.pack(plan, len(share.clients))
            if len(share.clients) <= _HEAD - _REPORT:
                head[_REPORT : _REPORT + len(share.clients)] = share.peaks[0]
            else:
                long.append(share.peaks[0])
            long += share.peaks[1:]
        heads = self._comm.maximum(heads.reshape(-1)).reshape(heads.shape)

        # Stop on all ranks together if they disagree.
        reports = [RankReport.unpack(head[:_REPORT]) for head in heads]
        if not all(is_agreed for _, is_agreed in reports):
            raise UserError.on_all_ranks(
                "the ranks disagree on who takes part: participation.availability must be a pure "
                "function of its arguments; draw random numbers from its seed and t only",
                ranks=self._comm.size,
            )

        # Many clients, a method's own sums and numbers need messages of their own.
        self._tell_numbers(shares)
        told = iter(())
        if long:
            largest = self._comm.maximum(np.concatenate(long))
            told = iter(np.split(largest, np.cumsum([len(part) for part in long])[:-1]))
        found = []
        for head, share, (everybody, _) in zip(heads, shares, reports, strict=True):
            count = len(share.clients)
            first = head[_REPORT : _REPORT + count] if count <= _HEAD - _REPORT else next(told)
            found.append(([first, *(next(told) for _ in share.peaks[1:])], everybody))
        return found

    def _tell_numbers(self, shares: Sequence[Share]) -> None:
        """Collective. Each number has one rank that knows it; the others add zeros, so the sum is exact."""
        parts = [values for share in shares for values in share.numbers.values()]
        if not parts:
            return
        everything = np.concatenate(parts)
        self._comm.sum_in_place(everything)
        rest = iter(np.split(everything, np.cumsum([len(part) for part in parts])[:-1]))
        for share in shares:
            share.numbers = {name: next(rest) for name in share.numbers}
