"""Clusters unlike ours on a real SLURM: four virtual nodes that look like those of the shipped sites.

128 hardware threads and 8 made-up GPUs a node, the partitions and the feature that the profiles name; and
a scontrol that does not requeue. The nodes share the cores of this machine.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pandas
import pytest

import fedmpi
from fedmpi.experiments.job_request import Request
from fedmpi.results.compare import first_difference
from tests.support.configs import SLOW, SWEEP
from tests.support.jobs import has_rounds, wait_until
from tests.support.slurm import Cluster, needs_slurm

pytestmark = needs_slurm


@pytest.fixture(scope="module")
def cluster():
    """A SLURM of four nodes for all tests of this file; it may run beside that of another."""
    cluster = Cluster(
        4, CPUS=128, THREADS=2, MEM=500_000, GPUS=8, FEATURES="gpu", PARTITIONS="debug standard-g booster",
        PORT=30817, CGROUP=0,
    )  # fmt: skip
    yield cluster
    cluster.stop()


@pytest.fixture
def folder(tmp_path):
    """A config that can be slowed down, and a sweep of it."""
    (tmp_path / "c.toml").write_text(SLOW)
    (tmp_path / "s.toml").write_text(SWEEP)
    return tmp_path


@pytest.fixture(scope="module")
def alone(cluster, tmp_path_factory) -> fedmpi.Run:
    """The same run without a job, in one go."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "c.toml").write_text(SLOW)
    cluster.call("fedmpi", "run", "c.toml", "--out", "r.h5", folder=folder)
    return fedmpi.load_run(folder / "r.h5")


def would_run(cluster, folder, script: str) -> subprocess.CompletedProcess:
    """What `sbatch --test-only` says of a script."""
    (folder / "job.sh").write_text(script)
    return subprocess.run(
        ["sbatch", "--test-only", "job.sh"], cwd=folder, env=cluster.environment, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("site", ["perlmutter", "lumi-g", "juwels-booster"])
def test_scripts_for_sites_pass(cluster, folder, site):
    """On all four nodes, with the site's own partition or another; one GPU too many does not."""
    words = f"fedmpi slurm c.toml --time 1:00:00 --nodes 4 --site {site} --account a".split()
    for options in ([], ["--partition", "debug", "--gpus-per-task", "1"]):
        done = would_run(cluster, folder, cluster.call(*words, *options, folder=folder))
        assert done.returncode == 0, done.stderr
        assert re.search(r"Job \d+ to start at", done.stderr)
    done = would_run(cluster, folder, cluster.call(*words, "--gpus-per-node", "9", folder=folder))
    assert done.returncode != 0


def test_a_partition_that_does_not_exist(cluster, folder):
    """Asked of SLURM itself, and refused before a script is written."""
    (folder / "mine.toml").write_text('partition = "boster"\n')
    with pytest.raises(AssertionError, match=r"partition boster does not exist.* did you mean booster"):
        cluster.call("fedmpi", "slurm", "c.toml", "--time", "5", "--site", "mine.toml", folder=folder)


@pytest.mark.parametrize("nodes", [3, 4])
def test_more_nodes_by_a_profile_of_ones_own(cluster, folder, alone, nodes):
    """A rank on each, whose cores have two threads, by the script that the profile gives: the same bits.

    By mpirun: under srun, Open MPI 5 may crash in MPI_Init where a rank's first message on TCP arrives
    while another still starts.
    """
    (folder / "mine.toml").write_text(
        f'partition = "booster"\nnodes = {nodes}\ncpus_per_rank = 4\nmemory_mb = 0\nlauncher = "mpirun"\n'
        'hint = "nomultithread"\nsetup = ["export SEEN=yes", "env"]\n'
        'sbatch = ["--mail-type=NONE"]\n'
    )
    words = ("fedmpi", "slurm", "c.toml", "--out", "r.h5", "--time", "10", "--site", "./mine.toml")
    cluster.call(*words, "--script", "job.sh", folder=folder)
    job = cluster.call("sbatch", "--parsable", "--output=log", "job.sh", folder=folder)
    log = cluster.wait(job, folder)
    run = fedmpi.load_run(folder / "r.h5")
    assert run.status == "done", log
    assert "SEEN=yes" in log
    assert sorted(run.attributes["host_names"]) == [f"n{i + 1}" for i in range(nodes)]
    assert first_difference(run, alone) is None


def test_where_requeueing_is_forbidden(cluster, folder, alone):
    """A job that depends on the first takes its place, and ends the run with the bits of a run alone."""
    stub = folder / "bin" / "scontrol"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\n[ "$1" != requeue ] || { echo "Access denied" >&2; exit 1; }\nexit 0\n')
    stub.chmod(0o755)
    path = f"{stub.parent}:{cluster.environment['PATH']}"
    request = Request("c.toml", "r.h5", "10", ranks_per_node=2, memory_mb=100)
    job = cluster.submit(folder, request, sleep=0.04, PATH=path)
    wait_until(lambda: has_rounds(folder / "r.h5", 2), "2 rounds")
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    log = cluster.wait(job, folder)
    assert "Access denied" in log
    (other,) = re.findall(r"requeueing was refused: job (\d+) continues", log)
    assert other != job
    wait_until(lambda: not cluster.call("squeue", "-h", "-j", other), "the job that follows", 120)
    assert "ExitCode=75:0" in cluster.call("scontrol", "show", "job", job)
    run = fedmpi.load_run(folder / "r.h5")
    assert run.status == "done", (folder / f"c-{other}.log").read_text()
    assert run.attributes["legs"].count('"utc"') == 2
    assert first_difference(run, alone) is None


def is_packed(sweep: Path) -> bool:
    """Whether a run of a sweep is under way together with another."""
    notes = [path.read_text().split() for path in (sweep / ".sweep").glob("*.progress")]
    return ["2"] in [words[1:] for words in notes]


def test_an_array_of_packed_sweeps(cluster, folder):
    """Six runs in packs of two, three jobs at once: each run is done once, with the bits of a run alone."""
    request = Request("s.toml", "d", "10", num_runs=6, as_array=True, pack=2, memory_mb=100)
    job = cluster.submit(folder, request, sleep=0.02)
    wait_until(lambda: is_packed(folder / "d"), "two runs in lockstep")
    log = cluster.wait(job, folder)
    assert log.count("fedmpi sweep s.toml: 6 runs, 1 rank") == 3  # jobs
    table = pandas.read_csv(folder / "d" / "index.csv")
    assert table["status"].tolist() == ["done"] * 6, log
    runs = [fedmpi.load_run(folder / "d" / f"{name}.h5") for name in table["name"]]
    assert all(run.attributes["legs"].count('"utc"') == 1 for run in runs)
    one = runs[0]
    settings = ["--set", "run.seed=1", "--set", f"algorithm.local_lr={one.config['algorithm']['local_lr']}"]
    cluster.call("fedmpi", "run", "c.toml", "--out", "one.h5", *settings, folder=folder)
    assert first_difference(one, fedmpi.load_run(folder / "one.h5")) is None
