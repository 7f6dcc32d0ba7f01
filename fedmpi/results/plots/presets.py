"""Presets of `fedmpi plot` other than curves: participation, time by phase and rank, trajectories."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from fedmpi.errors import UserError
from fedmpi.results.groups import Group
from fedmpi.results.plots.style import COLOURS, tidy
from fedmpi.results.report.collect import phases
from fedmpi.storage.columns import BESIDE_PHASES, IDLE, IN_ALL
from fedmpi.storage.reader import Run

_MOST_PANELS = 4
_RASTER_ROUNDS = 200
_MOST_BARS = 16  # runs or ranks; more could not be read
_LITTLE_IDLE = 20.0  # percent; less is drawn in dark colours
_CYAN = "#00B7D8"


def draw_participation(groups: Sequence[Group]) -> object:
    """Who took part in the first rounds, and how often in total; a row for each different participation."""
    from matplotlib import pyplot

    begun = [group for group in groups if len(group.runs[0].participation)]
    different = {_who(group.runs[0]): group for group in reversed(begun)}
    shown = list(reversed(different.values()))[:_MOST_PANELS]
    if not shown:
        raise UserError("nothing to draw: none of the runs holds a round with participants")
    figure, axes = pyplot.subplots(
        len(shown), 2, figsize=(11, 1 + 2.8 * len(shown)), squeeze=False, width_ratios=[3, 1],
        layout="constrained",
    )  # fmt: skip
    for (raster, counts), group in zip(axes, shown, strict=True):
        run = group.runs[0]
        rounds, clients = min(len(run.train), _RASTER_ROUNDS), len(run.clients)
        first = run.train["round"].iloc[0]
        table = run.participation[run.participation["round"] < first + rounds]
        cells = np.zeros((clients, rounds))
        cells[table["client"], table["round"] - first] = 1
        raster.imshow(
            cells, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=1.2, interpolation="nearest",
            extent=(first - 0.5, first + rounds - 0.5, -0.5, clients - 0.5),
        )  # fmt: skip
        raster.set(xlabel="Round", ylabel="Client")
        raster.set_title(_wrapped(f"{group.label}: who takes part", 90), fontsize=10, loc="left")
        often = np.bincount(run.participation["client"], minlength=clients)
        counts.barh(np.arange(clients), often, height=1.0, color=COLOURS[1], zorder=2)
        counts.set(xlabel=f"Of {len(run.train):,} rounds", ylim=(-0.5, clients - 0.5))
        counts.set_title("How often", fontsize=10, loc="left")
        tidy(counts)
    return figure


def _who(run: Run) -> bytes:
    return b"".join(run.participation[name].to_numpy().tobytes() for name in ("round", "client"))


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))


def draw_timing(groups: Sequence[Group]) -> object:
    """Time by phase of each run, mean over ranks, and the share that each rank waits."""
    from matplotlib import pyplot

    runs = [(group, run) for group in groups for run in group.runs if phases(run)]
    if not runs:
        raise UserError("nothing to draw: times by phase are written when a run ends, and none has them")
    shown = runs[:_MOST_BARS]
    labels = [_wrapped(_run_label(group, run), 44) for group, run in shown]
    lines = max(label.count("\n") + 1 for label in labels)
    figure, (bars, idle) = pyplot.subplots(
        1, 2, figsize=(12, 1.9 + (0.18 + 0.14 * lines) * len(shown)), layout="constrained",
        width_ratios=[1.6, 1],
    )  # fmt: skip
    names = list(dict.fromkeys(n for _, run in shown for rank in phases(run) for n in rank))
    names = [name for name in names if name not in BESIDE_PHASES]
    left = np.zeros(len(shown))
    for number, name in enumerate(names):
        seconds = np.array([np.mean([rank.get(name, 0.0) for rank in phases(run)]) for _, run in shown])
        # Beyond the seven colours, hatches distinguish the phases.
        hatch = "//" if number >= len(COLOURS) else None
        colour = COLOURS[number % len(COLOURS)]
        bars.barh(np.arange(len(shown)), seconds, left=left, label=name, color=colour, hatch=hatch)
        left += seconds
    bars.set_yticks(np.arange(len(shown)), labels, fontsize=8)
    bars.invert_yaxis()
    bars.set_xlabel("Seconds, mean over ranks")
    bars.set_title("Where the time went", fontsize=11, loc="left")
    figure.legend(frameon=False, fontsize=9, ncols=len(names), loc="outside lower center")
    tidy(bars)
    bars.set_axisbelow(True)
    _draw_idle(idle, [run for _, run in shown])
    return figure


def _draw_idle(axis: object, runs: Sequence[Run]) -> None:
    """Share of the time that each rank waits for others, one row per run."""
    width = max(len(phases(run)) for run in runs)
    shares = np.full((len(runs), width), np.nan)
    for row, run in enumerate(runs):
        for rank, seconds in enumerate(phases(run)):
            shares[row, rank] = 100 * seconds.get(IDLE, 0.0) / max(seconds[IN_ALL], 1e-9)
    most = max(np.nanmax(shares), _LITTLE_IDLE)
    image = axis.imshow(shares, aspect="auto", cmap="cividis", vmin=0, vmax=most)
    for row, rank in np.argwhere(np.isfinite(shares)) if width <= _MOST_BARS else []:
        axis.text(rank, row, f"{shares[row, rank]:.0f}", ha="center", va="center", fontsize=8,
                  color="white" if shares[row, rank] < 0.6 * most else "black")  # fmt: skip
    ticks = np.unique(np.linspace(0, width - 1, min(width, 8)).astype(int))
    axis.set(xlabel="Rank", yticks=[], xticks=ticks)
    axis.set_title("Waiting for others (% of the time)", fontsize=11, loc="left")
    axis.figure.colorbar(image, ax=axis)


def draw_appendix(groups: Sequence[Group]) -> object:
    """Trajectories x_t in the plane, with amplification steps in cyan and the clients' optima."""
    from matplotlib import pyplot

    shown = [g for g in groups if g.runs[0].params is not None and g.runs[0].params[1].shape[1] == 2]
    if not shown:
        raise UserError(
            "nothing to draw: trajectories need a model of two parameters and run.record_params_every > 0, "
            "as in configs/appendix-example.toml"
        )
    shown = shown[:_MOST_PANELS]
    figure, axes = pyplot.subplots(
        1, len(shown), figsize=(4 * len(shown) + 0.4, 4.3), squeeze=False, sharex=True, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for axis, group in zip(axes[0], shown, strict=True):
        _draw_trajectory(axis, group.runs[0])
        axis.set_title(group.label, fontsize=11)
        axis.set_aspect("equal", adjustable="box")
        axis.set_xlabel("$x_1$")
        tidy(axis)
    axes[0, 0].set_ylabel("$x_2$")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    for axis in axes[0, 1:]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles, labels = [*handles, handle], [*labels, label]
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=5, loc="outside lower center")
    return figure


def _draw_trajectory(axis: object, run: Run) -> None:
    rounds, x = run.params
    # A step from t to t' is an amplification if a round in between was one, and enlarged something.
    ends = set((run.train["round"][run.train.is_amplification] + 1).tolist())
    is_enlarged = run.config["algorithm"].get("amplification", 1.0) != 1.0
    axis.plot(*x.T, color=COLOURS[0], marker=".", linewidth=1.2, label="round")
    pairs = zip(rounds[:-1], rounds[1:], x[:-1], x[1:], strict=True)
    steps = [(a, b) for s, t, a, b in pairs if is_enlarged and any(s < end <= t for end in ends)]
    for number, (a, b) in enumerate(steps):
        label = "round with amplification" if number == 0 else None
        axis.plot([a[0], b[0]], [a[1], b[1]], color=_CYAN, linewidth=2.6, label=label)
    axis.plot(*x[0], "s", color=COLOURS[6], label="start")
    centers = np.array(run.config["data"].get("centers", np.zeros((0, 2))))
    if centers.ndim == 2 and centers.shape[1:] == (2,) and len(centers):
        axis.plot(*centers.T, "^", color=COLOURS[2], linestyle="", label="client optima")
        axis.plot(*centers.mean(axis=0), "*", color=COLOURS[1], markersize=14, label="optimum")


def _run_label(group: Group, run: Run) -> str:
    return f"{group.label}, seed {run.config['run']['seed']}" if len(group.runs) > 1 else group.label
