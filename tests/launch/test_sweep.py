"""Sweeps seen from outside: several groups, several jobs, kills and signals, and runs that go wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas
import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from tests.support.commands import in_process
from tests.support.configs import SLOW, SMALL, SWEEP
from tests.support.jobs import SECONDS, Job, has_rounds, wait_until


def start(folder: Path, ranks: int, *arguments: object, sleep: float = 0.0) -> Job:
    """`mpirun -n R fedmpi sweep s.toml --out d ...` in the background."""
    return Job(folder, ranks, "sweep", "s.toml", "--out", "d", *arguments, sleep=sleep)


def legs(path: Path) -> int:
    """How often a run was started or resumed."""
    return fedmpi.load_run(path).attributes["legs"].count('"utc"')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base config that can be slowed down, and a sweep of six runs."""
    (tmp_path / "c.toml").write_text(SLOW)
    (tmp_path / "s.toml").write_text(SWEEP)
    return tmp_path


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> fedmpi.Run:
    """The last run of the sweep, by itself."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "c.toml").write_text(SLOW)
    changes = ["--set", "algorithm.local_lr=0.1", "--set", "run.seed=2"]
    assert in_process(folder, "run", "c.toml", "--out", "r.h5", *changes).returncode == 0
    return fedmpi.load_run(folder / "r.h5")


def assert_all_done(folder: Path, alone: fedmpi.Run) -> None:
    """Six runs, one of them compared with the same run alone."""
    table = pandas.read_csv(folder / "d" / "index.csv")
    assert table["status"].tolist() == ["done"] * 6
    assert table["rounds"].tolist() == [30] * 6
    run = fedmpi.load_run(folder / "d" / "local_lr-0.1_seed-2.h5")
    assert first_difference(run, alone) is None


def test_two_jobs_share_a_sweep(folder, alone):
    """Two groups of one job and one of another on one folder: every run is done once, with its bits."""
    jobs = [start(folder, 2), start(folder, 2, "--ranks-per-run", 2)]
    ends = [job.end(90) for job in jobs]
    assert [status for status, _ in ends] == [0, 0], ends
    # Whoever was last has seen all of them done.
    assert any("6/6 runs: 6 done" in output for _, output in ends), ends
    assert [legs(path) for path in sorted((folder / "d").glob("*.h5"))] == [1] * 6
    assert_all_done(folder, alone)


def test_signal_kill_and_going_on(folder, alone):
    """USR1: status 75 and checkpoints. SIGKILL: claims of the dead are recovered. Then all get done."""
    job = start(folder, 2, sleep=0.03)
    runs = (folder / "d").glob
    wait_until(lambda: sum(has_rounds(path, 1) for path in runs("*.h5")) >= 2, "two runs with rounds")
    os.kill(job.process.pid, signal.SIGUSR1)
    status, output = job.end(SECONDS)
    assert status == 75, output
    assert "the same command continues them" in output
    index = pandas.read_csv(folder / "d" / "index.csv")
    assert set(index["status"]) <= {"stopped", "waiting"}  # as many stopped as were in packs
    assert sum(index["status"] == "stopped") >= 2

    before = max(path.stat().st_mtime for path in runs("*.h5"))
    job = start(folder, 1, sleep=0.03)
    wait_until(lambda: max(path.stat().st_mtime for path in runs("*.h5")) > before, "a run that goes on")
    for pid in job.ranks():
        os.kill(pid, signal.SIGKILL)
    status, output = job.end(SECONDS)
    assert status != 0, output

    status, output = start(folder, 1).end(90)
    assert status == 0, output
    assert_all_done(folder, alone)


def test_what_goes_wrong_does_not_stop_the_others(tmp_path, fedmpi_cli):
    """A run that raises, one with bad input and one that diverges are reported; the rest is done."""
    (tmp_path / "c.toml").write_text(SMALL)
    (tmp_path / "s.toml").write_text(
        'base = "c.toml"\n[[cases]]\nname = "broken"\nmodel.name = "tests.support.user_code:faulty_model"\n'
        '[[cases]]\nname = "missing"\ndata.dataset = "missing.h5"\n'
        '[[cases]]\nname = "large"\nalgorithm.local_lr = 1e300\n[[cases]]\nname = "good"\n'
    )
    faults = {"FEDMPI_TEST_RANK": "0", "FEDMPI_TEST_FAULT": "raise"}
    done = fedmpi_cli("sweep", "s.toml", "--out", "d", **faults)
    assert done.returncode == 1, done.stderr
    assert "the dog ate the minibatch" in done.stdout
    assert "missing.h5" in done.stdout
    table = pandas.read_csv(tmp_path / "d" / "index.csv", index_col="name")
    assert table["status"].to_dict() == {
        "broken_seed-1": "failed", "missing_seed-1": "failed",
        "large_seed-1": "diverged", "good_seed-1": "done",
    }  # fmt: skip
    assert "(fedmpi replay d/large_seed-1.h5 --round 0 --client " in table["message"]["large_seed-1"]
    # One point of it, as in a job array; what is done stays as it is; a mended run goes on.
    before = (tmp_path / "d" / "good_seed-1.h5").read_bytes()
    assert fedmpi_cli("sweep", "s.toml", "--out", "d", "--index", 2, **faults).returncode == 3
    done = fedmpi_cli("sweep", "s.toml", "--out", "d", "--index", 0, **(faults | {"FEDMPI_TEST_RANK": "9"}))
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "d" / "good_seed-1.h5").read_bytes() == before
    listed = fedmpi_cli("sweep", "s.toml", "--out", "d", "--list").stdout
    assert listed.split()[:6] == ["0", "done", "broken_seed-1", "1", "failed", "missing_seed-1"]
    assert fedmpi_cli("sweep", "s.toml", "--out", "d", "--index", 4).returncode == 2
    best = fedmpi_cli("sweep", "best", "d", "--metric", "test_accuracy")
    assert best.returncode == 0, best.stderr
    assert "good" in best.stdout


def test_one_rank_of_a_group_that_fails_does_not_stop_the_others(tmp_path, mpirun):
    """With two ranks a run, what one of them meets ends the run on both; the group takes the next one."""
    (tmp_path / "c.toml").write_text(SMALL.replace("clients_per_round = 3", "clients_per_round = 7"))
    (tmp_path / "s.toml").write_text(
        'base = "c.toml"\n[[cases]]\nname = "broken"\nmodel.name = "tests.support.user_code:faulty_model"\n'
        '[[cases]]\nname = "good"\n'
    )
    faults = {"FEDMPI_TEST_RANK": "1", "FEDMPI_TEST_FAULT": "raise"}
    done = mpirun(2, "sweep", "s.toml", "--out", "d", "--ranks-per-run", 2, **faults)
    assert done.returncode == 1, done.stderr
    assert "failed: broken_seed-1: ClientError on rank 1 of its 2: round 0, client" in done.stdout
    table = pandas.read_csv(tmp_path / "d" / "index.csv", index_col="name")
    assert table["status"].to_dict() == {"broken_seed-1": "failed", "good_seed-1": "done"}
    assert (
        "the dog ate the minibatch" in (tmp_path / "d" / ".sweep" / "broken_seed-1.traceback").read_text()
    )


def test_dry_run_and_bad_files(mpirun, tmp_path):
    """--dry-run estimates and writes nothing; a bad sweep is told once, with status 2 on all ranks."""
    (tmp_path / "c.toml").write_text(SMALL)
    (tmp_path / "s.toml").write_text(SWEEP)
    done = mpirun(2, "sweep", "s.toml", "--out", "d", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "6 runs, 2 at a time on 1 rank each: about" in done.stdout
    assert not (tmp_path / "d").exists()
    (tmp_path / "s.toml").write_text(SWEEP + '"algorithm.local_stesp" = [1]\n')
    done = mpirun(2, "sweep", "s.toml", "--out", "d")
    assert done.returncode == 2
    assert done.stderr.count("did you mean algorithm.local_steps?") == 1
    assert not (tmp_path / "d").exists()


def test_a_shared_warm_up_is_done_once(tmp_path, mpirun, fedmpi_cli):
    """Methods and rates fork from one warm-up, with the bits and rows of the same runs alone."""
    text = SMALL.replace("num_rounds = 6", "num_rounds = 12\nrecord_params_every = 4")
    (tmp_path / "c.toml").write_text(text + "[warmup]\nnum_rounds = 5\nlocal_lr = 0.1\n")
    (tmp_path / "s.toml").write_text(
        'base = "c.toml"\n[[cases]]\nname = "large"\nalgorithm.amplification = 3.0\n'
        'algorithm.amplify_every = 3\n[[cases]]\nname = "scaffold"\nalgorithm.name = "scaffold"\n'
        '[[cases]]\nname = "own"\nalgorithm.name = "fedawe"\n'
    )
    done = mpirun(2, "sweep", "s.toml", "--out", "d", "--ranks-per-run", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "d" / ".sweep").glob("warmup-*.h5"))) == 1
    for name, changes in {
        "large": ["algorithm.amplification=3.0", "algorithm.amplify_every=3"],
        "scaffold": ["algorithm.name=scaffold"],
        "own": ["algorithm.name=fedawe"],
    }.items():
        sets = [word for change in changes for word in ("--set", change)]
        assert fedmpi_cli("run", "c.toml", "--out", f"{name}.h5", *sets).returncode == 0
        alone = fedmpi.load_run(tmp_path / f"{name}.h5")
        forked = fedmpi.load_run(tmp_path / "d" / f"{name}_seed-1.h5")
        assert first_difference(forked, alone) is None
        assert forked.eval["round"].tolist() == alone.eval["round"].tolist()
        assert (forked.params[1] == alone.params[1]).all()
        assert forked.attributes["legs"].startswith('[{"round": 5,')  # it did fork
