"""The sum of q * update over all participants, the same bits on any number of ranks.

Two collectives: a few numbers and each client's largest value by MAX (a third one where clients are many),
then the fixed-point sum. Invariant: all are called by every rank, whatever it trained; and nothing is
summed unless all updates of all ranks are finite.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi import exact
from fedmpi.errors import UserError
from fedmpi.mpi import Comm
from fedmpi.params import aligned_rows
from fedmpi.timing import Stopwatch

_WAVE_BYTES = 1 << 28
_FEWEST, _MOST = 16, 4096
_HEAD = 64  # numbers of the first collective: six of its own, then the values of up to 58 clients


class NonFiniteUpdateError(Exception):
    """Some client's update holds inf or nan. Raised on all ranks alike."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} gave a non-finite update")
        self.client = client


@dataclass(frozen=True)
class Reduced:
    """What all ranks know after a reduction."""

    weighted_sum: np.ndarray
    update_max: np.ndarray  # largest magnitude in each client's update
    compute_time: float  # of the slowest rank
    idle_time: float  # waiting for the slowest rank, mean over ranks
    stop: int  # 0, or why a rank wants to stop


def wave_size(num_params: int) -> int:
    """How many participants are trained before their updates are summed.

    Updates wait in memory until their common exponent is known; waves bound that memory to 256 MB
    over all ranks (more for models above 4 million parameters). A function of the model
    alone: the bits must not depend on the ranks.

    >>> wave_size(228_586)
    293
    """
    return min(max(_WAVE_BYTES // (4 * num_params), _FEWEST), _MOST)


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
        # The sum of all parameters, and in its last entry the nanoseconds that all ranks computed.
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
        compute_time: float,
        stop: int,
        clock: Stopwatch,
    ) -> Reduced:
        """Collective. The sum of q * update over all `clients`, and what else the ranks share.

        The buffers hold the updates of `clients[mine]`, in that order; `mine` are indices.
        """
        updates, own_weights = self._updates[: len(mine)], weights[mine].tolist()
        with clock("idle"):  # the time until the slowest rank arrives
            peaks, slowest, stop = self._agree(clients, weights, mine, updates, compute_time, stop)
        with clock("reduction"):
            exponent = exact.common_exponent(float((weights * peaks).max(initial=0)), len(clients))
            self._total.zero_()
            self._total[-1] = int(1e9 * compute_time)
            exact.add_contributions(self._total[:-1], updates, own_weights, exponent)
            total = self._total if self._on_device else self._total.cpu()  # waits for the device
            if self._on_device:
                torch.cuda.synchronize()
            self._comm.sum_in_place(total if self._on_device else total.numpy())
            idle = slowest - 1e-9 * int(total[-1]) / self._comm.size
            weighted_sum = exact.to_float(total[:-1], exponent).cpu().numpy()
            return Reduced(weighted_sum, peaks, slowest, max(idle, 0.0), stop)

    def _agree(
        self,
        clients: np.ndarray,
        weights: np.ndarray,
        mine: np.ndarray,
        updates: Tensor,
        compute_time: float,
        stop: int,
    ) -> tuple[np.ndarray, float, int]:
        """Collective. Every client's largest |update|, the slowest rank's time, a reason to stop or 0.

        Trouble on any rank is raised on all.
        """
        plan, count = zlib.crc32(clients.tobytes() + weights.tobytes()), len(clients)
        peaks = np.zeros(count)
        if len(updates):
            peaks[mine] = updates.abs().amax(dim=1).double().cpu().numpy()
        peaks[~np.isfinite(peaks)] = np.inf  # a nan would be lost in the maximum
        # Of fixed length, so that even ranks that disagree on who takes part can compare notes.
        head = np.zeros(_HEAD)
        head[:6] = plan, -plan, count, -count, compute_time, stop
        fits = count <= _HEAD - 6
        if fits:
            head[6 : 6 + count] = peaks
        shared = self._comm.maximum(head)
        if shared[0] != -shared[1] or shared[2] != -shared[3]:
            raise UserError.on_all_ranks(
                "the ranks disagree on who takes part: participation.availability must be a pure "
                "function of its arguments; draw random numbers from its seed and t only"
            )
        peaks = shared[6 : 6 + count] if fits else self._comm.maximum(peaks)
        if not np.isfinite(weights * peaks).all():
            raise NonFiniteUpdateError(int(clients[~np.isfinite(weights * peaks)][0]))
        return peaks, float(shared[4]), int(shared[5])
