"""Pictures of runs: training loss and test accuracy over rounds. Needs neither torch nor MPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.reader import Run, load_run

# Okabe and Ito's colours, told apart by colour-blind readers too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_WINDOW = 0.03  # of the points, as in the paper's figures
_FORMATS = (".png", ".pdf", ".svg")


def plot(paths: Sequence[str], out: str, *, trajectory: bool = False) -> int:
    """Draw the runs' curves into one file, or with `trajectory` their ways through the plane."""
    if trajectory:
        from fedmpi.trajectory_plot import plot_trajectories

        plot_trajectories([load_run(path) for path in paths], out)
        print(out)
        return 0
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    target = figure_target(out, "--out")
    runs = [load_run(path) for path in paths]
    labels = distinguishing_labels(runs)
    has_accuracy = any(run.eval.test_accuracy.notna().any() for run in runs)
    panels = [("train_loss", "Training loss (nats per sample)")]
    if has_accuracy:
        panels.append(("test_accuracy", "Test accuracy (%)"))

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.8), squeeze=False)
    for axis, (column, title) in zip(axes[0], panels, strict=True):
        scale = 100 if column == "test_accuracy" else 1
        in_sight = [
            _draw(axis, run, column, scale, label, _COLOURS[number % len(_COLOURS)])
            for number, (run, label) in enumerate(zip(runs, labels, strict=True))
        ]
        _limit(axis, np.concatenate(in_sight))
        axis.set_xlabel("Round")
        axis.set_title(title, fontsize=11)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    axes[0, 0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    save_figure(figure, target, "--out")
    pyplot.close(figure)
    print(target)
    return 0


def figure_target(out: str, option: str) -> Path:
    """The file to draw into; a format that we do not write is a UserError."""
    target = Path(out)
    if target.suffix not in _FORMATS:
        raise UserError(
            f"{option} {out}: format {target.suffix or 'missing'}; accepted: {', '.join(_FORMATS)}"
        )
    return target


def save_figure(figure: object, target: Path, option: str) -> None:
    """Write a figure; a place that cannot be written is a UserError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=150)
    except OSError as error:
        raise UserError(f"{option} {target}: cannot write there ({error.strerror})") from None


def _draw(axis: object, run: Run, column: str, scale: float, label: str, colour: str) -> np.ndarray:
    """Moving average with a band of one standard deviation; returns what should be in sight."""
    rounds, values = run.eval["round"].to_numpy(), scale * run.eval[column].to_numpy()
    window = max(1, round(_WINDOW * len(values)))
    mean, spread = moving_average(values, window), moving_spread(values, window)
    axis.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    axis.plot(rounds, mean, color=colour, label=label, linewidth=1.6)
    if "warmup" in run.config:
        axis.axvline(run.config["warmup"]["num_rounds"], color="grey", linestyle=":", linewidth=1)
    settled = slice(len(values) // 20, None)  # the first steep fall would hide the rest
    return np.concatenate([(mean - spread)[settled], (mean + spread)[settled]])


def _limit(axis: object, values: np.ndarray) -> None:
    """Show the settled part of the curves, with a little room."""
    values = values[np.isfinite(values)]
    if len(values) and values.max() > values.min():
        room = 0.05 * (values.max() - values.min())
        axis.set_ylim(values.min() - room, values.max() + room)


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average; at the ends over what is there.

    >>> moving_average(np.array([0.0, 3.0, 6.0]), 3)
    array([1.5, 3. , 4.5])
    """
    return np.array([part.mean() for part in _windows(values, window)])


def moving_spread(values: np.ndarray, window: int) -> np.ndarray:
    """Standard deviation in the same windows."""
    with np.errstate(invalid="ignore", over="ignore"):  # a diverged run has infinite losses
        return np.array([part.std() for part in _windows(values, window)])


def _windows(values: np.ndarray, window: int) -> Iterator[np.ndarray]:
    half = window // 2
    for i in range(len(values)):
        yield values[max(i - half, 0) : i + half + 1]


def distinguishing_labels(runs: Sequence[Run]) -> list[str]:
    """A label for each run: its name where names differ, else the config values that do."""
    names = [run.name for run in runs]
    if len(set(names)) == len(runs):
        return names
    flat = [
        {f"{s}.{k}": v for s, section in run.config.items() for k, v in section.items()} for run in runs
    ]
    keys = [k for k in dict.fromkeys(k for f in flat for k in f) if len({repr(f.get(k)) for f in flat}) > 1]
    texts = [", ".join(f"{k.split('.')[1]} {f[k]}" for k in keys if k in f) for f in flat]
    if len(set(texts)) == len(runs) and all(texts):
        return texts
    stems = [run.path.stem for run in runs]
    return stems if len(set(stems)) == len(runs) else [str(run.path) for run in runs]
