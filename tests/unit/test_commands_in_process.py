"""The fixture that runs commands inside the process of the tests: it gives what a new process would."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.support.commands import in_process
from tests.support.configs import ROOT


def state() -> tuple:
    """What commands change in their process."""
    handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)]
    return handlers, dict(os.environ), Path.cwd(), torch.get_num_threads()


def test_nothing_is_left_behind(fedmpi_cli, small_config, tmp_path, monkeypatch):
    """A run sets signal handlers, threads and variables; afterwards all are as before."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = state()
    done = fedmpi_cli("run", small_config, "--out", "r.h5", "--set", "run.threads=2", SOME_NAME="1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.h5").exists()
    assert "6/6 rounds" in done.stderr + done.stdout
    assert state() == before


@pytest.mark.parametrize(
    "arguments", [("check", "missing.toml"), ("no-such-command",), ("--help",), ("info",)]
)
def test_the_same_as_a_process(fedmpi_cli, fedmpi_process, arguments):
    """Status, output and errors are those of `python -m fedmpi` in a process of its own."""
    inside, outside = fedmpi_cli(*arguments, COLUMNS="80"), fedmpi_process(*arguments, COLUMNS="80")
    assert inside.returncode == outside.returncode
    assert [inside.stdout, inside.stderr] == [outside.stdout, outside.stderr]


def test_an_exception_is_a_traceback_and_status_1(fedmpi_cli, monkeypatch):
    """What nobody caught does not reach the test, but is seen as a user would see it."""
    monkeypatch.setattr("fedmpi.cli.dispatch._dispatch", lambda args: 1 / 0)
    done = fedmpi_cli("info", "r.h5")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_command_that_would_replace_the_process_is_stopped(fedmpi_cli, small_config):
    """`fedmpi verify` becomes mpirun; inside the tests that is an error, not their end."""
    done = fedmpi_cli("verify", small_config, "--ranks", "1,2")
    assert done.returncode == 1
    assert "run it in a process of its own" in done.stderr


def test_a_users_module_is_imported_anew(fedmpi_cli, small_config, tmp_path):
    """Two commands see two versions of one file, as two processes would; fedmpi itself stays loaded."""
    from fedmpi.errors import UserError

    for reason in ("first reason", "another reason"):
        text = f"def model(input_shape, num_classes):\n    raise ValueError('{reason}')\n"
        (tmp_path / "mine.py").write_text(text)
        done = fedmpi_cli("run", small_config, "--out", "r.h5", "--set", "model.name=mine:model")
        assert reason in done.stderr
    in_process(ROOT, "--help")
    assert sys.modules["fedmpi.errors"].UserError is UserError
