"""Pictures of runs: files, curves, labels, moving averages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmpi.errors import UserError
from fedmpi.plots import distinguishing_labels, moving_average, plot
from fedmpi.storage.reader import load_run
from tests.unit.run_files import create_run, finished_run


@pytest.fixture
def figures(monkeypatch):
    """The figures that were saved, still whole."""
    from matplotlib.figure import Figure

    saved = []
    save = Figure.savefig

    def savefig(self, *arguments, **options):
        saved.append(self)
        return save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def curve(axis) -> tuple[list, list]:
    """Rounds and values of an axis's first line."""
    line = axis.get_lines()[0]
    return list(line.get_xdata()), list(line.get_ydata())


# Files.


@pytest.mark.parametrize(
    ("suffix", "begin"), [(".png", b"\x89PNG\r\n\x1a\n"), (".pdf", b"%PDF-"), (".svg", b"<?xml")]
)
def test_formats(tmp_path, capsys, suffix, begin):
    """PNG, PDF and SVG files are written, folders made, and the name printed."""
    target = tmp_path / "new" / f"figure{suffix}"
    assert plot([str(finished_run(tmp_path / "run.h5"))], str(target)) == 0
    assert target.read_bytes().startswith(begin)
    assert target.stat().st_size > 5000
    assert capsys.readouterr().out == f"{target}\n"


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.h5", "run.h5"])
def test_other_formats_are_refused(tmp_path, name):
    """Another suffix, or none, is refused with the accepted ones; no file is touched."""
    run = finished_run(tmp_path / "run.h5")
    before = run.read_bytes()
    with pytest.raises(UserError, match=r"accepted: \.png, \.pdf, \.svg"):
        plot([str(run)], str(tmp_path / name))
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    assert run.read_bytes() == before


def test_bad_inputs_and_targets_are_user_errors(tmp_path):
    """A file that is no run, and a place where one cannot write, are UserErrors."""
    run = finished_run(tmp_path / "run.h5")
    (tmp_path / "text.txt").write_text("no run")
    with pytest.raises(UserError, match="not a readable HDF5 file"):
        plot([str(run), str(tmp_path / "text.txt")], str(tmp_path / "figure.png"))
    with pytest.raises(UserError, match="cannot write there"):
        plot([str(run)], str(tmp_path / "text.txt" / "figure.png"))


def test_plotting_needs_no_torch(tmp_path):
    """`fedmpi plot` loads neither torch nor mpi4py."""
    run = finished_run(tmp_path / "run.h5")
    code = (
        "import sys; from fedmpi.plots import plot; plot([sys.argv[1]], sys.argv[2]); "
        "print([name for name in ('torch', 'mpi4py') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, run, tmp_path / "figure.svg"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.splitlines()[1:] == ["[]"], result.stderr


# Curves.


def test_curves(tmp_path, figures):
    """Left is the training loss, right the test accuracy in percent, over rounds, one line for each run."""
    first = finished_run(tmp_path / "a.h5", name="first.toml")
    second = finished_run(
        tmp_path / "b.h5", name="second.toml", losses=(3.0, 2.0, 1.0), accuracies=(0, 0.25, 1)
    )
    plot([str(first), str(second)], str(tmp_path / "figure.png"))
    (figure,) = figures
    loss, accuracy = figure.axes
    assert [line.get_label() for line in loss.get_lines()] == ["first", "second"]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["first", "second"]
    assert curve(loss) == ([0, 3, 6], [2.0, 1.5, 1.25])
    assert curve(accuracy) == ([0, 3, 6], [12.5, 50.0, 75.0])
    assert list(accuracy.get_lines()[1].get_ydata()) == [0.0, 25.0, 100.0]
    assert loss.get_title() == "Training loss (nats per sample)"
    assert accuracy.get_title() == "Test accuracy (%)"
    assert loss.get_xlabel() == accuracy.get_xlabel() == "Round"
    colours = [line.get_color() for line in loss.get_lines()]
    assert colours[0] != colours[1]
    assert colours == [line.get_color() for line in accuracy.get_lines()]


def test_no_figure_is_left_open(tmp_path):
    """Figures are closed after they are saved."""
    from matplotlib import pyplot

    pyplot.close("all")
    plot([str(finished_run(tmp_path / "run.h5"))], str(tmp_path / "figure.png"))
    assert pyplot.get_fignums() == []


def test_curves_are_moving_averages(tmp_path, figures):
    """A curve of 100 evaluations is averaged over 3 % of them, three."""
    losses = np.random.default_rng(1).random(100)
    run = finished_run(tmp_path / "run.h5", losses=losses, accuracies=losses)
    plot([str(run)], str(tmp_path / "figure.png"))
    seen = np.array(curve(figures[0].axes[0])[1])
    np.testing.assert_allclose(seen[1:-1], (losses[:-2] + losses[1:-1] + losses[2:]) / 3)
    np.testing.assert_allclose(seen[[0, -1]], [losses[:2].mean(), losses[-2:].mean()])


def test_problem_without_labels_has_one_panel(tmp_path, figures):
    """Where there is no accuracy, as in the quadratic problem, only the loss is drawn."""
    run = finished_run(tmp_path / "run.h5", accuracies=[np.nan] * 3)
    plot([str(run)], str(tmp_path / "figure.png"))
    assert [axis.get_title() for axis in figures[0].axes] == ["Training loss (nats per sample)"]


def test_end_of_warm_up_is_marked(tmp_path, figures):
    """A dotted line marks the end of the warm-up."""
    run = finished_run(tmp_path / "run.h5", "warmup.num_rounds=2", "warmup.local_lr=0.1")
    plot([str(run)], str(tmp_path / "figure.png"))
    for axis in figures[0].axes:
        assert list(axis.get_lines()[1].get_xdata()) == [2, 2]


def test_run_without_evaluations(tmp_path):
    """A run that has only begun can be drawn."""
    create_run(tmp_path / "run.h5")
    plot([str(tmp_path / "run.h5")], str(tmp_path / "figure.png"))
    assert (tmp_path / "figure.png").exists()


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e300])
def test_one_bad_value_does_not_hide_the_rest(tmp_path, figures, bad):
    """After an infinite, missing or enormous loss the curve goes on."""
    run = finished_run(tmp_path / "run.h5", losses=(2.0, bad, 1.5, 1.25), accuracies=(0.1, 0.1, 0.5, 0.75))
    plot([str(run)], str(tmp_path / "figure.png"))
    values = curve(figures[0].axes[0])[1]
    assert (values[0], values[2], values[3]) == (2.0, 1.5, 1.25)


# Moving average.


@pytest.mark.parametrize(
    ("values", "window", "expected"),
    [
        ([0, 3, 6], 3, [1.5, 3, 4.5]),
        ([1, 2, 4, 8, 16], 1, [1, 2, 4, 8, 16]),
        ([1, 2, 4, 8, 16], 3, [1.5, 7 / 3, 14 / 3, 28 / 3, 12]),
        ([1, 2, 4, 8, 16], 99, [6.2] * 5),
        ([], 3, []),
        ([5], 3, [5]),
        ([1, np.inf, 3], 1, [1, np.inf, 3]),
        ([1e20, 1, 3], 1, [1e20, 1, 3]),
    ],
)
def test_moving_average_by_hand(values, window, expected):
    """Each value is the mean of its window, centred; at the ends of what is there of it."""
    np.testing.assert_allclose(moving_average(np.array(values, float), window), expected, rtol=1e-12)


# Labels.


def labels(folder: Path, *runs: tuple[str, ...]) -> list[str]:
    """Labels of runs, each given as (file, config name, overrides...)."""
    made = []
    for file, name, *overrides in runs:
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        made.append(load_run(finished_run(path, *overrides, name=name)))
    return distinguishing_labels(made)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([("a.h5", "only.toml")], ["only"]),
        ([("a.h5", "x.toml"), ("b.h5", "y.toml")], ["x", "y"]),
        (
            [("a.h5", "x.toml", "algorithm.local_lr=0.5"), ("b.h5", "x.toml", "algorithm.local_lr=0.25")],
            ["local_lr 0.5", "local_lr 0.25"],
        ),
        (
            [("a.h5", "x.toml", "run.seed=1"), ("b.h5", "x.toml", "run.seed=2", "model.name=mlp")],
            ["seed 1, name logistic", "seed 2, name mlp"],
        ),
        ([("a.h5", "x.toml"), ("b.h5", "x.toml")], ["a", "b"]),
    ],
    ids=["one", "names", "one key", "two keys", "files"],
)
def test_labels_by_hand(tmp_path, runs, expected):
    """Runs are told apart by their names, else by the config values that differ, else by their files."""
    assert labels(tmp_path, *runs) == expected


@pytest.mark.parametrize(
    "runs",
    [
        [("a.h5", "x.toml"), ("b.h5", "x.toml"), ("c.h5", "y.toml")],
        [("a.h5", "x.toml"), ("b.h5", "x.toml"), ("c.h5", "x.toml", "run.seed=2")],
        [("one/run.h5", "x.toml"), ("two/run.h5", "x.toml")],
        [("a.h5", "x.toml"), ("b.h5", "x.toml", "warmup.num_rounds=2", "warmup.local_lr=0.1")],
    ],
    ids=[
        "two alike and another",
        "two alike and another seed",
        "same file name",
        "with and without warm-up",
    ],
)
def test_labels_are_always_different(tmp_path, runs):
    """No two runs have the same label, and none has an empty one."""
    seen = labels(tmp_path, *runs)
    assert len(set(seen)) == len(runs)
    assert all(seen)
