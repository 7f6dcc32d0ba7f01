"""The sum of q * update over all participants of a run, the same bits on any number of ranks.

Two collectives for all runs of a pack: the maximum of a few numbers and of each client's update (a third
one for many clients), then the fixed-point sum. Invariant: every rank calls all of them, whatever it
trained; nothing of a run is summed unless the updates of all ranks are finite.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.errors import ClientError, UserError
from fedmpi.models.flat import aligned_rows
from fedmpi.mpi import Comm
from fedmpi.mpi.pinned import Upload
from fedmpi.simulation import exact
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.rank_report import SLOTS, RankReport
from fedmpi.storage.columns import IDLE, REDUCTION

_WAVE_BYTES = 1 << 28
_FEWEST_IN_WAVE, _MOST_IN_WAVE = 16, 4096
_HEAD = 64  # numbers of the first collective: a rank's report, then the values of up to 56 clients
_REPORT = len(SLOTS)

Vector = np.ndarray | Tensor  # float64, one entry for each parameter


class NonFiniteUpdateError(Exception):
    """Some client's update holds inf or nan. Raised on all ranks."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} gave a non-finite update")
        self.client = client


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rank's part in the sums of one run."""

    clients: np.ndarray  # all participants
    weights: np.ndarray
    mine: np.ndarray  # indices of those that this rank trained, in the order of the rows
    rows: dict[str, Tensor]  # "weighted_sum": their updates; and what else is summed, without weights
    peaks: list[np.ndarray]  # the largest magnitude in each row of each, at its client's place
    report: RankReport
    failure: ClientError | None = None


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """What all ranks know after a reduction."""

    sums: dict[str, Vector]  # "weighted_sum", and the method's own sums
    update_max: np.ndarray  # largest magnitude in each client's update
    compute_time: float  # of the slowest rank
    idle_time: float  # waiting for the slowest rank, mean over ranks
    stop: int  # 0, or the reason why a rank wants to stop
    checkpoint: bool  # whether a rank wants one after this round


def wave_size(num_params: int) -> int:
    """How many participants are trained before their updates are summed.

    Updates wait in memory until their common exponent is known; waves bound that memory to 256 MB
    over all ranks (more for models above 4 million parameters). The size depends on the model
    alone, so that the bits do not depend on the number of ranks.

    >>> wave_size(228_586)
    293
    """
    return min(max(_WAVE_BYTES // (4 * num_params), _FEWEST_IN_WAVE), _MOST_IN_WAVE)


class WeightedSum:
    """Buffers for the updates of one rank, and their sums over all ranks, of one run or of all in a pack.

    The vectors that come out are float64 arrays on the host; `stays_on_device`: tensors on the device.
    `on_device`: MPI itself takes GPU buffers.
    """

    def __init__(
        self,
        comm: Comm,
        num_params: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        on_device: bool,
        stays_on_device: bool = False,
    ) -> None:
        self._comm, self._num_params, self._device = comm, num_params, device
        self._on_gpu = device.type == "cuda"
        self._on_device = on_device and self._on_gpu
        self._stays_on_device = stays_on_device and self._on_gpu
        self._updates = torch.empty((0, num_params), dtype=dtype, device=device)
        self._totals = self._empty(0)  # rows of sums, with one extra number each
        self._host: Tensor | None = None  # the same in pinned memory
        self._factors = Upload(torch.float64, device) if self._on_gpu else None

    def buffers(self, count: int) -> Tensor:
        """(count, num_params): one row for each update. Kept and reused."""
        if count > len(self._updates):
            self._updates = aligned_rows(count, self._updates.shape[1], self._updates)
        return self._updates[:count]

    def peaks(self, rows: Sequence[Tensor], counts: Sequence[int], mine: Sequence[np.ndarray]) -> list:
        """For each tensor the largest magnitude in each row, at its client's place; inf for a nan.

        `counts`: how many clients there are; `mine`: places of the rows. Waits for the device.
        """
        if self._on_gpu:
            bounds = [torch.stack(torch.aminmax(part, dim=1)).double() for part in rows if len(part)]
            waited = torch.cat(bounds, dim=1).abs().amax(dim=0).cpu().numpy() if bounds else np.empty(0)
            values = np.split(waited, np.cumsum([len(part) for part in rows])[:-1])
        else:
            values = [exact.magnitudes(part) for part in rows]
        found = []
        for value, count, places in zip(values, counts, mine, strict=True):
            largest = np.zeros(count)
            largest[places] = value
            largest[~np.isfinite(largest)] = np.inf  # a nan would be lost in a maximum over ranks
            found.append(largest)
        return found

    def reduce(self, shares: Sequence[Share], clock: Stopwatch) -> list[Reduced | Exception]:
        """Collective. For each run the sum of q * update over all its clients, and the combined report of
        all ranks; or the error that ends the run, the same on all ranks.
        """
        # First collective: the largest value of each client's update, and every rank's report.
        with clock(IDLE):  # the time until the slowest rank arrives
            agreed = self._agree(shares)

        # Second collective: the sums in fixed point, with exponents that fit all clients.
        with clock(REDUCTION):
            fine = [
                (share, *known) for share, known in zip(shares, agreed, strict=True)
                if not isinstance(known, Exception)
            ]  # fmt: skip
            sums = iter(self._sums(fine))
            return [known if isinstance(known, Exception) else next(sums) for known in agreed]

    def total(self, rows: Tensor, clients: np.ndarray, mine: np.ndarray) -> Vector:
        """Collective. The sum over all `clients` of one vector each, without weights.

        `rows` are those of `clients[mine]`; their precision may be higher than that of the updates.
        """
        (own,) = self.peaks([rows], [len(clients)], [mine])
        peaks = self._comm.maximum(own)
        error = _non_finite(clients, peaks)
        if error:
            raise error
        exponent = exact.common_exponent(float(peaks.max(initial=0)), len(clients))
        return self._sum([(rows, np.ones(len(rows)), exponent, 0)])[0][0]

    def _sums(self, known: Sequence[tuple[Share, list[np.ndarray], RankReport]]) -> list[Reduced]:
        """Collective. All sums of all runs, in one message."""
        # Updates count with their weights, the method's own vectors without. The last entry of the former
        # counts the nanoseconds that all ranks computed.
        terms = []
        for share, peaks, _ in known:
            for place, (rows, peak) in enumerate(zip(share.rows.values(), peaks, strict=True)):
                weights = np.ones(len(share.clients)) if place else share.weights
                exponent = exact.common_exponent(float((weights * peak).max(initial=0)), len(weights))
                spent = 0 if place else int(1e9 * share.report.seconds)
                terms.append((rows, weights[share.mine], exponent, spent))
        vectors = iter(self._sum(terms))

        reduced = []
        for share, peaks, everybody in known:
            own = {name: next(vectors) for name in share.rows}
            computed = own["weighted_sum"][1]
            reduced.append(
                Reduced(
                    sums={name: vector for name, (vector, _) in own.items()},
                    update_max=peaks[0],
                    compute_time=everybody.seconds,
                    idle_time=max(everybody.seconds - 1e-9 * computed / self._comm.size, 0.0),
                    stop=everybody.stop,
                    checkpoint=everybody.wants_checkpoint,
                )
            )
        return reduced

    def _sum(self, terms: Sequence[tuple[Tensor, np.ndarray, int, int]]) -> list[tuple[Vector, int]]:
        """Collective. For each term (rows, weights, exponent, count): the sums over all ranks.

        The weighted sum of the rows, in fixed point, and that of the counts.
        """
        # This rank's part of each sum; the count takes the last entry.
        totals = self._room(len(terms))
        self._contribute(totals, terms)
        for total, (_, _, _, count) in zip(totals, terms, strict=True):
            total[-1:].fill_(count)

        # Sum over ranks, on the device if MPI can, else on the host.
        counts = [count for _, _, _, count in terms]
        if self._comm.size == 1 and (self._stays_on_device or not self._on_gpu):
            summed = totals
        elif self._on_device:
            torch.cuda.synchronize()
            summed = totals
            self._comm.sum_in_place(totals.view(-1))
            counts = totals[:, -1].tolist()
        else:
            summed = self._on_host(totals)
            self._comm.sum_in_place(summed.view(-1).numpy())
            counts = summed[:, -1].tolist()

        # As numbers, where they are used.
        if self._stays_on_device and summed is not totals:
            summed = totals.copy_(summed, non_blocking=True)
        vectors = [
            exact.to_float(total[:-1], exponent)
            for total, (_, _, exponent, _) in zip(summed, terms, strict=True)
        ]
        return [
            (vector if self._stays_on_device else vector.cpu().numpy(), count)
            for vector, count in zip(vectors, counts, strict=True)
        ]

    def _contribute(self, totals: Tensor, terms: Sequence[tuple[Tensor, np.ndarray, int, int]]) -> None:
        """Add this rank's rows to the totals, which are zero."""
        if not self._on_gpu:
            for total, (rows, weights, exponent, _) in zip(totals, terms, strict=True):
                exact.add_contributions(total[:-1], rows, weights.tolist(), exponent)
            return

        # On a GPU all rows of a sum at once, with weights that are sent in one copy.
        weights = self._factors.put(np.concatenate([part for _, part, _, _ in terms]))
        parts = weights.split([len(part) for _, part, _, _ in terms])
        for total, (rows, _, exponent, _), factors in zip(totals, terms, parts, strict=True):
            exact.add_all(total[:-1], rows, factors, exponent)

    def _empty(self, count: int) -> Tensor:
        return torch.empty((count, self._num_params + 1), dtype=torch.int64, device=self._device)

    def _room(self, count: int) -> Tensor:
        """Sums, zero. Kept and reused."""
        if len(self._totals) < count:
            self._totals = self._empty(count)
        return self._totals[:count].zero_()

    def _on_host(self, totals: Tensor) -> Tensor:
        """The sums in host memory; waits for the device once."""
        if not self._on_gpu:
            return totals
        if self._host is None or len(self._host) < len(totals):
            self._host = torch.empty(totals.shape, dtype=torch.int64, pin_memory=True)
        host = self._host[: len(totals)]
        host.copy_(totals, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return host

    def _agree(self, shares: Sequence[Share]) -> list[tuple[list[np.ndarray], RankReport] | Exception]:
        """Collective. For each run its clients' largest magnitudes and the combined report of all ranks.

        Or the error that ends the run.
        """
        # One rank knows all; several tell each other.
        if self._comm.size == 1:
            reports = [(share.peaks, share.report) for share in shares]
        else:
            reports = self._tell(shares)

        # A failure of any rank ends its run on all, and so does an infinite update.
        agreed: list[tuple[list[np.ndarray], RankReport] | Exception] = []
        for share, (peaks, everybody) in zip(shares, reports, strict=True):
            error = self._comm.shared_failure(share.failure) if everybody.failed else None
            weighted = [share.weights * peaks[0], *peaks[1:]]
            for values in weighted if error is None else ():
                error = error or _non_finite(share.clients, values)
            agreed.append(error or (peaks, everybody))
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

        # Many clients, and a method's own sums, need a message of their own.
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


def _non_finite(clients: np.ndarray, peaks: np.ndarray) -> NonFiniteUpdateError | None:
    """The error, the same on all ranks, if some client's row holds inf or nan."""
    if np.isfinite(peaks).all():
        return None
    return NonFiniteUpdateError(int(clients[~np.isfinite(peaks)][0]))
