"""Files that version 0.1 wrote are read, resumed and continued, with the bits that version 0.1 gave.

tests/data/version-0.1 holds scaffold.h5 (4 rounds on 2 ranks, with its checkpoint), scaffold-8-rounds.h5
(the same run over all 8 rounds) and sweep/ (the first of the four runs of sweep.toml).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedmpi
from tests.golden.record import machine, recorded_machine

DATA = Path(__file__).resolve().parents[1] / "data" / "version-0.1"
COLUMNS = {
    "train": [
        "round", "participants", "weighted_sum_norm", "is_amplification", "wall_time_s", "compute_time_s",
        "comm_time_s",
    ],
    "eval": ["round", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "wall_time_s"],
    "participation": ["round", "client", "weight"],
    "clients": ["size", "majority_label", "rank"],
}  # fmt: skip
METRICS = ["train_loss", "train_accuracy", "test_loss", "test_accuracy"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the files, in the folder that commands run in."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(autouse=True)
def by_libraries(monkeypatch):
    """Dense layers by the libraries that version 0.1 used, whose bits machine code does not have."""
    monkeypatch.setattr("fedmpi.models.engines.may_compile", lambda model: False)
    monkeypatch.setattr("fedmpi.models.engines.forward.may_compute_outputs", lambda model, data: False)
    return monkeypatch


def assert_done(done) -> None:
    """The command ended well."""
    assert done.returncode == 0, done.stdout + done.stderr


def assert_same(run: fedmpi.Run, old: fedmpi.Run, *, exact: bool = True) -> None:
    """The model bit for bit where CPU and libraries are those that the files were made with, else nearly.

    Metrics nearly: since version 0.2 an evaluation adds up in another order.
    """
    assert len(run.train) == len(old.train)
    columns = ["round", "client", "weight"]
    assert run.participation[columns].equals(old.participation[columns])
    np.testing.assert_allclose(run.global_params, old.global_params, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run.eval[METRICS], old.eval[METRICS], rtol=1e-6)
    if exact and machine() == recorded_machine():
        np.testing.assert_array_equal(run.global_params, old.global_params)
        assert run.train["weighted_sum_norm"].equals(old.train["weighted_sum_norm"])


def bytes_of(paths: list[Path]) -> dict[Path, tuple[bytes, int]]:
    """What is in the files, and when it was written."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.mark.parametrize(("name", "rounds", "ranks"), [("scaffold", 4, 2), ("scaffold-8-rounds", 8, None)])
def test_a_result_file_is_read(name, rounds, ranks):
    """All tables with their published columns, the config, the status and the model."""
    run = fedmpi.load_run(DATA / f"{name}.h5")
    assert run.attributes["creator"] == "fedmpi 0.1.0"
    assert run.status == "done"
    assert run.config["run"]["num_rounds"] == rounds
    assert run.config["algorithm"]["name"] == "scaffold"
    for table, columns in COLUMNS.items():
        assert [c for c in columns if c not in getattr(run, table).columns] == [], table
    assert run.train["round"].tolist() == list(range(rounds))
    assert run.eval["round"].tolist() == list(range(0, rounds + 1, 2))
    assert len(run.participation) == run.train["participants"].sum() == 3 * rounds
    assert run.clients["size"].sum() == 140
    assert ranks is None or run.attributes["num_ranks"] == ranks == run.clients["rank"].nunique()
    assert sum(value.size for value in run.parameters().values()) == 100
    assert np.isfinite(run.global_params).all()
    assert run.eval["train_loss"].is_monotonic_decreasing


def test_keys_that_came_later_have_the_values_that_were_in_effect(folder):
    """Runs of both versions, equal in all else, belong together: tables and groups see no difference."""
    run = fedmpi.load_run(folder / "scaffold.h5")
    assert "deterministic" not in run.attributes["config"]
    assert (run.config["run"]["deterministic"], run.config["run"]["tf32"]) == (True, False)
    table = fedmpi.load_runs(folder / "scaffold.h5")
    assert set(table["run.deterministic"]) == {True}
    assert set(table["run.tf32"]) == {False}


def test_values_that_version_01_wrote():
    """Numbers as they stand in the file: a reader that mixes columns up is found out."""
    run = fedmpi.load_run(DATA / "scaffold-8-rounds.h5")
    last = run.eval.iloc[-1]
    assert last["train_loss"] == pytest.approx(2.014355, abs=1e-6)
    assert last["test_loss"] == pytest.approx(2.076425, abs=1e-6)
    assert last["test_accuracy"] == 0.3
    assert run.participation["client"].tolist()[:6] == [1, 2, 6, 3, 5, 6]
    assert run.participation["weight"].unique().tolist() == [1 / 3]
    assert run.clients["size"].tolist() == [30, 15, 26, 14, 25, 14, 16]
    assert run.clients["majority_label"].tolist() == [0, 2, 3, 5, 7, 8, 9]


def test_info_of_a_result_file(fedmpi_cli, folder):
    """`fedmpi info` says what it is and who wrote it."""
    done = fedmpi_cli("info", folder / "scaffold.h5")
    assert_done(done)
    assert "done, 4 of 4 rounds" in done.stdout
    assert "by fedmpi 0.1.0" in done.stdout
    assert "train 4, eval 3, participation 12, clients 7" in done.stdout


def test_a_run_is_resumed_with_the_bits_of_version_01(fedmpi_cli, folder):
    """Half of a run by version 0.1 on two ranks and half by this one on one rank are its whole run."""
    assert_done(fedmpi_cli("resume", folder / "scaffold.h5", "--set", "run.num_rounds=8"))
    run, whole = (fedmpi.load_run(folder / f"{name}.h5") for name in ("scaffold", "scaffold-8-rounds"))
    assert len(run.train) == 8
    assert_same(run, whole)
    legs = json.loads(run.attributes["legs"])
    assert [leg["round"] for leg in legs] == [0, 4], "it started again from round 0"
    assert run.attributes["run_id"] == fedmpi.load_run(DATA / "scaffold.h5").attributes["run_id"]


def test_machine_code_goes_on_with_a_run_of_version_01(fedmpi_cli, folder, by_libraries):
    """As this version does it: nearly the same, with the same participants."""
    by_libraries.undo()
    assert_done(fedmpi_cli("resume", folder / "scaffold.h5", "--set", "run.num_rounds=8"))
    run, whole = (fedmpi.load_run(folder / f"{name}.h5") for name in ("scaffold", "scaffold-8-rounds"))
    assert_same(run, whole, exact=False)


def test_the_selection_of_a_checkpoint_is_used(fedmpi_cli, folder):
    """Resumed to round 14: from round 8 on it matters who waits in the queue of the checkpoint."""
    longer = ("--set", "run.num_rounds=14")
    assert_done(fedmpi_cli("resume", folder / "scaffold.h5", *longer))
    assert_done(fedmpi_cli("run", folder / "scaffold.toml", "--out", folder / "whole.h5", *longer))
    assert_same(*(fedmpi.load_run(folder / f"{name}.h5") for name in ("scaffold", "whole")))


def test_the_config_gives_the_bits_of_version_01(fedmpi_cli, folder):
    """The same config, run from the start by this version, is the run of version 0.1."""
    assert_done(fedmpi_cli("run", folder / "scaffold.toml", "--out", folder / "again.h5"))
    run, old = (fedmpi.load_run(folder / f"{name}.h5") for name in ("again", "scaffold"))
    assert_same(run, old)


def test_a_sweep_is_continued(fedmpi_cli, folder):
    """The three runs that are left are done; the first is not touched."""
    out = folder / "sweep"
    before = bytes_of([*out.glob("fedavg_seed-1.*"), *(out / ".sweep").glob("fedavg_seed-1.*")])
    assert len(before) == 4
    assert len(list(out.glob("*.h5"))) == 1
    done = fedmpi_cli("sweep", folder / "sweep.toml", "--out", out)
    assert_done(done)
    assert bytes_of(list(before)) == before
    names = {"fedavg_seed-1", "fedavg_seed-2", "scaffold_seed-1", "scaffold_seed-2"}
    assert {path.stem for path in out.glob("*.h5")} == names
    assert "4/4 runs: 4 done" in done.stdout
    assert_same(fedmpi.load_run(out / "scaffold_seed-1.h5"), fedmpi.load_run(DATA / "scaffold.h5"))

    table = fedmpi.load_runs(out)
    assert set(table["file"].map(lambda name: Path(name).stem)) == names
    assert (table["status"] == "done").all()
    assert table.groupby("file")["round"].apply(list).map(lambda rounds: rounds == [0, 2, 4]).all()


def test_the_runs_of_a_sweep_are_read(folder):
    """`load_runs` reads a folder that version 0.1 left."""
    table = fedmpi.load_runs(folder / "sweep")
    assert table["round"].tolist() == [0, 2, 4]
    assert table["algorithm.name"].unique().tolist() == ["fedavg"]
    assert table["seed"].unique().tolist() == [1]
