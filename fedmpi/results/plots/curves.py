"""Curves of runs with bands over window and seeds, and comparisons of runs by one config value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedmpi.errors import UserError
from fedmpi.participation.cycle import phases_seen, stored_cycle
from fedmpi.results.groups import Group, sort_key, value_label, value_text
from fedmpi.results.naming import (
    is_lower_better,
    is_percentage,
    metrics_of,
    shown_first,
    title_with_units,
)
from fedmpi.results.plots.style import colours, dashes, tidy
from fedmpi.results.settled import LAST, cadence, settled
from fedmpi.storage.clocks import clock_of, time_of
from fedmpi.storage.reader import Run
from fedmpi.storage.runs import flat_config

_WINDOW = 0.03  # of the points, as in the paper's figures
_LONGEST_WINDOW = 0.1  # of the points, to average over whole cycles
_LOG_RATIO, _LOG_RATIO_OF_POINTS = 10, 3  # losses that differ this much are drawn on a log axis
_DIVERGED = 1e12  # those that differ more are not
_MOST_NAMES = 3  # of lines; more would cover each other


def draw_curves(
    groups: Sequence[Group], labels: Sequence[str] | None = None, extra: int = 0, x: str = "rounds"
) -> object:
    """Training loss and the task's metrics side by side, and room for `extra` panels.

    `x`: the clock along which they are drawn.
    """
    from matplotlib import pyplot

    runs = [run for group in groups for run in group.runs]
    if not any(len(run.eval) for run in runs):
        raise UserError("nothing to draw: none of the runs holds an evaluation yet")
    known = metrics_of(runs)
    panels = [c for c in shown_first(known) if c == "train_loss" or any(_has(run, c) for run in runs)]
    count = len(panels) + extra
    figure, axes = pyplot.subplots(
        1, count, figsize=(4.6 * count + 0.6, 4.1), squeeze=False, layout="constrained"
    )
    labels = labels or [group.label for group in groups]
    for axis, column in zip(axes[0], panels, strict=False):
        draw_panel(axis, groups, column, labels, x)
    _add_legend(figure, axes[0, 0])
    samples = {run.config["run"].get("eval_train_samples") for run in runs} - {None}
    if samples:
        text = f"Training figures on a subset of {', '.join(map(str, sorted(samples)))} samples"
        figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color="grey")
    return figure


def draw_panel(
    axis: object, groups: Sequence[Group], column: str, labels: Sequence[str], x: str, begun: int = 0
) -> None:
    """One metric of all groups on axes that have `begun` curves already."""
    count = begun + len(groups)
    looks = zip(colours(count)[begun:], dashes(count)[begun:], strict=True)
    in_sight = [
        _draw(axis, group, column, label, look, x)
        for group, label, look in zip(groups, labels, looks, strict=True)
        if any(column in run.eval for run in group.runs)  # groups may have other tasks
    ]
    metric = metrics_of(run for group in groups for run in group.runs)[column]
    may_be_log = is_lower_better(metric)
    _limit(axis, *map(np.concatenate, zip(*in_sight, strict=True)), may_be_log=may_be_log)
    label_clock(axis, x)
    axis.set_title(title_with_units(metric), fontsize=11)
    axis.margins(x=0.01)
    tidy(axis)


def _has(run: Run, column: str) -> bool:
    """Whether a run records a metric, and has a value of it."""
    return column in run.eval and bool(run.eval[column].notna().any())


def draw_comparison(groups: Sequence[Group], key: str, symbol: str, x: str = "rounds") -> object:
    """Curves in the order of one config value, and the final loss over that value."""
    values = [flat_config(group.runs[0].config).get(key) for group in groups]
    order = sorted(range(len(groups)), key=lambda i: sort_key(values[i])) if symbol else range(len(groups))
    groups, values = [groups[i] for i in order], [values[i] for i in order]
    numbers = symbol and all(isinstance(v, int | float) for v in values) and len(set(values)) > 2
    labels = _comparison_labels(groups, values, symbol)
    figure = draw_curves(groups, labels, 1 if numbers else 0, x)
    if numbers:
        _draw_reached(figure.axes[-1], groups, np.array(values, float), key, symbol)
    return figure


def _comparison_labels(groups: Sequence[Group], values: Sequence, symbol: str) -> list[str]:
    """`P = 10`, where that distinguishes the groups; otherwise their own labels."""
    texts = [f"{symbol} = {value_text(v)}" if symbol else value_text(v) for v in values]
    return texts if len(set(texts)) == len(groups) else [group.label for group in groups]


def _draw_reached(axis: object, groups: Sequence[Group], values: np.ndarray, key: str, symbol: str) -> None:
    """Training loss in the last evaluations over the compared value, with the spread over seeds."""
    from matplotlib.ticker import LogLocator, NullFormatter

    reached = [[_settled(run) for run in group.runs] for group in groups]
    lines = _alike(groups, key)
    for others, line in lines.items():
        means = [np.mean(reached[i]) for i in line]
        axis.plot(values[line], means, color="lightgrey", zorder=1)
        if 1 < len(lines) <= _MOST_NAMES:  # above the line's highest point
            top = int(np.argmax(np.nan_to_num(means)))
            axis.annotate(
                others, (values[line[top]], means[top]), (-6 if top else 6, 5), textcoords="offset points",
                ha="right" if top else "left", fontsize=8, color="grey",
            )  # fmt: skip
    for losses, value, colour in zip(reached, values, colours(len(groups)), strict=True):
        spread = np.std(losses, ddof=1) if len(losses) > 1 else 0.0
        axis.errorbar(value, np.mean(losses), spread, fmt="o", color=colour, capsize=3)
    if _spans(np.array([np.mean(losses) for losses in reached]), _LOG_RATIO_OF_POINTS):
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    if values.min() > 0 and values.max() / values.min() >= 10:
        axis.set_xscale("log")
        ticks = np.unique(values)
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xticks([], minor=True)
    axis.set_xlabel(symbol)
    axis.set_title("Training loss at the end", fontsize=11)
    tidy(axis)


def _alike(groups: Sequence[Group], key: str) -> dict[str, list[int]]:
    """Groups that differ only in the compared value, in its order, by their other settings."""
    lines: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        others = [value_label(k, v) for k, v in group.values.items() if k != key and v is not None]
        lines.setdefault(", ".join(others), []).append(number)
    return lines


def _settled(run: Run) -> float:
    rounds, losses = run.eval["round"].to_numpy(), run.eval.train_loss.to_numpy()
    at_least = max(LAST, round(_WINDOW * np.isfinite(losses).sum()))
    return settled(rounds, losses, stored_cycle(run.config), at_least)


def _add_legend(figure: object, axis: object) -> None:
    """Below all panels, where it covers no curve, in as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    inches = 0.7 + 0.075 * max(len(label) for label in labels)  # of an entry
    columns = min(len(labels), max(1, int(figure.get_figwidth() / inches)))
    rows = -(-len(labels) // columns)
    # Many entries do not shrink the panels.
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside lower center", ncols=columns)


def _draw(
    axis: object, group: Group, column: str, label: str, look: tuple[object, str], x: str
) -> tuple[np.ndarray, np.ndarray]:
    """Moving average with a band of one standard deviation over window and seeds, along the clock `x`.

    Returns the values that must be visible, of the line and of the edges of its band.
    """
    (colour, dash), (rounds, values) = look, common_curve(group.runs, column)
    if is_percentage(column):
        values = 100 * values
    window = _points_to_average(rounds, stored_cycle(group.runs[0].config))
    mean, spread = moving_average(values, window), moving_spread(values, window)
    times = mean_time(group.runs, x, rounds)
    axis.fill_between(times, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    axis.plot(times, mean, color=colour, linestyle=dash, label=label, linewidth=1.6)
    warmups = {run.config["warmup"]["num_rounds"] for run in group.runs if "warmup" in run.config}
    for end in mean_time(group.runs, x, np.array(sorted(warmups))):
        axis.axvline(end, color="grey", linestyle=":", linewidth=1)
    settled = slice(_settles(rounds, max(warmups, default=0)), None)
    return mean[settled], np.concatenate([(mean - spread)[settled], (mean + spread)[settled]])


def mean_time(runs: Sequence[Run], x: str, rounds: np.ndarray) -> np.ndarray:
    """What a clock shows after these rounds, averaged over seeds as the curves are: round by round."""
    return np.mean([time_of(run, x, rounds) for run in runs], axis=0)


def label_clock(axis: object, x: str) -> None:
    """Name the axis of a clock; large numbers get prefixes."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    clock = clock_of(x)
    axis.set_xlabel(clock.label)
    if clock.column != "rounds":
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(EngFormatter(unit=clock.unit, sep=" " if clock.unit else ""))


def _points_to_average(rounds: np.ndarray, cycle: int) -> int:
    """3 % of the points, rounded to whole cycles where these are short beside the run.

    >>> _points_to_average(np.arange(0, 2001, 9), 20), _points_to_average(np.arange(0, 2001, 20), 20)
    (20, 3)
    """
    window, seen = round(_WINDOW * len(rounds)), phases_seen(cadence(rounds), cycle)
    if seen <= _LONGEST_WINDOW * len(rounds):
        window = max(1, round(window / seen)) * seen
    return max(1, window)


def _settles(rounds: np.ndarray, warmup: int) -> int:
    """Where the part that sets the axis begins: the warm-up and the first fall would dwarf the rest.

    >>> _settles(np.arange(0, 1001, 10), 0), _settles(np.arange(0, 1001, 10), 200)
    (5, 24)
    """
    last = rounds[-1] if len(rounds) else 0
    begin = warmup if warmup < last else 0
    return int(np.searchsorted(rounds, begin + 0.05 * (last - begin)))


def common_curve(runs: Sequence[Run], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds at which all runs have a value, and the values, one row for each run that has any."""
    curves = []
    for run in (run for run in runs if column in run.eval):
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


def _limit(axis: object, lines: np.ndarray, edges: np.ndarray, *, may_be_log: bool) -> None:
    """Show the settled part of the curves, with a small margin; a log axis where losses fall far."""
    lines, edges = lines[np.isfinite(lines)], edges[np.isfinite(edges)]
    if not len(edges) or edges.max() <= edges.min():
        return
    low, high = edges.min(), edges.max()
    if may_be_log and _spans(lines, _LOG_RATIO):  # the lower edge of a band may be negative
        axis.set_yscale("log")
        axis.set_ylim(lines.min() / 1.5, high * 1.3)
        return
    room = 0.05 * (high - low)
    axis.set_ylim(low - room, high + room)


def _spans(losses: np.ndarray, ratio: float) -> bool:
    """Whether losses differ so much that they are better seen on a log axis."""
    return losses.min() > 0 and ratio < losses.max() / losses.min() < _DIVERGED


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over the last axis, and over all rows; shorter windows at the ends.

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
    before, after = window // 2, (window + 1) // 2
    for i in range(values.shape[-1]):
        yield values[..., max(i - before, 0) : i + after]
