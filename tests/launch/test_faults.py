"""Faults, seen from outside: the job ends in seconds, with a sentence that helps and the right status."""

from __future__ import annotations

import h5py
import pytest

from tests.conftest import ROOT

FAULTY = ("--set", "model.name=tests.launch.plugins:faulty_model", "--set", "run.num_rounds=50",
          "--set", "participation.clients_per_round=7")  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_exception_on_any_rank_ends_the_job(mpirun, small_config, tmp_path, rank):
    """Whichever rank raises, all end; rank, round and client are named; what was written stays."""
    done = mpirun(
        3, "run", small_config, "--out", "r.h5", *FAULTY,
        FEDMPI_TEST_RANK=str(rank), FEDMPI_TEST_FAULT="raise", PYTHONPATH=str(ROOT),
    )  # fmt: skip
    assert done.returncode == 1
    assert f"error on rank {rank} of 3: round " in done.stderr
    assert "client " in done.stderr
    assert "the dog ate the minibatch" in done.stderr
    with h5py.File(tmp_path / "r.h5") as file:
        assert file.attrs["status"] == "running"


def test_a_rank_that_vanishes_ends_the_job(mpirun, small_config):
    """`os._exit` on one rank does not leave the others waiting."""
    done = mpirun(
        2, "run", small_config, "--out", "r.h5", *FAULTY,
        FEDMPI_TEST_RANK="1", FEDMPI_TEST_FAULT="exit", PYTHONPATH=str(ROOT),
    )  # fmt: skip
    assert done.returncode != 0


def test_divergence_has_its_own_status(mpirun, small_config, tmp_path):
    """A non-finite update stops the run with status 3, names the client, and keeps the results."""
    done = mpirun(
        2, "run", small_config, "--out", "r.h5", *FAULTY,
        FEDMPI_TEST_RANK="1", FEDMPI_TEST_FAULT="nan", PYTHONPATH=str(ROOT),
    )  # fmt: skip
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


def test_a_model_that_fails_on_one_rank_only(mpirun, small_config):
    """An error that one rank meets at start is told once, and all leave with status 2."""
    done = mpirun(
        3, "run", small_config, "--out", "r.h5",
        "--set", "model.name=tests.launch.plugins:model_that_fails_on_one_rank",
        FEDMPI_TEST_RANK="2", PYTHONPATH=str(ROOT),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("weights.pt") == 1
    assert "Traceback" not in done.stderr


def test_an_availability_that_differs_by_rank_is_refused(mpirun, small_config):
    """Ranks that see other participants are told so, instead of training apart."""
    done = mpirun(
        2, "run", small_config, "--out", "r.h5", "--set", "participation.selection=all",
        "--set", "participation.availability=tests.launch.plugins:differs_by_rank",
        FEDMPI_TEST_RANK="1", PYTHONPATH=str(ROOT),
    )  # fmt: skip
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
