"""Memory for copies between host and GPU that neither side waits for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def host_bytes(count: int, device: torch.device) -> Tensor:
    """Memory for a message of MPI, from and to which a GPU copies without a wait."""
    return torch.empty(count, dtype=torch.uint8, pin_memory=device.type == "cuda")


class Upload:
    """A growing buffer on the device, and its twin in pinned memory, from which it is filled."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._host = torch.empty(0, dtype=dtype)
        self._there = torch.empty(0, dtype=dtype, device=device)
        self._sent: torch.cuda.Event | None = (
            None  # the last copy; its source must not change before it ends
        )

    def put(self, values: np.ndarray) -> Tensor:
        """A flat array on the device, valid until the next call."""
        count = values.size
        if count == 0:
            return self._there[:0]

        # Room for it, and an end of the copy before.
        if self._sent is not None and not self._sent.query():
            self._sent.synchronize()
        if count > len(self._host):
            self._host = torch.empty(count, dtype=self._dtype, pin_memory=True)
            self._there = torch.empty(count, dtype=self._dtype, device=self._device)

        # Through pinned memory, so that the host does not wait.
        self._host[:count].copy_(torch.from_numpy(values.reshape(-1)))
        self._there[:count].copy_(self._host[:count], non_blocking=True)
        self._sent = torch.cuda.Event()
        self._sent.record()
        return self._there[:count]
