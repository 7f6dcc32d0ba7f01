"""The sum of q * update over all participants, the same bits on any number of ranks.

Two collectives: the maximum of a few numbers and of each client's update (a third one for many clients),
then the fixed-point sum. Invariant: every rank calls all of them, whatever it trained; nothing is summed
unless the updates of all ranks are finite.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.errors import ClientError, UserError
from fedmpi.models.flat import aligned_rows
from fedmpi.mpi import Comm
from fedmpi.simulation import exact
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.rank_report import SLOTS, RankReport
from fedmpi.storage.columns import IDLE, REDUCTION

_WAVE_BYTES = 1 << 28
_FEWEST_IN_WAVE, _MOST_IN_WAVE = 16, 4096
_HEAD = 64  # numbers of the first collective: a rank's report, then the values of up to 56 clients
_REPORT = len(SLOTS)


class NonFiniteUpdateError(Exception):
    """Some client's update holds inf or nan. Raised on all ranks."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} gave a non-finite update")
        self.client = client


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """What all ranks know after a reduction."""

    sums: dict[str, np.ndarray]  # "weighted_sum", and the method's own sums
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
    """Buffers for the updates of one rank, and their sum over all ranks."""

    def __init__(
        self,
        comm: Comm,
        num_params: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        on_device: bool,
    ) -> None:
        self._comm = comm
        self._on_device = on_device and device.type == "cuda"
        self._updates = torch.empty((0, num_params), dtype=dtype, device=device)
        # A sum over ranks for each parameter, and one extra number.
        self._total = torch.zeros(num_params + 1, dtype=torch.int64, device=device)

    def buffers(self, count: int) -> Tensor:
        """(count, num_params): one row for each update. Kept and reused."""
        if count > len(self._updates):
            self._updates = aligned_rows(count, self._updates.shape[1], self._updates)
        return self._updates[:count]

    def reduce(
        self,
        clients: np.ndarray,
        weights: np.ndarray,
        mine: np.ndarray,
        report: RankReport,
        clock: Stopwatch,
        failure: ClientError | None = None,
    ) -> Reduced:
        """Collective. The sum of q * update over all `clients`, and the combined report of all ranks.

        The buffers hold the updates of `clients[mine]`, in that order; `mine` are indices. A `failure`
        of any rank during training is raised on all ranks.
        """
        # The largest value of each update that this rank trained.
        updates, own_weights = self._updates[: len(mine)], weights[mine].tolist()
        with clock(REDUCTION):
            peaks = _peaks(updates, len(clients), mine)

        # First collective: the largest value of each client's update, and every rank's report.
        with clock(IDLE):  # the time until the slowest rank arrives
            peaks, everybody = self._agree(clients, weights, peaks, report, failure)

        # Second collective: the sum in fixed point, with an exponent that fits all updates.
        with clock(REDUCTION):
            exponent = exact.common_exponent(float((weights * peaks).max(initial=0)), len(clients))
            # The last entry counts the nanoseconds that all ranks computed.
            total, computed = self._sum(updates, own_weights, exponent, int(1e9 * report.seconds))
            idle = everybody.seconds - 1e-9 * computed / self._comm.size

        return Reduced(
            sums={"weighted_sum": total},
            update_max=peaks,
            compute_time=everybody.seconds,
            idle_time=max(idle, 0.0),
            stop=everybody.stop,
            checkpoint=everybody.wants_checkpoint,
        )

    def total(self, rows: Tensor, clients: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """Collective. The sum over all `clients` of one vector each, without weights.

        `rows` are those of `clients[mine]`; their precision may be higher than that of the updates.
        """
        peaks = self._comm.maximum(_peaks(rows, len(clients), mine))
        if not np.isfinite(peaks).all():
            raise NonFiniteUpdateError(int(clients[~np.isfinite(peaks)][0]))
        exponent = exact.common_exponent(float(peaks.max(initial=0)), len(clients))
        return self._sum(rows, [1.0] * len(rows), exponent)[0]

    def _sum(
        self, rows: Tensor, weights: list[float], exponent: int, count: int = 0
    ) -> tuple[np.ndarray, int]:
        """Collective. The weighted sum of all ranks' rows in fixed point; and the sum of their counts."""
        # This rank's part of the sum; the count takes the last entry.
        self._total.zero_()
        self._total[-1] = count
        exact.add_contributions(self._total[:-1], rows, weights, exponent)

        # Sum over ranks, on the device if MPI can, else on the host.
        total = self._total if self._on_device else self._total.cpu()  # waits for the device
        if self._on_device:
            torch.cuda.synchronize()
        self._comm.sum_in_place(total if self._on_device else total.numpy())
        return exact.to_float(total[:-1], exponent).cpu().numpy(), int(total[-1])

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
        if not np.isfinite(weights * peaks).all():
            raise NonFiniteUpdateError(int(clients[~np.isfinite(weights * peaks)][0]))
        return peaks, everybody


def _peaks(rows: Tensor, count: int, mine: np.ndarray) -> np.ndarray:
    """The largest magnitude of each row, at its client's place among `count`; inf for a nan."""
    peaks = np.zeros(count)
    if len(rows):
        # Row by row, to avoid a copy of all rows.
        bounds = torch.stack([torch.stack(torch.aminmax(row)) for row in rows])
        peaks[mine] = bounds.abs().amax(dim=1).double().cpu().numpy()
    peaks[~np.isfinite(peaks)] = np.inf  # a nan would be lost in a maximum over ranks
    return peaks
