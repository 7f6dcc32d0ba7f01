"""Sums of updates that lie on a GPU: over this rank's clients there, over ranks on the host or there.

The same integers as on a CPU (aggregate.py), hence the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmpi.mpi import Comm
from fedmpi.mpi.pinned import Upload
from fedmpi.simulation import exact
from fedmpi.simulation.aggregate import Term, WeightedSum
from fedmpi.simulation.shares import Vector


class GpuWeightedSum(WeightedSum):
    """As on a CPU; what comes out are arrays on the host, or tensors on the device."""

    def __init__(
        self,
        comm: Comm,
        num_params: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        takes_buffers: bool,
        stays: bool,
    ) -> None:
        """`takes_buffers`: MPI itself takes GPU buffers; `stays`: results stay on the device."""
        super().__init__(comm, num_params, dtype, device)
        self._takes_buffers, self._stays = takes_buffers, stays
        self._needs_no_messages = False
        self._there = self._empty(0)
        self._host: Tensor | None = None  # the same in pinned memory
        self._sent = Upload(torch.float64, device)

    def magnitudes(self, rows: Sequence[Tensor]) -> list[np.ndarray]:
        """Waits once for all of them."""
        bounds = [torch.stack(torch.aminmax(part, dim=1)).double() for part in rows if len(part)]
        values = torch.cat(bounds, dim=1).abs().amax(dim=0).cpu().numpy() if bounds else np.empty(0)
        return np.split(values, np.cumsum([len(part) for part in rows])[:-1])

    def _add_up(self, terms: Sequence[Term]) -> list[tuple[Vector, int]]:
        # This rank's part: all rows of a sum at once, with weights that are sent in one copy.
        totals = self.room(len(terms)).zero_()
        sent = self._sent.put(np.concatenate([term.weights for term in terms]))
        parts = sent.split([len(term.weights) for term in terms])
        for total, term, weights in zip(totals, terms, parts, strict=True):
            exact.add_all(total[:-1], term.rows, weights, term.exponent)
            total[-1:].fill_(term.count)

        # All ranks together; then as numbers, where they are used.
        summed = self.sum_over_ranks(totals)
        if summed is totals and not self._takes_buffers:  # of one rank alone: known, without a wait
            counts = [term.count for term in terms]
        else:
            counts = summed[:, -1].tolist()
        if self._stays and summed is not totals:
            summed = totals.copy_(summed, non_blocking=True)
        vectors = [exact.to_float(total[:-1], t.exponent) for total, t in zip(summed, terms, strict=True)]
        return [(self.delivered(v), c) for v, c in zip(vectors, counts, strict=True)]

    def sum_over_ranks(self, rows: Tensor) -> Tensor:
        """On the device if MPI can, else on the host."""
        if self._comm.size == 1 and self._stays:
            return rows
        if self._takes_buffers:
            torch.cuda.synchronize()
            self._comm.sum_in_place(rows.view(-1))
            return rows
        host = self._on_host(rows)
        self._comm.sum_in_place(host.view(-1).numpy())
        return host

    def delivered(self, vector: Tensor) -> Vector:
        """On the device or on the host."""
        return vector.to(self._device, non_blocking=True) if self._stays else vector.cpu().numpy()

    def room(self, count: int) -> Tensor:
        """On the device."""
        if len(self._there) < count:
            self._there = self._empty(count)
        return self._there[:count]

    def _empty(self, count: int) -> Tensor:
        return torch.empty((count, self._num_params + 1), dtype=torch.int64, device=self._device)

    def _on_host(self, totals: Tensor) -> Tensor:
        """The sums in host memory; waits for the device once."""
        if self._host is None or len(self._host) < len(totals):
            self._host = torch.empty(totals.shape, dtype=torch.int64, pin_memory=True)
        host = self._host[: len(totals)]
        host.copy_(totals, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return host


def make_sum(
    comm: Comm,
    num_params: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    takes_buffers: bool = False,
    stays: bool = False,
) -> WeightedSum:
    """The sum for a device."""
    if device.type == "cpu":
        return WeightedSum(comm, num_params, dtype, device)
    return GpuWeightedSum(comm, num_params, dtype, device, takes_buffers=takes_buffers, stays=stays)
