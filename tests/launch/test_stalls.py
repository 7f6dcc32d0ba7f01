"""Silence, seen from outside: a rank that stops, a disk that does not answer, a launcher that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from fedmpi.storage.reader import peek
from tests.support.configs import SLOW
from tests.support.jobs import SECONDS, Job, assert_all_ended, has_rounds, processes_in, wait_until
from tests.support.user_code import note_fault

STALL = ("--set", "run.stall_minutes=0.05")  # 3 seconds


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """The config of a run that can be stopped in the middle."""
    (tmp_path / "c.toml").write_text(SLOW)
    return tmp_path


def rank_of(pid: int) -> str:
    """The rank of a process under mpirun."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(word.decode().split("=", 1) for word in words if b"=" in word)["OMPI_COMM_WORLD_RANK"]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_is_stopped(slow, fedmpi_cli, slow_alone, rank):
    """SIGSTOP to one rank: a warning, then rank, process and state by name, stacks, status 75. Rows that
    were put away in segments are neither lost nor doubled by the rescue, which another thread makes.
    """
    job = Job(slow, 2, "run", "c.toml", "--out", "r.h5", *STALL, sleep=0.05, FEDMPI_TEST_SEGMENTS="1")
    job.wait_for_rounds(6)
    (pid,) = (pid for pid in job.ranks() if rank_of(pid) == rank)
    os.kill(pid, signal.SIGSTOP)
    with contextlib.chdir(slow):
        note_fault()
    code, output = job.end(SECONDS + 20)
    assert_all_ended(slow)
    assert code == 75, output
    warned, _, ended = output.partition("fedmpi: stalled: ")
    assert "the job ends if this lasts 3 s (run.stall_minutes)" in warned
    assert ended.startswith(f"rank {rank} of 2 (process {pid} on ")
    assert "its process is stopped" in ended
    assert "simulation/training.py" in ended  # in the stack of the one that waits
    assert "go on with `fedmpi resume r.h5`" in ended
    assert (slow / "r.h5.rows-1").exists()
    if rank == "1":  # rank 0 has written what it knew
        assert f"the results of {peek(slow / 'r.h5')['rounds']} rounds are in r.h5" in ended
        assert peek(slow / "r.h5")["status"] == "stopped"
        assert len(fedmpi.load_run(slow / "r.h5").train) == peek(slow / "r.h5")["rounds"]
    assert fedmpi_cli("resume", "r.h5").returncode == 0
    assert first_difference(fedmpi.load_run(slow / "r.h5"), slow_alone) is None


def test_a_pack_on_two_ranks(slow, fedmpi_cli, slow_alone):
    """A rank that is stopped under runs in lockstep ends the sweep; the same again goes on with all."""
    (slow / "c.toml").write_text(SLOW.replace("[run]", "[run]\nstall_minutes = 0.05"))
    (slow / "s.toml").write_text('base = "c.toml"\nseeds = [1, 2]\n')
    words = "sweep", "s.toml", "--out", "d", "--ranks-per-run", 2
    job = Job(slow, 2, *words, sleep=0.02, FEDMPI_TEST_SEGMENTS="1")
    paths = [slow / "d" / f"seed-{seed}.h5" for seed in (1, 2)]
    wait_until(lambda: all(has_rounds(path, 7) for path in paths), "seven rounds of both runs")
    (pid,) = (pid for pid in job.ranks() if rank_of(pid) == "1")
    os.kill(pid, signal.SIGSTOP)
    with contextlib.chdir(slow):
        note_fault()
    code, output = job.end(SECONDS + 20)
    assert_all_ended(slow)
    assert code == 75, output
    assert "the same again goes on with it" in output
    for path in paths:
        assert f"rounds are in {path.relative_to(slow)}" in output
        assert peek(path)["status"] == "stopped"
        assert path.with_name(f"{path.name}.rows-1").exists()
    assert fedmpi_cli("sweep", "s.toml", "--out", "d").returncode == 0
    assert [len(fedmpi.load_run(path).train) for path in paths] == [30, 30]
    assert first_difference(fedmpi.load_run(paths[0]), slow_alone) is None


def test_a_disk_that_does_not_answer(fedmpi_process, small_config, tmp_path):
    """fsync never returns, as on a file server that is gone: status 75, rank and phase."""
    done = fedmpi_process(
        "run", small_config, "--out", "r.h5", *STALL, "--set", "run.checkpoint_every=2",
        "--set", "model.name=tests.support.user_code:faulty_model",
        FEDMPI_TEST_FAULT="disk", FEDMPI_TEST_RANK="0", FEDMPI_TEST_CALLS="3",
    )  # fmt: skip
    assert_all_ended(tmp_path)
    assert done.returncode == 75, done.stderr
    assert "fedmpi: stalled: rank 0 of 1" in done.stderr
    assert "(output)" in done.stderr
    assert "in write_whole" in done.stderr  # its own stack
    assert peek(tmp_path / "r.h5")["status"] == "running"  # the older file is whole


@pytest.mark.parametrize("name", ["c.toml", "r.h5.checkpoint-9"])
def test_a_file_that_does_not_answer_before_the_config_is_known(slow, fedmpi_cli, name):
    """A pipe in its place: no limit has been read yet, and still all ranks end: place, status 75."""
    words = "run", "c.toml", "--out", "r.h5"
    if name != "c.toml":
        assert fedmpi_cli(*words, "--set", "run.num_rounds=3").returncode == 0
        words = "resume", "r.h5"
    else:
        (slow / name).unlink()
    os.mkfifo(slow / name)
    code, output = Job(slow, 2, *words, FEDMPI_START_TIMEOUT="1").end(60)  # Python and MPI start first
    wait_until(lambda: not processes_in(slow), "the end of all ranks", SECONDS)
    assert code == 75, output
    assert "stalled: rank 0 of 2 (process " in output
    assert "a file system does not answer" in output
    assert "read_checkpoint" in output or "validate.py" in output  # its stack


def test_a_launcher_that_is_killed(slow, fedmpi_cli, slow_alone):
    """SIGKILL to mpirun alone: its ranks end within seconds, and free the file for one who waits."""
    job = Job(slow, 2, "run", "c.toml", "--out", "r.h5", sleep=0.05)
    job.wait_for_rounds(6)
    job.process.kill()
    with contextlib.chdir(slow):
        note_fault()
    done = fedmpi_cli("resume", "r.h5", "--wait", SECONDS)
    assert done.returncode == 0, done.stderr
    assert_all_ended(slow)
    job.process.communicate()
    assert first_difference(fedmpi.load_run(slow / "r.h5"), slow_alone) is None
