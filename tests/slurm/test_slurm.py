"""Job scripts on a real SLURM: two virtual nodes on this machine, started and stopped by these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pandas
import pytest

import fedmpi
from fedmpi.experiments.job_request import Request
from fedmpi.experiments.job_script import job_script
from fedmpi.results.compare import first_difference
from fedmpi.storage.checkpoint import find_checkpoints
from tests.support.configs import SLOW, SWEEP
from tests.support.jobs import SECONDS, has_rounds, processes_in, seconds_since_the_fault, wait_until
from tests.support.slurm import Cluster, needs_slurm

pytestmark = needs_slurm


@pytest.fixture(scope="module")
def cluster():
    """A SLURM of two nodes for all tests of this file."""
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config that can be slowed down, and a sweep of it."""
    (tmp_path / "c.toml").write_text(SLOW)
    (tmp_path / "s.toml").write_text(SWEEP)
    return tmp_path


@pytest.fixture(scope="module")
def alone(cluster, tmp_path_factory) -> fedmpi.Run:
    """The same run without SLURM, in one go."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "c.toml").write_text(SLOW)
    cluster.call("fedmpi", "run", "c.toml", "--out", "r.h5", folder=folder)
    return fedmpi.load_run(folder / "r.h5")


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_told_requeued_done(cluster, folder, alone, launcher):
    """Over two nodes: told to stop, checkpoint, requeue, resume, done, with the bits of a run alone."""
    request = Request("c.toml", "r.h5", "10", nodes=2, ranks_per_node=2, launcher=launcher)
    job = cluster.submit(folder, request, sleep=0.04)
    wait_until(lambda: has_rounds(folder / "r.h5", 2), "2 rounds")
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    log = cluster.wait(job, folder)
    assert "continue with: fedmpi resume r.h5" in log
    assert f"requeueing job {job}" in log
    run = fedmpi.load_run(folder / "r.h5")
    assert run.status == "done", log
    assert first_difference(run, alone) is None
    assert sorted(run.attributes["host_names"]) == ["n1", "n1", "n2", "n2"]
    assert run.attributes["legs"].count('"utc"') == 2


def test_retries_are_bounded(cluster, folder):
    """With no retries left the script says so and ends with 75."""
    request = Request("c.toml", "r.h5", "10", ranks_per_node=2, retries=0)
    job = cluster.submit(folder, request, sleep=0.04)
    wait_until(lambda: has_rounds(folder / "r.h5", 2), "2 rounds")
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    assert "submit this script again" in cluster.wait(job, folder)
    assert "ExitCode=75:0" in cluster.call("scontrol", "show", "job", job)


def test_a_node_that_fails(cluster, folder, alone):
    """A node set down in mid-run: SLURM requeues the job, and the run goes on from its checkpoint."""
    job = cluster.submit(folder, Request("c.toml", "r.h5", "10", nodes=2, ranks_per_node=2), sleep=0.04)
    wait_until(lambda: has_rounds(folder / "r.h5", 6), "6 rounds")
    cluster.call("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    time.sleep(1)
    subprocess.run(  # refused if the node has come back by itself
        ["scontrol", "update", "nodename=n2", "state=resume"], env=cluster.environment, capture_output=True
    )
    log = cluster.wait(job, folder)
    run = fedmpi.load_run(folder / "r.h5")
    assert run.status == "done", log
    assert first_difference(run, alone) is None


def test_the_time_limit(cluster, folder, alone):
    """SLURM's own signal before the time is up: checkpoint, requeue, done, with the bits of a run alone."""
    request = Request("c.toml", "r.h5", "10", nodes=2, ranks_per_node=2)
    job = cluster.submit(folder, request, "--time=1", "--signal=B:USR1@10", sleep=1.0)
    log = cluster.wait(job, folder, seconds=240)  # SLURM looks at its limits every 30 seconds
    assert f"requeueing job {job}" in log
    stops = log.count("continue with: fedmpi resume r.h5")
    run = fedmpi.load_run(folder / "r.h5")
    assert run.status == "done", log
    assert run.attributes["legs"].count('"utc"') == stops + 1 >= 2
    assert first_difference(run, alone) is None


def test_scancel(cluster, folder, alone):
    """A job that is cancelled in mid-run is gone in seconds, with a checkpoint; the run can go on."""
    job = cluster.submit(folder, Request("c.toml", "r.h5", "10", nodes=2, ranks_per_node=2), sleep=0.04)
    wait_until(lambda: has_rounds(folder / "r.h5", 6), "6 rounds")
    cluster.call("scancel", job)
    log = cluster.wait(job, folder, seconds=SECONDS)
    run = fedmpi.load_run(folder / "r.h5")
    assert run.status == "stopped", log  # TERM comes seconds before KILL: time for a checkpoint
    assert find_checkpoints(folder / "r.h5")[0].name == f"r.h5.checkpoint-{len(run.train)}"
    cluster.call("fedmpi", "resume", "r.h5", folder=folder)
    assert first_difference(fedmpi.load_run(folder / "r.h5"), alone) is None


def test_srun_is_killed(cluster, folder, alone):
    """SIGKILL to srun in an allocation that goes on: ranks on both nodes are gone in seconds, the file is
    free, and the run goes on to the same bits.
    """
    text = job_script(Request("c.toml", "r.h5", "10", nodes=2, ranks_per_node=2))
    assert text.count('exit "$status"') == 1
    (folder / "job.sh").write_text(text.replace('exit "$status"', "sleep 300"))
    words = "sbatch", "--parsable", "--output=log", "--mem-per-cpu=100", "job.sh"
    job = cluster.call(*words, folder=folder, FEDMPI_TEST_SLEEP="0.04")
    wait_until(lambda: has_rounds(folder / "r.h5", 6), "6 rounds")
    sruns = [pid for pid, name in names_in(folder).items() if name == "srun"]
    assert sruns
    for pid in sruns:  # and its helper, which waits for it
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(processes_in(folder).values()), "the end of all ranks", SECONDS)
    assert cluster.call("squeue", "-h", "-j", job)  # it was not SLURM that ended them
    cluster.call("scancel", job)
    cluster.call("fedmpi", "resume", "r.h5", folder=folder)
    assert first_difference(fedmpi.load_run(folder / "r.h5"), alone) is None


def names_in(folder: Path) -> dict[int, str]:
    """Process ids of all that runs in a folder, with the names of their programs."""
    return {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in processes_in(folder)}


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_a_rank_that_fails_ends_the_job(cluster, folder, launcher, fault):
    """An exception on one rank of another node, or its sudden death, ends the job within seconds."""
    text = SLOW.replace("slow_model", "faulty_model").replace(
        "clients_per_round = 3", "clients_per_round = 7"
    )
    (folder / "c.toml").write_text(text)
    request = Request("c.toml", "r.h5", "10", nodes=2, ranks_per_node=2, launcher=launcher)
    job = cluster.submit(folder, request, FEDMPI_TEST_RANK="3", FEDMPI_TEST_FAULT=fault)
    log = cluster.wait(job, folder, seconds=60)
    assert seconds_since_the_fault(folder) < SECONDS, log
    assert "JobState=FAILED" in cluster.call("scontrol", "show", "job", job), log
    assert ("error on rank 3 of 4: round" in log) == (fault == "raise"), log
    assert "requeueing" not in log


def test_a_sweep_as_an_array(cluster, folder):
    """Each task does its own run."""
    request = Request("s.toml", "d", "10", num_runs=6, as_array=True, at_a_time=4)
    log = cluster.wait(cluster.submit(folder, request), folder)
    table = pandas.read_csv(folder / "d" / "index.csv")
    assert table["status"].tolist() == ["done"] * 6, log


def test_a_sweep_as_one_job(cluster, folder):
    """Two groups of two ranks on two nodes; told to stop, requeued, done, each run begun once."""
    request = Request("s.toml", "d", "10", nodes=2, ranks_per_node=2, num_runs=6, ranks_per_run=2)
    job = cluster.submit(folder, request, sleep=0.03)
    wait_until(lambda: has_rounds(folder / "d" / "local_lr-0.01_seed-1.h5", 2), "2 rounds")
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    log = cluster.wait(job, folder)
    table = pandas.read_csv(folder / "d" / "index.csv")
    assert table["status"].tolist() == ["done"] * 6, log
    assert f"requeueing job {job}" in log


def test_plain_srun_is_refused(cluster, folder):
    """Without --mpi each task would be alone: a clear message, and no result file."""
    text = job_script(Request("c.toml", "r.h5", "10", ranks_per_node=2))
    (folder / "job.sh").write_text(text.replace("srun --mpi=pmix", "srun --mpi=none"))
    job = cluster.call("sbatch", "--parsable", "--output=log", "--mem-per-cpu=100", "job.sh", folder=folder)
    log = cluster.wait(job, folder)
    assert "each task would run alone" in log
    assert not (folder / "r.h5").exists()
