"""Killed, signalled, resumed on other numbers of ranks: the bits of a run that nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from fedmpi.storage.checkpoint import find_checkpoints
from fedmpi.storage.reader import peek
from tests.support.commands import in_process
from tests.support.configs import SMALL
from tests.support.jobs import SECONDS, Job, wait_until

TEXT = (
    SMALL.replace('"logistic"', '"tests.support.user_code:slow_model"')
    .replace("num_rounds = 6", "num_rounds = 60\ncheckpoint_every = 2\nrecord_params_every = 10")
    .replace('"uniform"', '"permutation"')
    .replace("[algorithm]", "[algorithm]\namplification = 3.0\namplify_every = 7")
    + "[warmup]\nnum_rounds = 5\nlocal_lr = 0.1\n"
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> fedmpi.Run:
    """The same run on one rank, in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "c.toml").write_text(TEXT)
    done = in_process(folder, "run", "c.toml", "--out", "r.h5")
    assert done.returncode == 0, done.stderr
    return fedmpi.load_run(folder / "r.h5")


def assert_same(path: Path, reference: fedmpi.Run) -> None:
    """All results are there once, bit for bit."""
    run = fedmpi.load_run(path)
    assert run.status == "done"
    difference = first_difference(run, reference)
    assert difference is None, difference
    assert run.train["round"].tolist() == list(range(60))
    assert run.eval["round"].tolist() == reference.eval["round"].tolist()
    assert run.params[0].tolist() == reference.params[0].tolist()
    np.testing.assert_array_equal(run.params[1], reference.params[1])


def test_twenty_kills(tmp_path, undisturbed):
    """SIGKILL of all ranks or of one, at 20 random moments, resumed on 1 to 3 ranks: nothing is lost."""
    draws = random.Random(4)
    (tmp_path / "c.toml").write_text(TEXT)
    path = tmp_path / "r.h5"
    job = Job(tmp_path, 2, "run", "c.toml", "--out", "r.h5", sleep=0.02)
    for kill in range(20):
        before = (peek(path) or {"rounds": -1})["rounds"]
        job.wait_for_rounds(before)
        time.sleep(draws.uniform(0, 0.15))
        alive = job.ranks()
        if kill % 2 and alive:
            os.kill(draws.choice(alive), signal.SIGKILL)  # the launcher must end the others
            job.end()
        else:
            job.kill_all()
        kept = peek(path)
        if kept is None:  # killed before the file was made
            job = Job(tmp_path, 2, "run", "c.toml", "--out", "r.h5", sleep=0.02)
            continue
        assert kept["rounds"] >= before - 2
        job = Job(tmp_path, draws.randint(1, 3), "resume", "r.h5", sleep=0.02)
    job.kill_all()
    status, output = Job(tmp_path, 3, "resume", "r.h5").end()
    assert status == 0, output
    assert_same(path, undisturbed)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_signals_stop_with_a_checkpoint(tmp_path, undisturbed, name):
    """A signal that mpirun passes on: all ranks stop after the same round, status 75; resume goes on."""
    (tmp_path / "c.toml").write_text(TEXT.replace("checkpoint_every = 2", "checkpoint_every = 0"))
    job = Job(tmp_path, 2, "run", "c.toml", "--out", "r.h5", sleep=0.05)
    job.wait_for_rounds(0)
    os.kill(job.process.pid, getattr(signal, name))
    if name == "SIGUSR1":  # a second one changes nothing
        os.kill(job.process.pid, signal.SIGUSR1)
    status, output = job.end(SECONDS)
    assert status == 75, output
    assert "continue with: fedmpi resume r.h5" in output
    run = fedmpi.load_run(tmp_path / "r.h5")
    assert run.status == "stopped"
    assert find_checkpoints(tmp_path / "r.h5")[0].name == f"r.h5.checkpoint-{len(run.train)}"
    status, output = Job(tmp_path, 3, "resume", "r.h5").end()
    assert status == 0, output
    assert_same(tmp_path / "r.h5", undisturbed)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_launcher_that_kills_its_ranks(tmp_path, undisturbed, name):
    """TERM and INT make mpirun kill its ranks in mid-round: the rounds before are kept; resume goes on."""
    (tmp_path / "c.toml").write_text(TEXT)
    job = Job(tmp_path, 2, "run", "c.toml", "--out", "r.h5", sleep=0.02)
    job.wait_for_rounds(3)
    (tmp_path / "hold").touch()  # the model waits in the middle of a round
    wait_until((tmp_path / "held").exists, "a rank in a round")
    before = peek(tmp_path / "r.h5")["rounds"]
    os.kill(job.process.pid, getattr(signal, name))
    status, output = job.end(SECONDS)
    assert status not in (0, 75), output
    assert peek(tmp_path / "r.h5") == {"status": "running", "rounds": before}
    (tmp_path / "hold").unlink()
    status, output = Job(tmp_path, 3, "resume", "r.h5").end()
    assert status == 0, output
    assert_same(tmp_path / "r.h5", undisturbed)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR2"])
def test_signals_without_a_launcher(tmp_path, name):
    """One process: Ctrl-C, TERM and USR2 write a checkpoint within seconds and say how to go on."""
    (tmp_path / "c.toml").write_text(TEXT)
    job = Job(tmp_path, None, "run", "c.toml", "--out", "r.h5", sleep=0.05)
    job.wait_for_rounds(0)
    job.process.send_signal(getattr(signal, name))
    status, output = job.end(SECONDS)
    assert status == 75, output
    assert "continue with: fedmpi resume r.h5" in output
    run = fedmpi.load_run(tmp_path / "r.h5")
    assert run.status == "stopped"
    assert find_checkpoints(tmp_path / "r.h5")[0].name == f"r.h5.checkpoint-{len(run.train)}"


@pytest.mark.parametrize("how", ["max_minutes", "slurm"])
def test_a_time_limit_stops_in_time(tmp_path, fedmpi_cli, how):
    """run.max_minutes, or SLURM's end of the job, stops the run with a checkpoint before it is up."""
    (tmp_path / "c.toml").write_text(TEXT)
    limits = ["--set", "run.max_minutes=0.03"] if how == "max_minutes" else []
    environment = {"SLURM_JOB_END_TIME": str(int(time.time()) + 33)} if how == "slurm" else {}
    done = fedmpi_cli("run", "c.toml", "--out", "r.h5", *limits, FEDMPI_TEST_SLEEP="0.05", **environment)
    assert done.returncode == 75, done.stderr
    assert "the time limit is near" in done.stdout
    run = fedmpi.load_run(tmp_path / "r.h5")
    assert run.status == "stopped"
    assert 0 < len(run.train) < 60
