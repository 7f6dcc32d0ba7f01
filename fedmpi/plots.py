"""Pictures of runs, as PNG, PDF or SVG: curves with bands over seeds, and presets for the paper's figures.

Needs neither torch nor MPI.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedmpi.errors import UserError, did_you_mean
from fedmpi.grouping import Group, group_runs, sort_key, value_text
from fedmpi.storage.reader import Run, load_run
from fedmpi.storage.runs import flat_config, load_each

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_WINDOW = 0.03  # of the points, as in the paper's figures
_FORMATS = (".png", ".pdf", ".svg")
_PANELS = {
    "train_loss": "Training loss (nats per sample)",
    "train_accuracy": "Training accuracy (%)",
    "test_accuracy": "Test accuracy (%)",
}
_LOG_RATIOS = (30, 1e12)  # losses that fall so far are drawn on a log axis; farther is divergence
# Preset -> the config key that it compares, and its symbol in the paper.
_COMPARED = {
    "methods": ("algorithm.name", ""),
    "intervals": ("algorithm.amplify_every", "$P$"),
    "rates": ("algorithm.local_lr", r"$\gamma$"),
    "amplification": ("algorithm.amplification", r"$\eta$"),
}
PRESETS = (*_COMPARED, "participation", "timing", "appendix")


def plot(paths: Sequence[str], out: str, preset: str | None = None, *, trajectory: bool = False) -> int:
    """Draw the runs below the paths into one file, or with `trajectory` their ways through the plane."""
    if trajectory:
        from fedmpi.trajectory_plot import plot_trajectories

        plot_trajectories([load_run(path) for path in paths], out)
        print(out)
        return 0
    target = figure_target(out, "--out")
    if preset is not None and preset not in PRESETS:
        raise UserError(f"--preset {preset}: unknown; {did_you_mean(preset, PRESETS)}")
    runs, skipped = load_each(paths)
    for problem in skipped:
        if len(paths) == 1 and Path(paths[0]).is_dir():  # a folder may hold other files
            print(f"fedmpi: warning: left out: {problem}", file=sys.stderr)
        else:
            raise UserError(problem)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = _drawing(preset)(group_runs(runs))
    save_figure(figure, target, "--out")
    pyplot.close(figure)
    print(target)
    return 0


def _drawing(preset: str | None) -> Callable[[list[Group]], object]:
    if preset is None:
        return draw_curves
    if preset in _COMPARED:
        return lambda groups: draw_comparison(groups, *_COMPARED[preset])
    from fedmpi import figures

    return getattr(figures, f"draw_{preset}")


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
        figure.savefig(target, dpi=150, bbox_inches="tight", pad_inches=0.08)
    except OSError as error:
        raise UserError(f"{option} {target}: cannot write there ({error.strerror})") from None


def draw_curves(groups: Sequence[Group], labels: Sequence[str] | None = None, extra: int = 0) -> object:
    """Training loss, training accuracy and test accuracy side by side, and room for `extra` panels."""
    from matplotlib import pyplot

    runs = [run for group in groups for run in group.runs]
    if not any(len(run.eval) for run in runs):
        raise UserError("nothing to draw: none of the runs holds an evaluation yet")
    panels = [c for c in _PANELS if c == "train_loss" or any(run.eval[c].notna().any() for run in runs)]
    count = len(panels) + extra
    figure, axes = pyplot.subplots(1, count, figsize=(4.6 * count + 0.6, 3.9), squeeze=False)
    labels = labels or [group.label for group in groups]
    for axis, column in zip(axes[0], panels, strict=False):
        in_sight = [
            _draw(axis, group, column, label, colour)
            for group, label, colour in zip(groups, labels, colours(len(groups)), strict=True)
        ]
        _limit(axis, np.concatenate(in_sight), may_be_log=column.endswith("loss"))
        axis.set_xlabel("Round")
        axis.set_title(_PANELS[column], fontsize=11)
        axis.margins(x=0.01)
        tidy(axis)
    _add_legend(figure, axes[0, 0], len(groups))
    samples = {run.config["run"].get("eval_train_samples") for run in runs} - {None}
    if samples:
        text = f"Training figures on a subset of {', '.join(map(str, sorted(samples)))} samples"
        figure.text(0.01, 0.005, text, fontsize=8, color="grey")
    return figure


def draw_comparison(groups: Sequence[Group], key: str, symbol: str) -> object:
    """Curves in the order of one config value, and what is reached in the end over that value."""
    values = [flat_config(group.runs[0].config).get(key) for group in groups]
    order = sorted(range(len(groups)), key=lambda i: sort_key(values[i])) if symbol else range(len(groups))
    groups, values = [groups[i] for i in order], [values[i] for i in order]
    numbers = symbol and all(isinstance(v, int | float) for v in values) and len(set(values)) > 2
    labels = _comparison_labels(groups, values, symbol)
    figure = draw_curves(groups, labels, extra=1 if numbers else 0)
    if numbers:
        _draw_reached(figure.axes[-1], groups, np.array(values, float), symbol)
        figure.tight_layout(rect=(0, 0.02, 1, 1))
    return figure


def _comparison_labels(groups: Sequence[Group], values: Sequence, symbol: str) -> list[str]:
    """`P = 10`, where that tells groups apart; else their own labels."""
    texts = [f"{symbol} = {value_text(v)}" if symbol else value_text(v) for v in values]
    return texts if len(set(texts)) == len(groups) else [group.label for group in groups]


def _draw_reached(axis: object, groups: Sequence[Group], values: np.ndarray, symbol: str) -> None:
    """Training loss in the last evaluations over the compared value, with the spread over seeds."""
    for group, value, colour in zip(groups, values, colours(len(groups)), strict=True):
        reached = [_settled(run) for run in group.runs]
        spread = np.std(reached, ddof=1) if len(reached) > 1 else 0.0
        axis.errorbar(value, np.mean(reached), spread, fmt="o", color=colour, capsize=3)
    if values.min() > 0 and values.max() / values.min() >= 10:
        axis.set_xscale("log")
    axis.set_xlabel(symbol)
    axis.set_title("Training loss, last 3 %", fontsize=11)
    tidy(axis)


def _settled(run: Run) -> float:
    losses = run.eval.train_loss.dropna().to_numpy()
    return float(losses[-max(1, round(_WINDOW * len(losses))) :].mean()) if len(losses) else np.nan


def colours(count: int) -> list:
    """Colours for lines: distinct ones for a few, a ramp from dark to light for many."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps

    return [colormaps["viridis"](0.95 * i / (count - 1)) for i in range(count)]


def tidy(axis: object) -> None:
    """Light grid, no frame above and to the right."""
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: object, axis: object, count: int) -> None:
    """Inside the first panel for a few groups, beside all panels for many."""
    if count <= 5:
        axis.legend(frameon=False, fontsize=9)
        figure.tight_layout(rect=(0, 0.02, 1, 1))
        return
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0.0),
        ncols=min(5, -(-count // 2)),
    )  # fmt: skip


def _draw(axis: object, group: Group, column: str, label: str, colour: object) -> np.ndarray:
    """Moving average with a band of one standard deviation over window and seeds; returns what to show."""
    rounds, values = common_curve(group.runs, column)
    if column.endswith("accuracy"):
        values = 100 * values
    window = max(1, round(_WINDOW * len(rounds)))
    mean, spread = moving_average(values, window), moving_spread(values, window)
    axis.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    axis.plot(rounds, mean, color=colour, label=label, linewidth=1.6)
    for end in {run.config["warmup"]["num_rounds"] for run in group.runs if "warmup" in run.config}:
        axis.axvline(end, color="grey", linestyle=":", linewidth=1)
    settled = slice(len(rounds) // 20, None)  # the first steep fall would hide the rest
    return np.concatenate([(mean - spread)[settled], (mean + spread)[settled]])


def common_curve(runs: Sequence[Run], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds at which all runs have a value, and the values, one row for each run that has any."""
    curves = []
    for run in runs:
        known = run.eval[column].notna().to_numpy()
        curves.append((run.eval["round"].to_numpy()[known], run.eval[column].to_numpy()[known]))
    curves = [curve for curve in curves if len(curve[0])]
    if len(curves) <= 1:
        rounds, values = curves[0] if curves else (np.zeros(0), np.zeros(0))
        return rounds, values[None]
    rounds = curves[0][0]
    for other, _ in curves[1:]:
        rounds = np.intersect1d(rounds, other)
    return rounds, np.stack([values[np.searchsorted(own, rounds)] for own, values in curves])


def _limit(axis: object, values: np.ndarray, *, may_be_log: bool) -> None:
    """Show the settled part of the curves, with a little room; a log axis where losses fall far."""
    values = values[np.isfinite(values)]
    if not len(values) or values.max() <= values.min():
        return
    low, high = values.min(), values.max()
    if may_be_log and low > 0 and _LOG_RATIOS[0] < high / low < _LOG_RATIOS[1]:
        axis.set_yscale("log")
        axis.set_ylim(low / 1.3, high * 1.3)
        return
    room = 0.05 * (high - low)
    axis.set_ylim(low - room, high + room)


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over the last axis, and over all rows; at the ends over what is there.

    >>> moving_average(np.array([0.0, 3.0, 6.0]), 3)
    array([1.5, 3. , 4.5])
    """
    with np.errstate(invalid="ignore", over="ignore"):
        return np.array([part.mean() for part in _windows(values, window)])


def moving_spread(values: np.ndarray, window: int) -> np.ndarray:
    """Standard deviation in the same windows."""
    with np.errstate(invalid="ignore", over="ignore"):  # a diverged run has infinite losses
        return np.array([part.std() for part in _windows(values, window)])


def _windows(values: np.ndarray, window: int) -> Iterator[np.ndarray]:
    half = window // 2
    for i in range(values.shape[-1]):
        yield values[..., max(i - half, 0) : i + half + 1]
