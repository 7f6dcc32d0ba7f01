"""Runs as a picture in a file, and the paper's figures as presets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedmpi.errors import UserError, did_you_mean
from fedmpi.results.groups import Group, group_runs
from fedmpi.results.plots.clients_figure import draw_clients
from fedmpi.results.plots.curves import draw_comparison, draw_curves
from fedmpi.results.plots.presets import draw_appendix, draw_participation, draw_timing
from fedmpi.results.plots.regularized import draw_regularized
from fedmpi.results.plots.style import figure_target, save_figure
from fedmpi.results.plots.trajectory import plot_trajectories
from fedmpi.storage.clocks import CLOCKS, clock_of
from fedmpi.storage.reader import load_run
from fedmpi.storage.runs import load_each

# Preset -> the config key that it compares, and its symbol in the paper.
_COMPARED = {
    "methods": ("algorithm.name", ""),
    "intervals": ("algorithm.amplify_every", "$P$"),
    "rates": ("algorithm.local_lr", r"$\gamma$"),
    "amplification": ("algorithm.amplification", r"$\eta$"),
}
_OTHERS: dict[str, Callable[[list[Group]], object]] = {
    "regularized": draw_regularized,
    "clients": draw_clients,
    "participation": draw_participation,
    "timing": draw_timing,
    "appendix": draw_appendix,
}
PRESETS = (*_COMPARED, *_OTHERS)


def plot(
    paths: Sequence[str],
    out: str,
    preset: str | None = None,
    *,
    x: str = "rounds",
    trajectory: bool = False,
) -> list[str]:
    """Draw the runs below the paths into one file, or with `trajectory` their paths in the plane.

    `x`: the clock of curves.

    Returns what was left out of a folder, and why.
    """
    if trajectory:
        plot_trajectories([load_run(path) for path in paths], out)
        return []
    target = figure_target(out, "--out")
    if preset is not None and preset not in PRESETS:
        raise UserError(f"--preset {preset}: unknown; {did_you_mean(preset, PRESETS)}")
    if clock_of(x) is not CLOCKS["rounds"] and preset in _OTHERS:
        raise UserError(
            f"--x {x}: not with --preset {preset}, which draws no curves; leave one of them out"
        )
    runs, skipped = load_each(paths)
    if skipped and not (len(paths) == 1 and Path(paths[0]).is_dir()):  # a folder may hold other files
        raise UserError(skipped[0])
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = _drawing(preset, x)(group_runs(runs))
    save_figure(figure, target, "--out")
    pyplot.close(figure)
    return skipped


def _drawing(preset: str | None, x: str) -> Callable[[list[Group]], object]:
    if preset is None:
        return lambda groups: draw_curves(groups, x=x)
    if preset in _COMPARED:
        return lambda groups: draw_comparison(groups, *_COMPARED[preset], x)
    return _OTHERS[preset]
