"""Faults, seen from outside: the job ends in seconds, with a sentence that helps and the right status.

Seconds are counted from the fault, which leaves a file: starting Python, torch and MPI takes several.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time

import h5py
import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.reader import peek
from tests.support.jobs import SECONDS, assert_all_ended, wait_until

FAULTY = ("--set", "model.name=tests.support.user_code:faulty_model", "--set", "run.num_rounds=50",
          "--set", "participation.clients_per_round=7")  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_exception_on_any_rank_ends_the_job(mpirun, small_config, tmp_path, rank):
    """Whichever rank raises, all end; rank, round and client are named; what was written stays."""
    done = mpirun(
        3, "run", small_config, "--out", "r.h5", *FAULTY,
        FEDMPI_TEST_RANK=str(rank), FEDMPI_TEST_FAULT="raise"
    )  # fmt: skip
    assert_all_ended(tmp_path)
    assert done.returncode == 1
    assert f"error on rank {rank} of 3: round " in done.stderr
    assert "client " in done.stderr
    assert "the dog ate the minibatch" in done.stderr
    with h5py.File(tmp_path / "r.h5") as file:
        assert file.attrs["status"] == "running"


def test_an_exception_in_a_group_of_ranks_ends_the_job(mpirun, small_config, tmp_path):
    """`verify` runs on one rank while the other waits: what the one meets must not leave it there."""
    done = mpirun(
        2, "verify", small_config, "--ranks", "1,2", *FAULTY,
        FEDMPI_TEST_RANK="0", FEDMPI_TEST_FAULT="raise"
    )  # fmt: skip
    assert_all_ended(tmp_path)
    assert done.returncode == 1
    assert "error on rank 0 of 2: round 0, client" in done.stderr


def test_a_rank_that_vanishes(mpirun, fedmpi_cli, small_config, tmp_path):
    """`os._exit` on one rank in round 3 or later: the rounds before are kept, and resume gives the bits."""
    words = (*FAULTY, "--set", "run.num_rounds=8", "--set", "run.checkpoint_every=1")
    faults = {"FEDMPI_TEST_RANK": "1", "FEDMPI_TEST_FAULT": "exit", "FEDMPI_TEST_CALLS": "24"}
    done = mpirun(2, "run", small_config, "--out", "r.h5", *words, **faults)
    assert_all_ended(tmp_path)
    assert done.returncode != 0
    found = peek(tmp_path / "r.h5")
    assert found["status"] == "running"
    assert 3 <= found["rounds"] < 8
    assert fedmpi_cli("resume", "r.h5").returncode == 0
    assert fedmpi_cli("run", small_config, "--out", "whole.h5", *words).returncode == 0
    runs = [fedmpi.load_run(tmp_path / name) for name in ("r.h5", "whole.h5")]
    assert runs[0].train["round"].tolist() == list(range(8))
    assert first_difference(*runs) is None


def test_divergence_has_its_own_status(mpirun, small_config, tmp_path):
    """A non-finite update stops the run with status 3, names the client, and keeps the results."""
    done = mpirun(
        2, "run", small_config, "--out", "r.h5", *FAULTY,
        FEDMPI_TEST_RANK="1", FEDMPI_TEST_FAULT="nan"
    )  # fmt: skip
    assert_all_ended(tmp_path)
    assert done.returncode == 3, done.stderr
    assert "diverged in round 0: client 3 (rank 1)" in done.stdout
    with h5py.File(tmp_path / "r.h5") as file:
        assert file.attrs["status"] == "diverged"
        assert file["eval/round"][()].tolist() == [0]


def test_a_rate_that_is_too_large_diverges(fedmpi_cli, tmp_path):
    """Divergence by a large rate is found in the round it happens; the model before it is kept."""
    (tmp_path / "c.toml").write_text(
        '[run]\nnum_rounds = 500\n[data]\ndataset = "quadratic"\ncenters = [[1.0], [2.0]]\n'
        '[model]\nname = "quadratic"\n[algorithm]\nlocal_lr = 100.0\nlocal_steps = 2\n'
    )
    done = fedmpi_cli("run", "c.toml", "--out", "r.h5")
    assert done.returncode == 3
    assert "Try a local_lr below 100" in done.stdout
    with h5py.File(tmp_path / "r.h5") as file:
        assert file["train/round"].shape[0] > 0
        assert abs(file["model/global_params"][0]) < float("inf")


def test_a_model_that_fails_on_one_rank_only(mpirun, small_config, tmp_path):
    """An error that one rank meets at start is told once, and all leave with status 2."""
    done = mpirun(
        3, "run", small_config, "--out", "r.h5",
        "--set", "model.name=tests.support.user_code:model_that_fails_on_one_rank",
        FEDMPI_TEST_RANK="2"
    )  # fmt: skip
    assert_all_ended(tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("weights.pt") == 1
    assert "Traceback" not in done.stderr


def test_an_availability_that_differs_by_rank_is_refused(mpirun, small_config, tmp_path):
    """Ranks that see other participants are told so, instead of training apart."""
    done = mpirun(
        2, "run", small_config, "--out", "r.h5", "--set", "participation.selection=all",
        "--set", "participation.availability=tests.support.user_code:differs_by_rank",
        FEDMPI_TEST_RANK="1"
    )  # fmt: skip
    assert_all_ended(tmp_path)
    assert done.returncode == 2
    assert "disagree on who takes part" in done.stderr


def test_a_broken_config_under_mpi(mpirun, small_config):
    """All ranks leave with status 2 and the report is printed once."""
    done = mpirun(3, "run", small_config, "--out", "r.h5", "--set", "algorithm.amplfy_every=3")
    assert done.returncode == 2
    assert done.stderr.count("algorithm.amplfy_every: unknown key; did you mean amplify_every?") == 1
    assert "Traceback" not in done.stderr


def test_silent_singletons_are_refused(fedmpi_cli, small_config, tmp_path):
    """SLURM's tasks that MPI does not see as one world: status 2, the remedy, no file."""
    done = fedmpi_cli("run", small_config, "--out", "r.h5", SLURM_NTASKS="4")
    assert done.returncode == 2
    assert "srun --mpi=pmix" in done.stderr
    assert not (tmp_path / "r.h5").exists()
    done = fedmpi_cli("run", small_config, "--out", "r.h5", SLURM_NTASKS="4", FEDMPI_ALLOW_SINGLETON="1")
    assert done.returncode == 0, done.stderr


def test_results_are_not_overwritten(fedmpi_cli, small_config, tmp_path):
    """A second run into the same file needs --force; a failing start leaves no file behind."""
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0
    before = (tmp_path / "r.h5").read_bytes()
    done = fedmpi_cli("run", small_config, "--out", "r.h5")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (tmp_path / "r.h5").read_bytes() == before
    assert fedmpi_cli("run", small_config, "--out", "r.h5", "--force").returncode == 0
    done = fedmpi_cli("run", small_config, "--out", "new.h5", "--set", "data.dataset=missing.h5")
    assert done.returncode == 2
    assert not (tmp_path / "new.h5").exists()


def test_missing_data_name_the_command(fedmpi_cli, small_config):
    """On a machine without the data the error says what to run where."""
    done = fedmpi_cli(
        "run", small_config, "--out", "r.h5", "--set", "data.dataset=cifar-10", "--set", "data.root=nowhere"
    )
    assert done.returncode == 2
    assert "fedmpi data prepare cifar-10 --root nowhere" in done.stderr


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB; where it cannot be mounted the test is skipped, and counted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


LARGE = ("--set", "run.record_params_every=1", "--set", "run.num_rounds=3000",
         "--set", "run.checkpoint_every=10")  # fmt: skip


def test_a_full_disk_keeps_what_was_written(mpirun, small_config, small_disk):
    """The disk fills up in mid-run: status 1, the reason, a readable file; resume once there is room."""
    done = mpirun(2, "run", small_config, "--out", small_disk / "r.h5", *LARGE)
    assert done.returncode == 1
    assert "No space left on device; what was written before is kept" in done.stderr
    assert "Traceback" not in done.stderr
    run = fedmpi.load_run(small_disk / "r.h5")
    assert run.status == "running"
    assert len(run.params[0]) > 0
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    rounds = f"run.num_rounds={len(run.train) + 10}"
    done = mpirun(1, "resume", small_disk / "r.h5", "--set", rounds)
    assert done.returncode == 0, done.stderr
    assert fedmpi.load_run(small_disk / "r.h5").train["round"].tolist() == list(range(len(run.train) + 10))


def test_a_folder_that_vanishes(mpirun, small_config, tmp_path):
    """The result folder is removed in mid-run: status 1 and the reason, within seconds."""
    folder = tmp_path / "gone"
    removed_at = []
    remove = threading.Thread(target=_remove_when_there, args=(folder, removed_at))
    remove.start()
    done = mpirun(2, "run", small_config, "--out", folder / "r.h5", *LARGE)
    ended_at = time.monotonic()
    remove.join()
    assert ended_at - removed_at[0] < SECONDS
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "No such file or directory" in done.stderr


def _remove_when_there(folder, removed_at: list[float]) -> None:
    wait_until((folder / "r.h5").exists, "a result file")
    folder.rename(folder.with_name("elsewhere"))
    removed_at.append(time.monotonic())


def test_two_jobs_on_one_file(fedmpi_cli, small_config, tmp_path):
    """A second job on the same output is refused while the first one writes."""
    with writer_lock(tmp_path / "r.h5"):
        done = fedmpi_cli("run", small_config, "--out", "r.h5", "--force")
        assert done.returncode == 2
        assert f"another job is writing this file (process {os.getpid()} on " in done.stderr
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0


def test_resume_refuses_what_would_be_dishonest(fedmpi_cli, small_config, tmp_path):
    """Another seed, model or data when a run goes on: status 2 with the reason; the file stays."""
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0
    before = (tmp_path / "r.h5").read_bytes()
    done = fedmpi_cli("resume", "r.h5", "--set", "algorithm.local_lr=0.5", "--set", "run.num_rounds=9")
    assert done.returncode == 2
    assert "algorithm.local_lr=0.5: cannot change in a resumed run" in done.stderr
    assert (tmp_path / "r.h5").read_bytes() == before


def test_resume_notices_other_data(fedmpi_cli, small_config, tmp_path):
    """The data file changed between two legs: status 2, and it is said what changed."""
    schedule = tmp_path / "q.csv"
    schedule.write_text("round,client,weight\n0,1,0.5\n")
    words = ("--set", "participation.selection=schedule", "--set", f"participation.schedule={schedule}")
    assert fedmpi_cli("run", small_config, "--out", "r.h5", *words).returncode == 0
    schedule.write_text("round,client,weight\n0,2,0.5\n")
    done = fedmpi_cli("resume", "r.h5", "--set", "run.num_rounds=9")
    assert done.returncode == 2
    assert "the run was made with schedule" in done.stderr


def test_resume_of_a_done_and_of_a_foreign_file(fedmpi_cli, small_config, tmp_path):
    """A finished run says so with status 0; what is no run is refused with status 2."""
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0
    done = fedmpi_cli("resume", "r.h5")
    assert done.returncode == 0
    assert "extend it with --set run.num_rounds=..." in done.stdout
    (tmp_path / "x.h5").write_text("hello")
    done = fedmpi_cli("resume", "x.h5")
    assert done.returncode == 2
    assert "not a readable HDF5 file" in done.stderr


def test_a_damaged_checkpoint_is_passed_over(fedmpi_cli, small_config, tmp_path):
    """The newest checkpoint is damaged: it is reported, the older one used, no round lost or twice."""
    assert (
        fedmpi_cli("run", small_config, "--out", "r.h5", "--set", "run.checkpoint_every=2").returncode == 0
    )
    newest = tmp_path / "r.h5.checkpoint-6"
    newest.write_bytes(newest.read_bytes()[:-100])
    done = fedmpi_cli("resume", "r.h5", "--set", "run.num_rounds=8")
    assert done.returncode == 0, done.stderr
    assert "r.h5.checkpoint-6: not a checkpoint, or truncated; going back to an older one" in done.stdout
    run = fedmpi.load_run(tmp_path / "r.h5")
    assert run.train["round"].tolist() == list(range(8))


def test_code_named_by_somebody_elses_file_is_not_run(fedmpi_cli, small_config, tmp_path):
    """A result file of another account that names a function needs --trust before anything is imported."""
    (tmp_path / "evil.py").write_text("open('executed', 'w')\nfrom torch import nn\n"
                                      "def model(input_shape, num_classes):\n    return nn.Sequential("
                                      "nn.Flatten(), nn.Linear(36, num_classes))\n")  # fmt: skip
    words = ("--set", "model.name=evil:model")
    theirs, mine = str(tmp_path / "theirs"), str(tmp_path / "mine")
    assert fedmpi_cli("run", small_config, "--out", "r.h5", *words, XDG_CONFIG_HOME=theirs).returncode == 0
    (tmp_path / "executed").unlink()
    more = ("--set", "run.num_rounds=9")
    done = fedmpi_cli("resume", "r.h5", *more, XDG_CONFIG_HOME=mine)
    assert done.returncode == 2
    assert "resume with --trust" in done.stderr
    assert not (tmp_path / "executed").exists()
    assert fedmpi_cli("resume", "r.h5", *more, XDG_CONFIG_HOME=theirs).returncode == 0
    more = ("--set", "run.num_rounds=12")  # the file that was resumed is still theirs
    assert fedmpi_cli("resume", "r.h5", *more, XDG_CONFIG_HOME=theirs).returncode == 0
    more = ("--set", "run.num_rounds=15", "--trust")
    assert fedmpi_cli("resume", "r.h5", *more, XDG_CONFIG_HOME=mine).returncode == 0


def test_verify_finds_where_bits_part(mpirun, small_config):
    """A model that depends on the rank: verify names round, client and parameter, and fails."""
    done = mpirun(
        2, "verify", small_config, "--ranks", "1,2",
        "--set", "model.name=tests.support.user_code:rank_dependent_model"
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"1 and 2 ranks differ: round \d+, the update of client \d+", done.stdout), done.stdout
    assert "parameters differ, first layer.weight[" in done.stdout


def test_a_bad_row_of_a_trace_or_schedule_is_named(mpirun, small_config, tmp_path):
    """On two ranks: exit 2, the file, the line and what is expected, once; nothing is written."""
    (tmp_path / "t.csv").write_text("client,start,end\n0,0,5\n1,7,3\n")
    (tmp_path / "q.csv").write_text("round,client,weight\n0,1,0.5\n0,99,0.5\n")
    for words, message in (
        (("participation.availability=trace", "participation.trace=t.csv"),
         "trace t.csv, line 3: empty interval; expected end > start (client 1, start 7, end 3)"),
        (("participation.selection=schedule", "participation.schedule=q.csv"),
         "schedule q.csv, line 3: no such client; expected 0 to"),
    ):  # fmt: skip
        done = mpirun(2, "run", small_config, "--out", "r.h5", *(f"--set={word}" for word in words))
        assert done.returncode == 2, done.stderr
        assert done.stderr.count(message) == 1
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "r.h5").exists()
