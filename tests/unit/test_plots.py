"""Pictures of runs: files, curves, labels, moving averages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmpi.cli.plot import plot
from fedmpi.errors import UserError
from fedmpi.results.groups import group_runs
from fedmpi.results.plots.curves import moving_average, moving_spread
from fedmpi.results.plots.picture import PRESETS
from fedmpi.storage.files import replacing
from fedmpi.storage.reader import load_run
from fedmpi.storage.writer import RunWriter
from tests.support.run_files import add_rounds, always_run, attributes, create_run, finished_run


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
        "import sys; from fedmpi.cli.plot import plot; plot([sys.argv[1]], sys.argv[2]); "
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
    """Training loss, training and test accuracy in percent, over rounds, one line for each group."""
    first = finished_run(tmp_path / "a.h5", name="first.toml")
    second = finished_run(
        tmp_path / "b.h5", name="second.toml", losses=(3.0, 2.0, 1.0), accuracies=(0, 0.25, 1)
    )
    plot([str(first), str(second)], str(tmp_path / "figure.png"))
    (figure,) = figures
    loss, train_accuracy, accuracy = figure.axes
    assert curve(train_accuracy) == ([0, 3, 6], [25.0, 62.5, 87.5])
    assert [line.get_label() for line in loss.get_lines()] == ["first", "second"]
    (legend,) = figure.legends  # below the panels, where it covers no curve
    assert [text.get_text() for text in legend.get_texts()] == ["first", "second"]
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
    run = finished_run(tmp_path / "run.h5", accuracies=[np.nan] * 3)  # of training and test set
    plot([str(run)], str(tmp_path / "figure.png"))
    assert [axis.get_title() for axis in figures[0].axes] == ["Training loss (nats per sample)"]


def test_end_of_warm_up_is_marked(tmp_path, figures):
    """A dotted line marks the end of the warm-up."""
    run = finished_run(tmp_path / "run.h5", "warmup.num_rounds=2", "warmup.local_lr=0.1")
    plot([str(run)], str(tmp_path / "figure.png"))
    for axis in figures[0].axes:
        assert list(axis.get_lines()[1].get_xdata()) == [2, 2]


def test_run_without_evaluations(tmp_path, fedmpi_cli):
    """A run that has only begun is told in a sentence, for curves and for every preset."""
    create_run(tmp_path / "run.h5")
    for preset in (None, *PRESETS):
        with pytest.raises(UserError, match="nothing to draw"):
            plot([str(tmp_path / "run.h5")], str(tmp_path / "figure.png"), preset)
    assert fedmpi_cli("plot", "run.h5", "--out", "f.png").returncode == 2


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e300])
def test_one_bad_value_does_not_hide_the_rest(tmp_path, figures, bad):
    """After an infinite, missing or enormous loss the curve goes on."""
    run = finished_run(tmp_path / "run.h5", losses=(2.0, bad, 1.5, 1.25), accuracies=(0.1, 0.1, 0.5, 0.75))
    plot([str(run)], str(tmp_path / "figure.png"))
    rounds, values = curve(figures[0].axes[0])
    seen = dict(zip(rounds, values, strict=True))
    assert (seen[0], seen[4], seen[6]) == (2.0, 1.5, 1.25)


# Moving average.


@pytest.mark.parametrize(
    ("values", "window", "expected"),
    [
        ([0, 3, 6], 3, [1.5, 3, 4.5]),
        ([1, 2, 4, 8, 16], 1, [1, 2, 4, 8, 16]),
        ([1, 2, 4, 8, 16], 3, [1.5, 7 / 3, 14 / 3, 28 / 3, 12]),
        ([1, 3, 5, 7], 2, [1, 2, 4, 6]),
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


# Seeds.


def test_mean_and_band_over_seeds(tmp_path, figures):
    """Two seeds make one line, their mean, and a band of their standard deviation."""
    for seed, losses in ((1, (2.0, 1.0, 1.0)), (2, (4.0, 2.0, 1.0))):
        finished_run(tmp_path / f"{seed}.h5", f"run.seed={seed}", losses=losses)
    plot([str(tmp_path)], str(tmp_path / "figure.png"))
    axis = figures[0].axes[0]
    assert len(axis.get_lines()) == 1
    assert curve(axis) == ([0, 3, 6], [3.0, 1.5, 1.0])
    edges = axis.collections[0].get_paths()[0].vertices
    assert sorted({y for x, y in edges.tolist() if x == 3}) == [1.0, 2.0]


def test_seeds_evaluated_at_other_rounds(tmp_path, figures):
    """The mean is taken where all seeds have a value."""
    finished_run(tmp_path / "1.h5", "run.seed=1")
    finished_run(tmp_path / "2.h5", "run.seed=2", losses=(4.0, 3.25), accuracies=(0.5, 0.5))
    plot([str(tmp_path)], str(tmp_path / "figure.png"))
    assert curve(figures[0].axes[0]) == ([0, 6], [3.0, 2.25])


def test_spread_over_window_and_seeds_by_hand():
    """All values of all rows in the window count."""
    values = np.array([[0.0, 2.0], [4.0, 2.0]])
    np.testing.assert_allclose(moving_average(values, 1), [2, 2])
    np.testing.assert_allclose(moving_spread(values, 1), [2, 0])


def test_losses_that_fall_far_have_a_log_axis(tmp_path, figures):
    """Over more than a factor of 10; accuracies never."""
    run = finished_run(tmp_path / "r.h5", losses=(9, 1.0, 1e-3), accuracies=(0.001, 0.1, 1))
    plot([str(run)], str(tmp_path / "figure.png"))
    assert [axis.get_yscale() for axis in figures[0].axes] == ["log", "linear", "linear"]


# Presets.


def test_intervals_are_sorted_and_named_by_symbol(tmp_path, figures):
    """Groups stand in the order of P; a last panel shows what each reaches."""
    for interval in (10, 2, 5):
        finished_run(
            tmp_path / f"{interval}.h5", f"algorithm.amplify_every={interval}", "algorithm.amplification=2"
        )
    plot([str(tmp_path)], str(tmp_path / "figure.png"), "intervals")
    axes = figures[0].axes
    assert [line.get_label() for line in axes[0].get_lines()] == ["$P$ = 2", "$P$ = 5", "$P$ = 10"]
    assert axes[-1].get_title() == "Training loss at the end"
    assert axes[-1].get_xscale() == "linear"  # within a factor of ten
    assert len(axes) == 4


def test_settings_that_differ_in_the_rate_alone_are_joined(tmp_path, figures):
    """Two lines over three rates, with their names; losses that differ by more than 3 on a log axis."""
    for rate in (0.001, 0.01, 0.1):
        for eta in (1, 10):
            settings = f"local_lr={rate}", f"amplification={eta}", "amplify_every=2"
            path = tmp_path / f"{rate}-{eta}.h5"
            losses = [9, 9, *[eta * rate] * 5]  # the last five count
            finished_run(path, *(f"algorithm.{s}" for s in settings), losses=losses, accuracies=[0.5] * 7)
    plot([str(tmp_path)], str(tmp_path / "figure.png"), "rates")
    axis = figures[0].axes[-1]
    assert [text.get_text() for text in axis.texts] == ["amplification 1", "amplification 10"]
    joined = [line.get_ydata().tolist() for line in axis.get_lines() if len(line.get_xdata()) == 3]
    assert joined == [pytest.approx([0.001, 0.01, 0.1]), pytest.approx([0.01, 0.1, 1])]
    assert axis.get_yscale() == "log"


def test_the_axis_shows_what_comes_after_the_warm_up(tmp_path, figures):
    """Swings while it lasts are cut off."""
    warmup = "warmup.num_rounds=2", "warmup.local_lr=0.1"
    losses = (50, 90, 40, 2, 1.5, 1.4, 1.2)
    run = finished_run(tmp_path / "r.h5", *warmup, losses=losses, accuracies=[0.5] * 7)
    plot([str(run)], str(tmp_path / "figure.png"))
    assert figures[0].axes[0].get_ylim()[1] < 10


def test_many_groups_take_nothing_from_the_panels(tmp_path, figures):
    """With 24 groups the figure grows by its legend; a value that several share has one tick."""
    for rate in (0.001, 0.01, 0.1):
        for steps in range(1, 9):
            path = tmp_path / f"{rate}-{steps}.h5"
            finished_run(path, f"algorithm.local_lr={rate}", f"algorithm.local_steps={steps}")
    plot([str(tmp_path)], str(tmp_path / "figure.png"), "rates")
    (figure,) = figures
    assert len(figure.legends[0].get_texts()) == 24
    assert figure.axes[0].get_window_extent().height > 2.5 * figure.dpi
    assert figure.axes[-1].get_xscale() == "log"
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["0.001", "0.01", "0.1"]


@pytest.mark.parametrize(
    ("preset", "key", "first", "second", "labels"),
    [
        ("methods", "algorithm.name", "mifa", "fedavg", ["mifa", "fedavg"]),
        ("rates", "algorithm.local_lr", 0.2, 0.1, [r"$\gamma$ = 0.1", r"$\gamma$ = 0.2"]),
        ("amplification", "algorithm.amplification", 10, 2, [r"$\eta$ = 2", r"$\eta$ = 10"]),
    ],
)
def test_presets_draw(tmp_path, figures, preset, key, first, second, labels):
    """Runs that differ in batch size too are named by the compared key alone, numbers in their order."""
    final = {first: 0.5, second: 1.0}
    for batch, (value, loss) in enumerate(final.items(), start=4):
        settings = f"{key}={value}", "algorithm.amplify_every=2", f"algorithm.batch_size={batch}"
        finished_run(tmp_path / f"{batch}.h5", *settings, losses=(2, 1.5, loss))
    assert plot([str(tmp_path)], str(tmp_path / "figure.png"), preset) == 0
    (figure,) = figures
    assert [text.get_text() for text in figure.legends[0].get_texts()] == labels
    titles = ["Training loss (nats per sample)", "Training accuracy (%)", "Test accuracy (%)"]
    assert [axis.get_title() for axis in figure.axes] == titles
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert sorted(lines) == sorted(labels)
    for value, loss in final.items():
        (label,) = [label for label in labels if label.split()[-1] == str(value)]
        assert list(lines[label]) == [2, 1.5, loss]


def test_regularized_against_independent(tmp_path, figures):
    """Groups are named by the kind of participation; over a permutation's cycle it is exactly even."""
    for selection in ("uniform", "permutation"):
        always_run(tmp_path / f"{selection}.h5", selection, losses=(2.0, 1.0, 0.5))
    plot([str(tmp_path)], str(tmp_path / "figure.png"), "regularized")
    (figure,) = figures
    seen = [text.get_text() for text in figure.legends[0].get_texts()]
    assert seen == ["permutation: regularized, P = 7", "uniform: independent"]
    lines = {line.get_label(): line for line in figure.axes[-1].get_lines()}
    assert 7 not in lines["permutation: regularized, P = 7"].get_xdata()
    assert list(lines["exactly 0"].get_xdata())[:2] == [7, 14]
    # One of seven clients has all the weight: 7 * ((1 - 1/7)^2 + 6 / 49).
    assert lines["uniform: independent"].get_ydata()[0] == pytest.approx(6)


def test_each_participation_is_drawn_once(tmp_path, figures):
    """Runs with the same participants share a row; others have their own."""
    for rate in (0.1, 0.2):
        finished_run(tmp_path / f"{rate}.h5", f"algorithm.local_lr={rate}")
    always_run(tmp_path / "other.h5", "permutation", losses=(1.0,))
    plot([str(tmp_path)], str(tmp_path / "figure.png"), "participation")
    assert len(figures[0].axes) == 2 * 2


def test_timing(tmp_path, figures):
    """Phases as bars that end at the time in all; idle time of each rank in percent."""
    path = finished_run(tmp_path / "a.h5")
    rank = '{"local SGD": 3.0, "idle": %s, "in all": 8.0, "memory_mb": 1.0}'
    with replacing(path, copy=True) as file:
        file.attrs["phases"] = f"[{rank % 2.0}, {rank % 4.0}]"
    plot([str(path)], str(tmp_path / "figure.png"), "timing")
    bars, idle = figures[0].axes[:2]
    assert [bar.get_width() for bar in bars.patches] == [3.0, 3.0, 2.0]
    assert [text.get_text() for text in idle.texts] == ["25", "50"]


def test_appendix_trajectories(tmp_path, figures):
    """Rounds with amplification are cyan."""
    attrs = attributes("algorithm.amplification=2", "algorithm.amplify_every=3")
    writer = RunWriter.create(tmp_path / "a.h5", attrs, '[["x", [2]]]', np.zeros(2))
    for t in range(7):
        writer.add_snapshot(t, np.array([t, t * t], float))
    add_rounds(writer, 0, 6)
    writer.flush(np.zeros(2), status="done")
    plot([str(tmp_path / "a.h5")], str(tmp_path / "figure.png"), "appendix")
    cyan = [line for line in figures[0].axes[0].get_lines() if line.get_color() == "#00B7D8"]
    assert [list(line.get_xdata()) for line in cyan] == [[2, 3], [5, 6]]


def test_unknown_preset(tmp_path):
    """The nearest name is suggested."""
    with pytest.raises(UserError, match="did you mean methods"):
        plot([str(finished_run(tmp_path / "a.h5"))], str(tmp_path / "f.png"), "method")


# Labels.


def labels(folder: Path, *runs: tuple[str, ...]) -> list[str]:
    """Labels of runs, each given as (file, config name, overrides...)."""
    made = []
    for file, name, *overrides in runs:
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        made.append(load_run(finished_run(path, *overrides, name=name)))
    return [group.label for group in group_runs(made)]


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
            ["logistic", "mlp"],
        ),
        ([("a.h5", "x.toml"), ("b.h5", "x.toml")], ["a", "b"]),
        (
            [
                ("a.h5", "wait_local_lr-0.5_seed-1.toml", "algorithm.local_lr=0.5"),
                ("b.h5", "go_local_lr-1e-05_seed-1.toml", "algorithm.local_lr=1e-5"),
            ],
            ["wait, local_lr 0.5", "go, local_lr 1e-05"],
        ),
    ],
    ids=["one", "names", "one key", "two keys", "files", "of a sweep"],
)
def test_labels_by_hand(tmp_path, runs, expected):
    """Groups are told apart by their names, else by the config values that differ, else by their files."""
    assert labels(tmp_path, *runs) == expected


@pytest.mark.parametrize(
    "runs",
    [
        [("a.h5", "x.toml"), ("b.h5", "x.toml"), ("c.h5", "y.toml")],
        [("one/run.h5", "x.toml"), ("two/run.h5", "x.toml")],
        [("a.h5", "x.toml"), ("b.h5", "x.toml", "warmup.num_rounds=2", "warmup.local_lr=0.1")],
    ],
    ids=[
        "two alike and another",
        "same file name",
        "with and without warm-up",
    ],
)
def test_labels_are_always_different(tmp_path, runs):
    """No two runs have the same label, and none has an empty one."""
    seen = labels(tmp_path, *runs)
    assert len(set(seen)) == len(runs)
    assert all(seen)


@pytest.mark.parametrize("count", [1, 7, 8, 14, 15, 40])
def test_no_two_lines_look_the_same(count):
    """Colour and dash together tell all lines apart."""
    from fedmpi.results.plots.style import colours, dashes

    looks = list(zip(colours(count), dashes(count), strict=True))
    assert len(set(looks)) == count
