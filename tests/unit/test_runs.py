"""Many run files as one table: columns, broken files, speed, export, state dicts."""

from __future__ import annotations

import json
import subprocess
import sys

import h5py
import numpy as np
import pandas
import pytest

import fedmpi
from fedmpi.errors import UserError
from fedmpi.storage.files import replacing
from fedmpi.storage.sketch import sparkline
from tests.support.run_files import create_run, finished_run


def broken_file(path):
    """A run file cut in half."""
    data = finished_run(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def test_one_row_for_each_run_and_evaluation(tmp_path):
    """File, name, seed, status, the evaluation and every config value, typed as in the config."""
    (tmp_path / "deep").mkdir()
    finished_run(tmp_path / "a.h5", "run.seed=4", "algorithm.local_lr=0.5", name="x.toml")
    warm = ("warmup.num_rounds=2", "warmup.local_lr=0.1")
    finished_run(tmp_path / "deep" / "b.h5", *warm, losses=(3.0, 1.0), accuracies=(0.5, 0.25))
    table = fedmpi.load_runs(tmp_path)
    assert len(table) == 5
    assert table.file.tolist() == [str(tmp_path / "a.h5")] * 3 + [str(tmp_path / "deep" / "b.h5")] * 2
    assert table.name.tolist()[:3] == ["x"] * 3
    assert table.seed.tolist()[:3] == [4, 4, 4]
    assert set(table.status) == {"done"}
    assert table["round"].tolist() == [0, 3, 6, 0, 6]
    assert table.train_loss.tolist() == [2.0, 1.5, 1.25, 3.0, 1.0]
    assert table["algorithm.local_lr"].tolist() == [0.5] * 3 + [0.05] * 2
    assert table["warmup.num_rounds"].isna().tolist() == [True] * 3 + [False] * 2
    assert table["data.shape"].tolist()[0] == "[1, 6, 6]"
    assert table["model.name"].tolist() == ["logistic"] * 5
    means = table.groupby(["algorithm.local_lr", "round"]).test_accuracy.mean()
    assert means.loc[(0.5, 3)] == 0.5
    assert table.attrs["skipped"] == []


def test_files_lists_and_other_tables(tmp_path):
    """A file, a list of files, a file named twice; other tables by name, an unknown one refused."""
    path = finished_run(tmp_path / "a.h5")
    assert len(fedmpi.load_runs(path)) == len(fedmpi.load_runs([str(path), tmp_path])) == 3
    train = fedmpi.load_runs(path, table="train")
    assert train["round"].tolist() == list(range(6))
    assert train["algorithm.local_steps"].tolist() == [2] * 6
    with pytest.raises(UserError, match="accepted: train, eval"):
        fedmpi.load_runs(path, table="evals")


def test_broken_files_are_left_out_with_a_warning(tmp_path):
    """A half-written file, text and another HDF5 file are named; the rest is there."""
    finished_run(tmp_path / "a.h5")
    broken_file(tmp_path / "b.h5")
    (tmp_path / "c.h5").write_text("no run")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"] = 1
    with pytest.warns(UserWarning, match=r"3 file\(s\) left out") as seen:
        table = fedmpi.load_runs(tmp_path)
    assert len(table) == 3
    assert all(name in str(seen[0].message) for name in ("b.h5", "c.h5", "d.h5"))
    assert len(table.attrs["skipped"]) == 3


def test_nothing_to_read_is_a_user_error(tmp_path):
    """No folder, an empty folder, no file, only broken files: a sentence each."""
    with pytest.raises(UserError, match="no such file"):
        fedmpi.load_runs(tmp_path / "nowhere.h5")
    with pytest.raises(UserError, match=r"holds no \.h5 file"):
        fedmpi.load_runs(tmp_path)
    with pytest.raises(UserError, match="no run file given"):
        fedmpi.load_runs([])
    broken_file(tmp_path / "b.h5")
    with pytest.raises(UserError, match="no run could be read"):
        fedmpi.load_runs(tmp_path)


def test_runs_going_on_and_older_files(tmp_path):
    """A run without evaluations adds no row; a column that older files lack is nan."""
    create_run(tmp_path / "begun.h5")
    path = finished_run(tmp_path / "old.h5")
    with replacing(path, copy=True) as file:
        del file["train/idle_time_s"]
    assert len(fedmpi.load_runs(tmp_path)) == 3
    assert fedmpi.load_run(path).train.idle_time_s.isna().all()
    assert len(fedmpi.load_runs(tmp_path / "begun.h5")) == 0


def test_a_run_shows_itself_in_a_few_lines(tmp_path):
    """In a notebook: name, method, seed, status, rounds, a curve and the last value of each metric, what
    the config sets away from its defaults.
    """
    run = fedmpi.load_run(finished_run(tmp_path / "a.h5"))
    first, *metrics = repr(run).splitlines()
    loss, last = run.eval.train_loss, run.eval.train_loss.iloc[-1]
    assert first.startswith(f"Run {run.name!r}: fedavg, seed 1, done, {len(run.train)} of ")
    assert first.endswith(f"({run.path})")
    assert metrics[0].split() == ["train_loss", sparkline(loss.to_numpy(), 30), f"{last:.4f}"]
    settings = " ".join(line.strip() for line in metrics[4:])
    assert settings.startswith("local_lr 0.05, local_steps 2, batch_size 8, selection uniform, ")
    assert settings.endswith("eval_every 3")


def test_a_run_without_evaluations_shows_itself_too(tmp_path):
    """No curves, while it has none."""
    create_run(tmp_path / "begun.h5")
    assert "test_loss" not in repr(fedmpi.load_run(tmp_path / "begun.h5"))


def test_state_dict(tmp_path):
    """Parameters as tensors of the run's precision, by name; torch is loaded only then."""
    import torch

    run = fedmpi.load_run(finished_run(tmp_path / "a.h5"))
    state = run.state_dict()
    assert list(state) == ["weight", "bias"]
    assert state["weight"].tolist() == [[10, 11], [12, 13]]
    assert state["bias"].dtype == torch.float32
    double = fedmpi.load_run(finished_run(tmp_path / "b.h5", "run.dtype=float64"))
    assert double.state_dict()["bias"].dtype == torch.float64
    code = "import sys, fedmpi; fedmpi.load_runs(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# Export.


def test_export_to_csv_and_json(tmp_path, fedmpi_cli):
    """What is written is what load_runs gives, but for rounding; broken files are named."""
    losses = (2 / 3, np.nan, 1e-9 / 3)
    finished_run(tmp_path / "runs.h5", losses=losses)
    broken_file(tmp_path / "broken.h5")
    done = fedmpi_cli("export", "runs.h5", "broken.h5", "--out", "new/t.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "new/t.csv: 3 rows of 1 run(s)\n"
    assert "left out: run file broken.h5" in done.stderr
    back = pandas.read_csv(tmp_path / "new" / "t.csv")
    np.testing.assert_allclose(back.train_loss, losses, rtol=1e-15)
    done = fedmpi_cli("export", "runs.h5", "--out", "t.json", "--table", "clients")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "t.json").read_text())
    assert [row["size"] for row in rows] == list(range(60, 67))


def test_export_to_parquet(tmp_path, fedmpi_cli):
    """With pyarrow the table comes back; without it the error names what to install."""
    finished_run(tmp_path / "r.h5")
    done = fedmpi_cli("export", "r.h5", "--out", "t.parquet")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        assert done.returncode == 2
        assert "pip install pyarrow" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert pandas.read_parquet(tmp_path / "t.parquet").train_loss.tolist() == [2.0, 1.5, 1.25]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.h5", "--out", "t.csv"], "no such file"),
        (["r.h5", "--out", "t.xlsx"], "accepted: .csv, .json, .parquet"),
        (["r.h5", "--out", "r.h5/t.csv"], "cannot write there"),
        (["r.h5", "--out", "t.csv", "--table", "x"], "table 'x': unknown"),
    ],
)
def test_bad_exports_are_a_sentence_and_status_2(tmp_path, fedmpi_cli, arguments, message):
    """No file, another format, a place that cannot be written, an unknown table."""
    finished_run(tmp_path / "r.h5")
    done = fedmpi_cli("export", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
