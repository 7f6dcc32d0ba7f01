"""Shared fixtures: small configs, and the command line as a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A small experiment that trains in a second; tests change what they are about.
SMALL = """
[run]
num_rounds = 6
eval_every = 3

[data]
dataset = "synthetic"
num_clients = 7
train_samples = 420
test_samples = 100
shape = [1, 6, 6]
partition = "majority-label"

[model]
name = "logistic"

[participation]
selection = "uniform"
clients_per_round = 3

[algorithm]
local_lr = 0.05
local_steps = 2
batch_size = 8
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Doctests of the package fedmpi/mpi run like all others: pytest-mpi takes its name for a marker."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]


@pytest.fixture
def small_config(tmp_path: Path) -> Path:
    """A config file of a small experiment."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def fedmpi_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run `fedmpi ...` in one process, in an empty directory; never longer than three minutes."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "fedmpi", *map(str, arguments)],
            cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=180,
        )  # fmt: skip

    return run


@pytest.fixture
def mpirun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run `mpirun -n R fedmpi ...`, in an empty directory; a hang is a failure after five minutes."""

    def run(ranks: int, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["mpirun", "-n", str(ranks), sys.executable, "-m", "fedmpi", *map(str, arguments)],
            cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


def minibatches(data, client: int, drawn: int, count: int, samples=None) -> list:
    """The (inputs, labels) of each local step of one client, as tensors of their own."""
    from fedmpi.data.shard import Work

    steps = data.minibatches([Work(client, drawn, samples)], count)
    return [(inputs[0].clone(), labels[0].clone()) for inputs, labels in steps]
