"""Whether MPI can take pointers to GPU memory: `run.cuda_aware` must not end in a segmentation fault.

Invariant: nothing is sent; the MPI library that mpi4py loaded is asked, else the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

import torch

from fedmpi.errors import UserError
from fedmpi.mpi.comm import import_mpi

_CUDA, _HIP = 0, 2  # MPIX_GPU_SUPPORT_* of MPICH's mpi.h


def cuda_aware_mpi() -> bool | None:
    """Whether MPI takes pointers to GPU memory; None if neither the library nor the environment tells."""
    mpi = import_mpi()

    # Cray's MPICH has the code, but uses it only if the environment says so.
    library = mpi.Get_library_version()
    if "CRAY" in library.upper():
        return os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1"

    # Functions of the library that mpi4py is linked with, or has loaded for the whole process.
    for path in (mpi.__file__, None):
        with contextlib.suppress(OSError):
            answer = _ask(ctypes.CDLL(path))
            if answer is not None:
                return answer

    # Older versions of MPICH have no such functions.
    set_to = os.environ.get("MPIR_CVAR_ENABLE_GPU", "") if "MPICH" in library.upper() else ""
    return {"0": False, "1": True}.get(set_to)


def _ask(library: ctypes.CDLL) -> bool | None:
    """The library's own answer for the GPUs that torch was built for; None if it has no such function."""
    is_hip = torch.version.hip is not None
    if hasattr(library, "MPIX_GPU_query_support"):  # MPICH since 4.0
        answer = ctypes.c_int(0)
        failed = library.MPIX_GPU_query_support(_HIP if is_hip else _CUDA, ctypes.byref(answer))
        return None if failed else bool(answer.value)
    name = "MPIX_Query_rocm_support" if is_hip else "MPIX_Query_cuda_support"  # Open MPI
    return getattr(library, name)() == 1 if hasattr(library, name) else None


def require_cuda_aware(device: torch.device, wanted: bool) -> None:
    """Refuse `run.cuda_aware` where MPI says that it cannot take the buffers of this rank's device.

    `wanted`: whether they would be handed to MPI at all.
    """
    if wanted and device.type == "cuda" and cuda_aware_mpi() is False:
        raise UserError(
            f"config run.cuda_aware = true: this MPI ({_library()}) cannot take pointers to GPU memory; "
            "use false, which sends sums by way of the host, or load a CUDA-aware MPI and install mpi4py "
            "with it (Cray: export MPICH_GPU_SUPPORT_ENABLED=1)"
        )


def cuda_aware_note(device: torch.device, wanted: bool) -> str:
    """A note for a rank whose MPI does not tell whether it takes pointers to GPU memory; else empty."""
    if not wanted or device.type != "cuda" or cuda_aware_mpi() is not None:
        return ""
    return (
        f"run.cuda_aware = true, but this MPI ({_library()}) does not tell whether it can take pointers to "
        "GPU memory; if the run dies in its first round, use false"
    )


def _library() -> str:
    return import_mpi().Get_library_version().split("\n")[0].split(",")[0].strip("\x00 ")
