"""The device that these tests run on: a real GPU where torch has CUDA, else the simulated one.

Installing the simulated device changes torch for the whole process: run these tests by themselves, as
`bash jobs/test.sh` does. With FEDMPI_TEST_DEVICE=cuda only a real GPU will do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from fedmpi.mpi import Comm
from fedmpi.mpi.world import session
from tests.accelerator import simulated_gpu

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once, at the first matrix product
IS_REAL = torch.backends.cuda.is_built() and torch.cuda.is_available()
if os.environ.get("FEDMPI_TEST_DEVICE") == "cuda" and not IS_REAL:
    raise pytest.UsageError(
        f"--device cuda: torch {torch.__version__} sees no CUDA device; check nvidia-smi, "
        "CUDA_VISIBLE_DEVICES, and that torch is a CUDA build"
    )


@pytest.fixture(scope="session")
def device() -> torch.device:
    """cuda:0"""
    torch.set_num_threads(1)
    return torch.device("cuda", 0) if IS_REAL else simulated_gpu.install()


@pytest.fixture(scope="session")
def simulated(device: torch.device) -> torch.device:
    """cuda:0, simulated: for what only it can count or refuse."""
    if IS_REAL:
        pytest.skip("counts and rules of the simulated device")
    return device


@pytest.fixture(scope="session")
def comm() -> Iterator[Comm]:
    """All ranks."""
    with session() as world:
        yield world


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """The simulated device has 8 GB."""
    yield
    simulated_gpu.set_limit(8 << 30)
