"""Where a rank computes: a GPU of its node by local rank, or one CPU core.

Invariant: the same client gives the same bits on any rank of the same kind of device; hence one thread
on a CPU and deterministic kernels on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

import torch

from fedmpi.errors import UserError


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device of a rank, made the current one. `wanted` is `run.device`."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" and count == 0:
        raise UserError('config run.device = "cuda": no CUDA device is visible; use "auto" or "cpu"')
    if wanted != "cpu" and count > 0:
        # Several ranks may share a device; launchers may show one device or all of them.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        device = torch.device("cuda", local_rank % count)
        torch.cuda.set_device(device)
        return device
    _keep_freed_memory()
    torch.set_flush_denormal(True)  # gradients below 1e-38 would slow the kernels down many times over
    torch.set_num_threads(1)  # one thread a rank, one rank a core: more would change the bits
    return torch.device("cpu")


def device_name(device: torch.device) -> str:
    """What a person calls the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step instead of giving it back to the system.

    A step of a CNN allocates megabytes that it frees again; getting them anew costs hundreds of page faults
    a step, 5 % of its time. Without glibc nothing happens.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, 1 << 30)
        libc.mallopt(top_pad, 64 << 20)
