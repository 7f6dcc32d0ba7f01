"""Compute nodes have no network: a prepared job runs where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import fedmpi
from fedmpi.data.originals import SYSTEM_FASHION_MNIST
from fedmpi.results.compare import first_difference

can_cut = os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip")
pytestmark = [
    pytest.mark.skipif(not can_cut, reason="cutting off the network needs root, unshare and ip"),
    pytest.mark.skipif(
        not SYSTEM_FASHION_MNIST.exists(), reason="Debian's dataset-fashion-mnist is missing"
    ),
]

CONFIG = """
[run]
num_rounds = 4
eval_every = 0

[data]
dataset = "fashion-mnist"
root = "prepared"
stage = "$NODE_DISK"
num_clients = 50

[model]
name = "logistic"

[participation]
selection = "uniform"
clients_per_round = 5

[algorithm]
local_lr = 0.01
local_steps = 2
"""


def test_a_prepared_job_runs_without_a_network(tmp_path, fedmpi_cli):
    """Data prepared on the login node; two ranks without any network but loopback; the same bits."""
    (tmp_path / "c.toml").write_text(CONFIG)
    prepare = fedmpi_cli("data", "prepare", "fashion-mnist", "--root", "prepared")
    assert prepare.returncode == 0, prepare.stderr
    assert fedmpi_cli("run", "c.toml", "--out", "login.h5", NODE_DISK=str(tmp_path)).returncode == 0

    run = f"mpirun -n 2 {sys.executable} -m fedmpi run c.toml --out node.h5"
    inside = f"ip link set lo up; ! ip route | grep . ; {run}"
    done = subprocess.run(
        ["unshare", "--net", "bash", "-ec", inside],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env=os.environ | {"NODE_DISK": str(tmp_path / "disk")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "disk").glob("fedmpi-fashion-mnist-*.h5"))) == 1
    runs = [fedmpi.load_run(tmp_path / name) for name in ("login.h5", "node.h5")]
    assert first_difference(*runs) is None
