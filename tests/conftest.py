"""Fixtures of all tests: a small config, and the command line in each of its three ways."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.configs import SMALL

Command = Callable[..., subprocess.CompletedProcess]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/accelerator changes torch for the whole process: only where it is asked for by name."""
    is_asked_for = any("accelerator" in str(argument) for argument in config.args)
    return True if collection_path.name == "accelerator" and not is_asked_for else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Doctests of the package fedmpi/mpi run like all others: pytest-mpi takes its name for a marker."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]


@pytest.fixture(autouse=True)
def _subnormal_numbers() -> Iterator[None]:
    """A run flushes them to zero, for the whole process; the next test has them again."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def small_config(tmp_path: Path) -> Path:
    """A config file of a small experiment."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def fedmpi_cli(tmp_path: Path) -> Command:
    """`fedmpi ...` in the test's folder, inside this process: returncode, stdout and stderr."""
    return functools.partial(commands.in_process, tmp_path)


@pytest.fixture
def fedmpi_process(tmp_path: Path) -> Command:
    """`fedmpi ...` in the test's folder, as a process of its own."""
    return functools.partial(commands.in_own_process, tmp_path)


@pytest.fixture
def mpirun(tmp_path: Path) -> Command:
    """`mpirun -n R fedmpi ...` in the test's folder."""
    return functools.partial(commands.under_mpirun, tmp_path)
