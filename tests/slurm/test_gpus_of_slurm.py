"""GPUs on a real SLURM: which of them each rank is given and takes, seen without any hardware.

The two nodes have two made-up GPUs each. torch is told to have as many as CUDA_VISIBLE_DEVICES shows, as
a CUDA build counts them; everything else is fedmpi's own.
"""

from __future__ import annotations

import sys

import pytest
import torch

from tests.support.configs import SLOW
from tests.support.slurm import Cluster, needs_slurm

pytestmark = needs_slurm

WHERE = """
import os
import torch

shown = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
torch.cuda.is_available = lambda: bool(shown)
torch.cuda.device_count = lambda: len(shown)
torch.cuda.set_device = lambda device: None

from fedmpi.mpi import session
from fedmpi.mpi.device import choose_device

with session() as comm:
    group = comm.split(comm.rank % GROUPS)
    device = choose_device("auto", group.device_rank)
    lines = comm.gather(f"{comm.host} {shown[device.index]}")
    if comm.is_root:
        print("ranks", *lines, sep="\\n", flush=True)
    group.free()
"""


@pytest.fixture(scope="module")
def cluster():
    """A SLURM with GPUs for all tests of this file; it may run beside that of another."""
    cluster = Cluster(GPUS=2, PORT=28817, CGROUP=0)
    yield cluster
    cluster.stop()


def gpus_of_ranks(cluster, folder, ranks_per_node: int, groups: int, *options: str) -> list[str]:
    """The GPU of each rank on two nodes, as `host number`."""
    (folder / "where.py").write_text(WHERE.replace("GROUPS", str(groups)))
    printed = cluster.call(
        "srun", "--mpi=pmix", "--nodes=2", f"--ntasks-per-node={ranks_per_node}", "--mem-per-cpu=100",
        *options, sys.executable, "where.py", folder=folder,
    )  # fmt: skip
    return printed.split("ranks\n")[1].splitlines()


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("options", [["--gpus-per-node=2"], ["--gpus-per-task=1"]], ids=lambda o: o[0])
def test_each_rank_has_a_gpu_of_its_own(cluster, tmp_path, options, groups):
    """Where SLURM shows a rank all GPUs of its node, and where it shows it one; alone or in groups."""
    assert gpus_of_ranks(cluster, tmp_path, 2, groups, *options) == ["n1 0", "n1 1", "n2 0", "n2 1"]


def test_more_ranks_than_gpus_share_them_evenly(cluster, tmp_path):
    """Four ranks on two GPUs: two each, none left idle."""
    lines = gpus_of_ranks(cluster, tmp_path, 4, 1, "--gpus-per-node=2")
    assert lines == [f"n{node} {gpu}" for node in (1, 2) for gpu in (0, 1, 0, 1)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch does see a GPU here")
def test_gpus_that_torch_does_not_see_are_not_left_idle(cluster, tmp_path):
    """This torch sees no GPU: a run in a job with GPUs is refused, and not if it asks for the CPU."""
    (tmp_path / "c.toml").write_text(SLOW)
    command = "srun --mpi=pmix --nodes=1 --ntasks=1 --mem-per-cpu=100 --gpus-per-node=1 fedmpi run c.toml"
    with pytest.raises(AssertionError, match=r"SLURM gave GPUs \(SLURM_\w+=\d.*\), but torch .* sees none"):
        cluster.call(*command.split(), "--out", "a.h5", folder=tmp_path)
    assert not (tmp_path / "a.h5").exists()
    cluster.call(*command.split(), "--out", "b.h5", "--set", "run.device=cpu", folder=tmp_path)
    assert (tmp_path / "b.h5").exists()
