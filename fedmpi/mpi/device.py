"""Where a rank computes: a GPU of its node by local rank, or one CPU core.

Invariant: the same client gives the same bits on any rank of the same kind of device; hence a fixed number
of threads on a CPU and deterministic kernels on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedmpi.errors import UserError

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm

_SHOWN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_GIVEN_BY_SLURM = (
    *("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"),
    *("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS"),  # as the job asked for them
)
_INSTALL = "install a CUDA build of torch (AMD: a ROCm build) that fits the driver"
_MPS_PIPES = Path("/tmp/nvidia-mps")


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
        said = ", ".join(f"{name}={os.environ[name]}" for name in _SHOWN if name in os.environ)
        raise UserError(
            f'config run.device = "cuda": no CUDA device is visible{said and f" ({said})"}; use "auto" or '
            '"cpu", ask SLURM for --gpus-per-node, and check that torch is a CUDA build'
        )
    return "cpu" if wanted == "cpu" or gpus == 0 else f"cuda:{local_rank % gpus}"


def refuse_wasted_gpus(wanted: str, gpus: int) -> None:
    """GPUs that SLURM gave and torch does not see would stand idle, and be paid for, for the whole job.

    Not every site's SLURM tells a task of its GPUs otherwise than by what the driver's library reads.
    """
    given = _in_environment(_GIVEN_BY_SLURM)
    if not given and "SLURM_JOB_ID" in os.environ:
        given = _in_environment(_SHOWN)
    if wanted == "auto" and gpus == 0 and given:
        raise UserError(
            f'config run.device = "auto": SLURM gave GPUs ({given}), but torch {torch.__version__} sees '
            f'none; {_INSTALL}, ask SLURM for no GPUs, or use run.device = "cpu"'
        )


def missed_gpus(wanted: str, gpus: int) -> str:
    """A note for a rank that was given GPUs which torch does not see; empty otherwise."""
    shown = _in_environment(_SHOWN)
    if wanted != "auto" or gpus or not shown:
        return ""
    return f"{shown}, but torch {torch.__version__} sees no GPU: computing on the CPU; {_INSTALL}"


def _in_environment(names: tuple[str, ...]) -> str:
    """The variables among `names` that tell of GPUs, as `NAME=VALUE`; empty if none does."""
    told = {name: os.environ.get(name, "") for name in names}
    return ", ".join(
        f"{name}={value}"
        for name, value in told.items()
        if value
        and not value.startswith(("-1", "NoDevFiles"))
        and not (name.startswith("SLURM_GPUS") and value == "0")
    )


def choose_device(
    wanted: str, local_rank: int, threads: int = 1, *, deterministic: bool = True, tf32: bool = False
) -> torch.device:
    """The device of a rank, set as current.

    The arguments are `run.device` and, after the rank on the node, `run.threads`, `run.deterministic` and
    `run.tf32`; the last two have an effect on a GPU only.
    """
    gpus = visible_gpus()
    refuse_wasted_gpus(wanted, gpus)
    device = torch.device(place(wanted, local_rank, gpus))

    # The host, also of a GPU: memory, tiny numbers and threads.
    _keep_freed_memory()
    torch.set_flush_denormal(True)  # gradients below 1e-38 would slow the kernels down many times over
    torch.set_num_threads(threads)  # one per rank and core is best; the number changes the bits

    # GPU: by default deterministic kernels in full precision.
    if device.type == "cuda":
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False
        for owner, name, off, on in _precision_controls():
            setattr(owner, name, on if tf32 else off)
        torch.cuda.set_device(device)
        _require_working_products(device)
    return device


def _precision_controls() -> list[tuple[Any, str, Any, Any]]:
    """Where torch keeps whether TF32 is allowed: owner, name, and the values for no and yes.

    There are an old and a new way, and torch refuses to answer by the old one what was set by the new.
    """
    backends = torch.backends
    try:
        controls = [(owner, "allow_tf32", False, True) for owner in (backends.cuda.matmul, backends.cudnn)]
        for owner, name, *_ in controls:
            getattr(owner, name)
    except RuntimeError:
        owners = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
        controls = [(owner, "fp32_precision", "ieee", "tf32") for owner in owners]
    return controls


def _require_working_products(device: torch.device) -> None:
    """Refuse to go on where cuBLAS was started without the setting that makes it deterministic."""
    if not torch.backends.cuda.is_built():  # a simulated GPU
        return
    try:
        torch.mm(*torch.zeros((2, 1, 1), device=device))
    except RuntimeError as error:
        if "CUBLAS_WORKSPACE_CONFIG" not in str(error):
            raise
        raise UserError(
            "matrix products on this GPU are not deterministic: the process computed one before "
            "CUBLAS_WORKSPACE_CONFIG was :4096:8 or :16:8; set it before Python starts, or use "
            "run.deterministic = false"
        ) from None


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Leave torch as it was, whatever `choose_device` sets in between."""
    backends, utils = torch.backends, torch.utils.deterministic
    threads, flushes = torch.get_num_threads(), _flushes_tiny_numbers()
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = utils.fill_uninitialized_memory
    benchmark = backends.cudnn.benchmark
    precisions = [(owner, name, getattr(owner, name)) for owner, name, *_ in _precision_controls()]
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushes)
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)
        utils.fill_uninitialized_memory = fills
        backends.cudnn.benchmark = benchmark
        for owner, name, value in precisions:
            setattr(owner, name, value)
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


def ranks_sharing(comm: Comm, device: torch.device) -> int:
    """Collective. How many ranks share the memory that this rank computes in, itself included.

    That is its GPU's memory, or its node's. Ranks of the job outside a group count too, as far as this rank
    can know: of GPUs only where a rank sees several.
    """
    own = comm.host, gpu_id(device) or str(device)
    everybody = comm.gather_on_all(own)
    if device.type != "cuda":
        return comm.node_ranks
    gpus = visible_gpus()
    by_turns = len(range(comm.device_rank % gpus, comm.node_ranks, gpus)) if gpus > 1 else 1
    return max(everybody.count(own), by_turns)


def takes_turns(device: torch.device) -> bool:
    """Whether ranks that share this GPU would wait for each other: an NVIDIA GPU without MPS."""
    has_mps = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or _MPS_PIPES.exists()
    return device.type == "cuda" and torch.version.hip is None and not has_mps


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
