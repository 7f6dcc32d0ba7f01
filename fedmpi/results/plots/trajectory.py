"""Paths of x in the plane, one panel per run: for problems with two parameters and x_t of every round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmpi.errors import UserError
from fedmpi.results.plots.style import figure_target, save_figure
from fedmpi.storage.reader import Run

_STEP, _AMPLIFIED, _OPTIMUM, _CENTER = "#000000", "#00B7C7", "#D55E00", "#0072B2"


def segments(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(steps, amplifications) of a run: pairs of points, (count, 2, 2) each.

    x just before an amplification is x_{t_0} + u, where x just after it is x_{t_0} + eta u.
    """
    if run.params is None or run.params[1].shape[1] != 2 or np.any(np.diff(run.params[0]) != 1):
        raise UserError(
            f"run file {run.path}: a path in the plane needs two parameters and x_t of every round; "
            "run it with run.record_params_every = 1"
        )
    x, eta = run.params[1], run.config["algorithm"]["amplification"]
    steps, amplifications, anchor = [], [], 0
    for t, is_amplification in enumerate(run.train.is_amplification[: len(x) - 1]):
        reached = x[t + 1]
        if is_amplification:
            reached = x[anchor] + (x[t + 1] - x[anchor]) / eta
            amplifications.append((reached, x[t + 1]))
        if (t + 1 - anchor) == run.config["algorithm"]["amplify_every"]:
            anchor = t + 1
        steps.append((x[t], reached))
    return np.array(steps).reshape(-1, 2, 2), np.array(amplifications).reshape(-1, 2, 2)


def plot_trajectories(runs: Sequence[Run], out: str, columns: int = 4) -> None:
    """Draw the runs in rows of panels with common axes."""
    target = figure_target(out, "--out")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(columns, len(runs))
    rows = -(-len(runs) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.1 * columns, 3.2 * rows + 0.4), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    figure.get_layout_engine().set(h_pad=0.08)
    for axis in axes.flat[len(runs) :]:
        axis.set_visible(False)
    for number, (axis, run) in enumerate(zip(axes.flat, runs, strict=False)):
        _draw(axis, run)
        options = run.config["algorithm"]
        letter = chr(ord("a") + number)
        axis.set_title(
            f"({letter}) gamma = {options['local_lr']:g}, eta = {options['amplification']:g}", fontsize=10
        )
    handles, labels = axes.flat[len(runs) - 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    save_figure(figure, target, "--out")
    pyplot.close(figure)


def _draw(axis: object, run: Run) -> None:
    from matplotlib.collections import LineCollection

    steps, amplifications = segments(run)
    x = run.params[1]
    centers = np.array(run.config["data"].get("centers", np.empty((0, 2))))
    optimum = centers.mean(axis=0) if len(centers) else x[-1]
    axis.plot(*centers.T, "^", color=_CENTER, markersize=7, label="clients' optima z")
    for number, center in enumerate(centers, 1):
        axis.annotate(
            f"z$_{number}$", center, xytext=(4, 5), textcoords="offset points", color=_CENTER, fontsize=9
        )
    axis.add_collection(LineCollection(steps, colors=_STEP, linewidths=1.1, label="local SGD"))
    axis.add_collection(
        LineCollection(amplifications, colors=_AMPLIFIED, linewidths=1.8, label="amplification")
    )
    axis.plot(*x.T, "o", color=_STEP, markersize=2.2)
    axis.plot(*optimum, "*", color=_OPTIMUM, markersize=13, label="optimum x*", zorder=3)
    axis.plot(*x[-1], "o", color="white", markeredgecolor=_STEP, markersize=6, label="last x", zorder=4)
    axis.annotate("x$_0$", x[0], xytext=(3, 4), textcoords="offset points", fontsize=9)
    axis.annotate(f"x$_{{{len(x) - 1}}}$", x[-1], xytext=(6, -11), textcoords="offset points", fontsize=9)
    axis.set_aspect("equal")
    axis.margins(0.12)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
