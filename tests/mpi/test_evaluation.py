"""When what is evaluated, on how much, and that it changes nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.experiments.lifecycle import start
from fedmpi.mpi import Comm
from fedmpi.results.compare import first_difference
from fedmpi.simulation import evaluate as evaluation
from fedmpi.storage.reader import Run, load_run
from tests.support.configs import SMALL

pytestmark = pytest.mark.mpi


def results(comm: Comm, path: Path, *settings: str) -> Run | None:
    """The results of the small experiment; on rank 0."""
    config = validate.parse(SMALL, "small.toml", ["run.num_rounds=7", *settings])
    prepared = start(comm, config, path)
    prepared.simulation.run(prepared.file)
    comm.barrier()
    return load_run(path) if comm.is_root else None


def test_the_training_set_has_a_cadence_of_its_own(comm, mpi_tmp_path):
    """Rows where either is due, nan where one is not, both at the end; and the same x."""
    both = results(comm, mpi_tmp_path / "both.h5", "run.eval_every=1")
    apart = results(comm, mpi_tmp_path / "apart.h5", "run.eval_every=2", "run.eval_train_every=3")
    if not comm.is_root:
        return
    rows = apart.eval.set_index("round")
    assert rows.index.tolist() == [0, 2, 3, 4, 6, 7]
    assert rows.index[rows.train_loss.notna()].tolist() == [0, 3, 6, 7]
    assert rows.index[rows.test_loss.notna()].tolist() == [0, 2, 4, 6, 7]
    for column in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        seen = rows[column].dropna()
        np.testing.assert_array_equal(seen, both.eval.set_index("round")[column][seen.index])


def test_a_subset_of_the_training_set_is_evaluated_the_same_on_any_ranks(comm, mpi_tmp_path):
    """`eval_train_samples` changes the training figures only, and all ranks together agree with one."""
    settings = ("run.eval_every=3", "run.eval_train_samples=300")
    subset = results(comm, mpi_tmp_path / "subset.h5", *settings)
    whole = results(comm, mpi_tmp_path / "whole.h5", "run.eval_every=3")
    first = comm.first(1)
    alone = results(first, mpi_tmp_path / "alone.h5", *settings) if first else None
    comm.barrier()
    if not comm.is_root:
        return
    np.testing.assert_array_equal(subset.eval.test_loss, whole.eval.test_loss)
    np.testing.assert_array_equal(subset.eval.train_loss, alone.eval.train_loss)
    assert (subset.eval.train_loss != whole.eval.train_loss).all()
    np.testing.assert_allclose(subset.eval.train_loss, whole.eval.train_loss, rtol=0.3)
    assert subset.config["run"]["eval_train_samples"] == 300


def test_an_unchanged_model_is_not_evaluated_again(comm, mpi_tmp_path, monkeypatch):
    """While clients wait x stays: each row of /eval is there, the sets are passed over once for each x."""
    passes = []
    once = evaluation._sums
    monkeypatch.setattr(evaluation, "_sums", lambda *args: (passes.append(1), once(*args))[1])
    wait = "algorithm.name=wait-minibatch", "algorithm.wait_rounds=3"
    run = results(comm, mpi_tmp_path / "wait.h5", "run.eval_every=1", *wait)
    assert len(passes) == 2 * 3  # two sets; x_0, and one for each of two updates
    if comm.is_root:
        assert run.eval["round"].tolist() == list(range(8))
        assert run.eval.train_loss.nunique() == 3
        changed = np.flatnonzero(run.train.weighted_sum_norm) + 1
        assert (np.flatnonzero(np.diff(run.eval.train_loss)) + 1).tolist() == changed.tolist()


def test_idle_time_is_what_the_slowest_rank_leaves_to_the_others(comm, mpi_tmp_path, monkeypatch):
    """While one of R ranks sleeps, the others wait: in the mean (R - 1) / R of its time, or less."""
    monkeypatch.setenv("FEDMPI_TEST_SLEEP", "0.03" if comm.rank == comm.size - 1 else "0")
    slow = "model.name=tests.support.user_code:slow_model"
    run = results(comm, mpi_tmp_path / "idle.h5", slow, "participation.clients_per_round=7")
    if not comm.is_root:
        return
    idle, compute = run.train.idle_time_s, run.train.compute_time_s
    most = compute * (comm.size - 1) / comm.size
    assert compute.min() > 2 * 0.03  # a client's two steps
    assert (idle <= most + 1e-6).all()
    assert idle.median() >= 0.5 * most.median()


def test_before_and_after_an_amplification_all_ranks_evaluate(comm, mpi_tmp_path):
    """Rank 0 amplifies and the others get x from it: it is another vector for all of them."""
    settings = (
        "run.eval_every=1", "run.eval_at_amplification=true", "algorithm.amplify_every=2",
        "algorithm.amplification=2.0",
    )  # fmt: skip
    together = results(comm, mpi_tmp_path / "together.h5", *settings)
    first = comm.first(1)
    alone = results(first, mpi_tmp_path / "alone.h5", *settings) if first else None
    comm.barrier()
    if not comm.is_root:
        return
    assert first_difference(together, alone) is None
    before, after = (together.amplification[together.amplification.is_after == k] for k in (False, True))
    assert len(before) == len(after) == 3
    assert (before.train_loss.to_numpy() != after.train_loss.to_numpy()).all()
    rows = together.eval.set_index("round").train_loss
    np.testing.assert_array_equal(after.train_loss, rows[after["round"]])
