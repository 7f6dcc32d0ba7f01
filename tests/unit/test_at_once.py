"""Runs that show and draw themselves: `run.plot()`, what `load_runs` gives, in words and in notebooks."""

from __future__ import annotations

import pickle
import re
import sys
from types import SimpleNamespace

import matplotlib as mpl
import pandas
import pytest

import fedmpi
from fedmpi.errors import UserError
from tests.support.configs import ROOT
from tests.support.run_files import create_run, finished_run


@pytest.fixture(autouse=True)
def no_window():
    """Nothing is shown; figures are closed."""
    mpl.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture
def folder(tmp_path):
    """Two rates with two seeds each; the larger rate ends with a lower loss."""
    for lr, last in ((0.5, 1.0), (0.25, 1.5)):
        for seed in (1, 2):
            settings = f"run.seed={seed}", f"algorithm.local_lr={lr}"
            finished_run(tmp_path / f"lr-{lr}-{seed}.h5", *settings, losses=(2.0, 1.75, last))
    return tmp_path


def ydata(axis) -> list[list[float]]:
    """The lines of an axis."""
    return [list(line.get_ydata()) for line in axis.get_lines()]


def test_a_run_draws_a_metric(folder):
    """Along rounds or another clock, on axes that are given back; accuracies in percent."""
    run = fedmpi.load_run(folder / "lr-0.5-1.h5")
    axis = run.plot("train_loss")
    assert ydata(axis) == [[2.0, 1.75, 1.0]]
    assert list(axis.get_lines()[0].get_xdata()) == [0, 3, 6]
    assert (axis.get_xlabel(), axis.get_title()) == ("Round", "Training loss (nats per sample)")
    accuracy = run.plot("test_accuracy", x="local-steps")
    assert ydata(accuracy) == [[12.5, 50.0, 75.0]]
    assert list(accuracy.get_lines()[0].get_xdata()) == [0, 12, 24]


def test_a_second_run_on_the_same_axes(folder):
    """It gets the next colour and its own label, and both curves stay in sight."""
    one, other = (fedmpi.load_run(folder / f"lr-{lr}-1.h5") for lr in (0.5, 0.25))
    axis = one.plot("train_loss", label="fast")
    low = axis.get_ylim()[0]
    assert other.plot("train_loss", ax=axis, label="slow") is axis
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["fast", "slow"]
    assert len({line.get_color() for line in axis.get_lines()}) == 2
    assert axis.get_ylim()[0] <= low


def test_all_panels(folder):
    """Without a metric all that `fedmpi plot` draws."""
    assert [axis.get_title()[:8] for axis in fedmpi.load_run(folder / "lr-0.5-1.h5").plot()] == [
        "Training", "Training", "Test acc"
    ]  # fmt: skip


def test_many_runs_draw_a_metric(folder):
    """Seeds are joined, groups are named by what differs; also when the files are gone."""
    table = fedmpi.load_runs(folder)
    for path in folder.glob("*.h5"):
        path.unlink()
    axis = table.plot("train_loss", x="local_steps")
    assert sorted(ydata(axis)) == [[2.0, 1.75, 1.0], [2.0, 1.75, 1.5]]
    assert list(axis.get_lines()[0].get_xdata()) == [0, 12, 24]
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    assert sorted(names) == ["local_lr 0.25", "local_lr 0.5"]
    assert table.plot("test_accuracy", x="seconds").get_lines()[0].get_xdata().tolist() == [0, 0.75, 1.5]
    assert len(table.plot()) == 3
    with pytest.raises(UserError, match=r"x = bytes: .* does not hold it"):
        table.plot("train_loss", x="bytes")
    with pytest.raises(UserError, match="metric test_acuracy: unknown; did you mean test_accuracy"):
        table.plot("test_acuracy")


def test_pandas_draws_as_before(folder):
    """Columns by name, and other kinds of plots, are those of pandas."""
    table = fedmpi.load_runs(folder / "lr-0.5-1.h5")
    assert ydata(table.plot("round", "train_loss")) == [[2.0, 1.75, 1.0]]
    assert ydata(table.plot(x="round", y="test_loss"))[0][0] == 2.5
    assert ydata(table.plot.line("round", "train_loss")) == [[2.0, 1.75, 1.0]]


def test_nothing_to_draw(tmp_path):
    """A run without evaluations says so."""
    create_run(tmp_path / "r.h5")
    with pytest.raises(UserError, match="nothing to draw"):
        fedmpi.load_run(tmp_path / "r.h5").plot("train_loss")


def test_a_line_for_each_run(folder):
    """Name, what differs, seed, status, rounds, and a small curve with the last value of two metrics."""
    text = repr(fedmpi.load_runs(folder))
    first, head, *lines = text.splitlines()
    assert first.startswith("4 runs; 12 rows x ")
    assert head.split() == ["run", "algorithm.local_lr", "seed", "status", "rounds", "train_loss",
                            "test_accuracy"]  # fmt: skip
    assert len(lines) == 4
    assert lines[0].split() == ["small", "0.25", "1", "done", "6", "█▅▁", "1.5000", "▁▅█", "0.7500"]


def test_in_a_notebook(folder):
    """The same as a table in HTML; text from files cannot become markup."""
    finished_run(folder / "z.h5", 'run.name="<b>&"')
    shown = fedmpi.load_runs(folder)._repr_html_()
    assert shown.count("<tr>") == 6
    assert "&lt;b&gt;&amp;" in shown
    assert "<b>" not in shown
    assert len(re.findall("<th>", shown)) == shown.count("</th>")


def test_it_is_a_table_of_pandas(folder):
    """What is selected from it is an ordinary table; it can be sent to other processes."""
    table = fedmpi.load_runs(folder)
    assert isinstance(table, pandas.DataFrame)
    assert type(table.head()) is type(table[table.seed == 1]) is pandas.DataFrame
    again = pickle.loads(pickle.dumps(table))
    assert type(again) is type(table)
    assert again.equals(table)
    assert again.attrs["skipped"] == []
    assert type(fedmpi.load_runs(folder, "train")) is pandas.DataFrame


def test_costs_beside_evaluations(folder):
    """What each run had cost by then; nan where its file does not tell."""
    table = fedmpi.load_runs(folder / "lr-0.5-1.h5")
    assert table.local_steps.tolist() == [0, 12, 24]
    assert table.bytes_sent.isna().all()


def test_costs_with_steps_of_ones_own(tmp_path):
    """Client n takes n + 1 steps; in round t clients t and t + 3 of seven take part."""
    finished_run(tmp_path / "r.h5", "algorithm.local_steps=[1, 2, 3, 4, 5, 6, 7]")
    assert fedmpi.load_runs(tmp_path).local_steps.tolist() == [0, 5 + 7 + 9, 5 + 7 + 9 + 11 + 6 + 8]


def test_many_runs_are_cut(tmp_path):
    """Of many runs the first twenty are shown."""
    for seed in range(22):
        finished_run(tmp_path / f"{seed:02}.h5", f"run.seed={seed}")
    lines = repr(fedmpi.load_runs(tmp_path)).splitlines()
    assert lines[0].startswith("22 runs, the first 20 here;")
    assert len(lines) == 22


def test_other_trackers_get_every_evaluation(folder, monkeypatch):
    """The lines of analysis/README.md that send runs to W&B and MLflow, with stand-ins for both."""
    text = (ROOT / "analysis/README.md").read_text()
    lines = re.search(r"```python to_trackers.py\n(.*?)```", text, re.DOTALL)[1]
    sent = {"wandb": [], "mlflow": []}

    class Tracker:
        def __enter__(self):
            return SimpleNamespace(log=lambda metrics, step: sent["wandb"].append((step, metrics)))

        def __exit__(self, *error):
            pass

    wandb = SimpleNamespace(init=lambda project, name: Tracker())
    log = SimpleNamespace(
        start_run=lambda run_name: Tracker(),
        log_metrics=lambda metrics, step: sent["mlflow"].append((step, metrics)),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", log)
    exec(lines.replace('"runs"', repr(str(folder))), {})
    assert sent["wandb"] == sent["mlflow"]
    assert len(sent["wandb"]) == 12
    assert sent["wandb"][0] == (0, {"train_loss": 2.0, "test_accuracy": 0.125})
