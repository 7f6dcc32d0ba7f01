"""`run.plot()` and `load_runs(...).plot("test_accuracy")`: curves as `fedmpi plot` draws them, on axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmpi.errors import UserError, did_you_mean
from fedmpi.results.groups import group_runs
from fedmpi.results.plots.curves import draw_curves, draw_panel
from fedmpi.storage.reader import Run


def draw_at_once(
    runs: Sequence[Run], metric: str | None, x: str, ax: Any = None, label: str | None = None
) -> Any:
    """One metric on axes, which are returned; or all panels of `fedmpi plot`, an array of axes."""
    if metric is None:
        return np.array(draw_curves(group_runs(runs), label and [label], x=x).axes)
    known = dict.fromkeys(name for run in runs for name in run.metrics)
    if metric not in known:
        raise UserError(f"metric {metric}: unknown; {did_you_mean(metric, known)}")
    runs = [run for run in runs if metric in run.metrics]
    if not any(run.eval[metric].notna().any() for run in runs):
        raise UserError(f"nothing to draw: {metric} was not evaluated yet")
    from matplotlib import pyplot

    # On the axes of an earlier call, with the next colours and room for both.
    axis = ax if ax is not None else pyplot.subplots(figsize=(6, 4), layout="constrained")[1]
    groups, begun = group_runs(runs), len(axis.get_legend_handles_labels()[1])
    seen = axis.get_ylim()
    draw_panel(axis, groups, metric, [label] if label else [group.label for group in groups], x, begun)
    if begun:
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, seen[0]), max(high, seen[1]))
    axis.legend(frameon=False, fontsize=9)
    return axis
