"""The sum of q * update over all participants, the same bits on any number of ranks.

Two collectives: the maximum of a few numbers and of each client's update (a third one for many clients),
then the fixed-point sum. Invariant: every rank calls all of them, whatever it trained; nothing is summed
unless the updates of all ranks are finite.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
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
    """Buffers for the updates of one rank, and their sum over all ranks.

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
        self._totals: list[Tensor] = []  # a sum for each parameter, and one extra number
        self._hosts: list[Tensor] = []  # the same in pinned memory
        self._factors = Upload(torch.float64, device) if self._on_gpu else None

    def buffers(self, count: int) -> Tensor:
        """(count, num_params): one row for each update. Kept and reused."""
        if count > len(self._updates):
            self._updates = aligned_rows(count, self._updates.shape[1], self._updates)
        return self._updates[:count]

    def peaks(self, rows: Sequence[Tensor], count: int, mine: np.ndarray) -> np.ndarray:
        """(tensors, count): the largest magnitude in each row, at its client's place; inf for a nan.

        Waits for the device.
        """
        found = np.zeros((len(rows), count))
        if len(mine) and self._on_gpu:
            bounds = torch.stack([torch.stack(torch.aminmax(part, dim=1)).double() for part in rows])
            found[:, mine] = bounds.abs().amax(dim=1).cpu().numpy()
        elif len(mine):
            for largest, part in zip(found, rows, strict=True):
                largest[mine] = exact.magnitudes(part)
        found[~np.isfinite(found)] = np.inf  # a nan would be lost in a maximum over ranks
        return found

    def reduce(
        self,
        clients: np.ndarray,
        weights: np.ndarray,
        mine: np.ndarray,
        report: RankReport,
        clock: Stopwatch,
        failure: ClientError | None = None,
        others: Mapping[str, Tensor] | None = None,
        peaks: np.ndarray | None = None,
    ) -> Reduced:
        """Collective. The sum of q * update over all `clients`, and the combined report of all ranks.

        The buffers hold the updates of `clients[mine]`, in that order; `mine` are indices. `others` are
        more rows of these clients, to be summed without weights. `peaks`: those of both, if known. A
        `failure` of any rank during training is raised on all ranks.
        """
        # The largest value of each row of this rank.
        rows = [self._updates[: len(mine)], *(others or {}).values()]
        if peaks is None:
            with clock(REDUCTION):
                peaks = self.peaks(rows, len(clients), mine)

        # First collective: the largest value of each client's update, and every rank's report.
        with clock(IDLE):  # the time until the slowest rank arrives
            peaks[0], everybody = self._agree(clients, weights, peaks[0], report, failure)
            if others:
                peaks[1:] = self._comm.maximum(np.ascontiguousarray(peaks[1:]))
                _refuse_non_finite(clients, peaks[1:].max(axis=0))

        # Second collective: the sums in fixed point, with exponents that fit all clients.
        with clock(REDUCTION):
            largest = [(weights * peaks[0]).max(initial=0), *(p.max(initial=0) for p in peaks[1:])]
            exponents = [exact.common_exponent(float(value), len(clients)) for value in largest]
            own = [weights[mine], *[np.ones(len(mine))] * (len(rows) - 1)]
            # The last entry counts the nanoseconds that all ranks computed.
            vectors, computed = self._sum(rows, own, exponents, int(1e9 * report.seconds))
            idle = everybody.seconds - 1e-9 * computed / self._comm.size

        return Reduced(
            sums=dict(zip(["weighted_sum", *(others or {})], vectors, strict=True)),
            update_max=peaks[0],
            compute_time=everybody.seconds,
            idle_time=max(idle, 0.0),
            stop=everybody.stop,
            checkpoint=everybody.wants_checkpoint,
        )

    def total(self, rows: Tensor, clients: np.ndarray, mine: np.ndarray) -> Vector:
        """Collective. The sum over all `clients` of one vector each, without weights.

        `rows` are those of `clients[mine]`; their precision may be higher than that of the updates.
        """
        peaks = self._comm.maximum(self.peaks([rows], len(clients), mine)[0])
        _refuse_non_finite(clients, peaks)
        exponent = exact.common_exponent(float(peaks.max(initial=0)), len(clients))
        return self._sum([rows], [np.ones(len(rows))], [exponent])[0][0]

    def _sum(
        self,
        rows: Sequence[Tensor],
        weights: Sequence[np.ndarray],
        exponents: Sequence[int],
        count: int = 0,
    ) -> tuple[list[Vector], int]:
        """Collective. The weighted sums of all ranks' rows in fixed point; and the sum of their counts."""
        # This rank's part of each sum; the count takes the last entry of the first.
        totals = self._room(len(rows))
        self._contribute(totals, rows, weights, exponents)
        totals[0][-1:].fill_(count)

        # Sum over ranks, on the device if MPI can, else on the host.
        if self._comm.size == 1 and self._stays_on_device:
            summed = totals
        elif self._on_device:
            torch.cuda.synchronize()
            summed = totals
            for total in totals:
                self._comm.sum_in_place(total)
            count = int(totals[0][-1])
        else:
            summed = self._on_host(totals)
            for total in summed:
                self._comm.sum_in_place(total.numpy())
            count = int(summed[0][-1])

        # As numbers, where they are used.
        if self._stays_on_device and summed is not totals:
            for total, host in zip(totals, summed, strict=True):
                total.copy_(host, non_blocking=True)
            summed = totals
        vectors = [exact.to_float(t[:-1], e) for t, e in zip(summed, exponents, strict=True)]
        return [v if self._stays_on_device else v.cpu().numpy() for v in vectors], count

    def _contribute(
        self,
        totals: Sequence[Tensor],
        rows: Sequence[Tensor],
        weights: Sequence[np.ndarray],
        exponents: Sequence[int],
    ) -> None:
        """Add this rank's rows to the totals, which are zero."""
        # On a GPU all rows at once, with factors that are sent in one copy.
        if self._on_gpu:
            factors = np.concatenate([np.ldexp(w, e) for w, e in zip(weights, exponents, strict=True)])
            if np.isfinite(factors).all():
                parts = self._factors.put(factors).split([len(part) for part in rows])
                for total, part, factor in zip(totals, rows, parts, strict=True):
                    exact.add_all(total[:-1], part, factor)
                return

        # Otherwise row by row.
        for total, part, weight, exponent in zip(totals, rows, weights, exponents, strict=True):
            exact.add_contributions(total[:-1], part, weight.tolist(), exponent)

    def _room(self, count: int) -> list[Tensor]:
        """Sums, zero. Kept and reused."""
        while len(self._totals) < count:
            self._totals.append(torch.zeros(self._num_params + 1, dtype=torch.int64, device=self._device))
        for total in self._totals[:count]:
            total.zero_()
        return self._totals[:count]

    def _on_host(self, totals: Sequence[Tensor]) -> list[Tensor]:
        """The sums in host memory; waits for the device once."""
        if not self._on_gpu:
            return list(totals)
        while len(self._hosts) < len(totals):
            self._hosts.append(torch.empty(self._num_params + 1, dtype=torch.int64, pin_memory=True))
        hosts = self._hosts[: len(totals)]
        for total, host in zip(totals, hosts, strict=True):
            host.copy_(total, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return hosts

    def _agree(
        self,
        clients: np.ndarray,
        weights: np.ndarray,
        peaks: np.ndarray,
        report: RankReport,
        failure: ClientError | None,
    ) -> tuple[np.ndarray, RankReport]:
        """Collective. Every client's largest |update|, and the combined report of all ranks.

        A failure on any rank is raised on all ranks.
        """
        # One rank knows all.
        if self._comm.size == 1:
            if failure:
                self._comm.fail_together(failure)
            _refuse_non_finite(clients, weights * peaks)
            return peaks, report

        # Report, plan and the values of a few clients in one message.
        plan, count = zlib.crc32(clients.tobytes() + weights.tobytes()), len(clients)
        # The length is fixed, so that ranks which disagree on the participants can still compare.
        head = np.zeros(_HEAD)
        head[:_REPORT] = report.pack(plan, count)
        fits = count <= _HEAD - _REPORT
        if fits:
            head[_REPORT : _REPORT + count] = peaks
        shared = self._comm.maximum(head)

        # Stop on all ranks together if they disagree or one of them failed.
        everybody, is_agreed = RankReport.unpack(shared[:_REPORT])
        if not is_agreed:
            raise UserError.on_all_ranks(
                "the ranks disagree on who takes part: participation.availability must be a pure "
                "function of its arguments; draw random numbers from its seed and t only",
                ranks=self._comm.size,
            )
        if everybody.failed:
            self._comm.fail_together(failure)

        # Many clients need a message of their own; no update may be infinite.
        peaks = shared[_REPORT : _REPORT + count] if fits else self._comm.maximum(peaks)
        _refuse_non_finite(clients, weights * peaks)
        return peaks, everybody


def _refuse_non_finite(clients: np.ndarray, peaks: np.ndarray) -> None:
    """Raise the same error on all ranks if some client's row holds inf or nan."""
    if not np.isfinite(peaks).all():
        raise NonFiniteUpdateError(int(clients[~np.isfinite(peaks)][0]))
