"""Where a rank computes: a GPU of its node by local rank, or one CPU core.

Invariant: the same client gives the same bits on any rank of the same kind of device; hence a fixed number
of threads on a CPU and deterministic kernels on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import torch

from fedmpi.errors import UserError


def visible_gpus() -> int:
    """GPUs that this process may use; CUDA_VISIBLE_DEVICES and SLURM decide."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def place(wanted: str, local_rank: int, gpus: int) -> str:
    """Where a rank of a node computes, as torch names it. `wanted` is `run.device`.

    Several ranks may share a GPU; launchers may show a rank one GPU or all of the node's.

    >>> [place("auto", rank, 2) for rank in range(3)], place("auto", 1, 0), place("cpu", 1, 2)
    (['cuda:0', 'cuda:1', 'cuda:0'], 'cpu', 'cpu')
    """
    if wanted == "cuda" and gpus == 0:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        said = "" if shown is None else f" (CUDA_VISIBLE_DEVICES={shown})"
        raise UserError(
            f'config run.device = "cuda": no CUDA device is visible{said}; use "auto" or "cpu", ask '
            "SLURM for --gpus-per-node, and check that torch is a CUDA build"
        )
    return "cpu" if wanted == "cpu" or gpus == 0 else f"cuda:{local_rank % gpus}"


def missed_gpus(wanted: str, gpus: int) -> str:
    """A note for a rank that was given GPUs which torch does not see; empty otherwise."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if wanted != "auto" or gpus or not shown or shown.startswith(("-1", "NoDevFiles")):
        return ""
    return (
        f"CUDA_VISIBLE_DEVICES={shown}, but torch {torch.__version__} sees no GPU: computing on the CPU; "
        "install a CUDA build of torch"
    )


def choose_device(wanted: str, local_rank: int, threads: int = 1) -> torch.device:
    """The device of a rank, set as current. `wanted` is `run.device`, `threads` is `run.threads`."""
    device = torch.device(place(wanted, local_rank, visible_gpus()))

    # GPU: deterministic kernels in full precision.
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.cuda.set_device(device)
        return device

    # CPU: memory, tiny numbers and threads.
    _keep_freed_memory()
    torch.set_flush_denormal(True)  # gradients below 1e-38 would slow the kernels down many times over
    torch.set_num_threads(threads)  # one per rank and core is best; the number changes the bits
    return device


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Leave torch as it was, whatever `choose_device` sets in between."""
    backends, utils = torch.backends, torch.utils.deterministic
    threads, flushes = torch.get_num_threads(), _flushes_tiny_numbers()
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = utils.fill_uninitialized_memory
    benchmark, tf32 = backends.cudnn.benchmark, backends.cudnn.allow_tf32
    matmul_tf32 = backends.cuda.matmul.allow_tf32
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushes)
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)
        utils.fill_uninitialized_memory = fills
        backends.cudnn.benchmark, backends.cudnn.allow_tf32 = benchmark, tf32
        backends.cuda.matmul.allow_tf32 = matmul_tf32
        if device is not None:
            torch.cuda.set_device(device)


def _flushes_tiny_numbers() -> bool:
    """Whether numbers too small for full precision become zero; torch sets it, but does not tell."""
    return float(torch.tensor(3e-308, dtype=torch.float64) / 4) == 0


def device_name(device: torch.device) -> str:
    """The name of the device, for display."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def gpu_id(device: torch.device) -> str:
    """Identifies a GPU on its node, whatever devices the launcher shows to a rank; empty for a CPU."""
    if device.type != "cuda":
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))[:8]


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step instead of giving it back to the system.

    A step of a CNN allocates megabytes that it frees again; allocating them again costs hundreds of page
    faults a step, 5 % of its time. Does nothing without glibc.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, 1 << 30)
        libc.mallopt(top_pad, 64 << 20)
