"""A picture of participation: who is available when, how many, and how long clients are absent."""

from __future__ import annotations

import numpy as np

from fedmpi.participation.survey import Survey
from fedmpi.results.plots.style import figure_target, save_figure

# Dark on light, so that the states also differ without colour.
_STATES = (("away", "#F2F2F2"), ("available", "#8CC7EA"), ("taking part", "#B33C00"))
_AVAILABLE, _TAKING_PART = "#0072B2", "#B33C00"
_MOST_COLUMNS = 500  # of the raster; more would be finer than the picture
_MOST_BARS = 60


def plot_participation(survey: Survey, title: str, out: str) -> None:
    """Draw a survey into a file."""
    target = figure_target(out, "--plot")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(10, 7.2), layout="constrained")
    parts = figure.subplot_mosaic([["who", "who"], ["count", "gap"]], height_ratios=[1.5, 1])
    _draw_raster(parts["who"], survey)
    _draw_counts(parts["count"], survey)
    _draw_gaps(parts["gap"], survey)
    for name in ("count", "gap"):
        parts[name].spines[["top", "right"]].set_visible(False)
        parts[name].grid(alpha=0.25)
        parts[name].set_axisbelow(True)
    figure.suptitle(f"{title}\n{_facts(survey)}", fontsize=11)
    save_figure(figure, target, "--plot")
    pyplot.close(figure)


def _facts(survey: Survey) -> str:
    facts = [f"{survey.num_clients:,} clients", f"rho {survey.rho:.3g}"]
    facts.append(f"longest absence {survey.longest_absence:,} rounds")
    if len(survey.seen_shares):
        facts.append(f"{100 * survey.seen_shares.mean():.3g} % seen in P = {survey.window:,} rounds")
    return ", ".join(facts)


def binned(raster: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Rounds merged into at most `most` rows, the highest state of each; and rounds per row.

    >>> binned(np.array([[0], [2], [1], [0], [1]]), 3)
    (array([[2],
           [1],
           [1]]), 2)
    """
    size = -(-len(raster) // most)
    starts = np.arange(0, len(raster), size)
    return np.maximum.reduceat(raster, starts, axis=0), size


def _draw_raster(axis: object, survey: Survey) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    cells, size = binned(survey.raster, _MOST_COLUMNS)
    colours = ListedColormap([colour for _, colour in _STATES])
    rounds = len(cells) * size
    axis.imshow(
        cells.T, cmap=colours, vmin=0, vmax=2, aspect="auto", interpolation="nearest", origin="lower",
        extent=(-0.5, rounds - 0.5, -0.5, len(survey.sample) - 0.5),
    )  # fmt: skip
    axis.set_xlim(-0.5, len(survey.raster) - 0.5)
    ticks = np.unique(np.linspace(0, len(survey.sample) - 1, min(len(survey.sample), 6)).astype(int))
    axis.set_yticks(ticks, [f"{n:,}" for n in survey.sample[ticks]])
    is_part = len(survey.sample) < survey.num_clients
    axis.set_ylabel(
        f"Client ({len(survey.sample)} of {survey.num_clients:,} drawn, evenly spaced)"
        if is_part
        else "Client"
    )
    axis.set_xlabel(
        "Round"
        if size == 1
        else f"Round ({size} rounds a column, which shows the most that a client did in them)"
    )
    patches = [Patch(facecolor=colour, edgecolor="grey", label=name) for name, colour in _STATES]
    axis.legend(
        handles=patches, ncols=3, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1)
    )
    axis.set_title("Who is available when", fontsize=11, loc="left")


def _draw_counts(axis: object, survey: Survey) -> None:
    rounds = np.arange(len(survey.participants))
    lines = [
        ("available", survey.available, _AVAILABLE, "-"),
        ("taking part", survey.participants, _TAKING_PART, "--"),
    ]
    if np.array_equal(survey.available, survey.participants):
        lines = [("available, all taking part", survey.participants, _TAKING_PART, "-")]
    for label, values, colour, style in lines:
        axis.plot(rounds, values, style, color=colour, linewidth=1, label=label)
    highest = int(survey.available.max(initial=1))
    axis.set_ylim(0, max(highest, 1) * 1.08)
    if highest > 30 * max(survey.participants.max(), 1):  # both must be visible
        axis.set_yscale("symlog", linthresh=1)
        axis.set_ylim(0, highest * 2)
    axis.set_xlabel("Round")
    axis.set_ylabel("Clients")
    axis.set_title("Clients a round", fontsize=11, loc="left")
    axis.legend(frameon=False, fontsize=9, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_gaps(axis: object, survey: Survey) -> None:
    axis.set_title("Rounds until a client takes part again", fontsize=11, loc="left")
    axis.set_xlabel("Rounds since it last took part (1 = the next round)")
    axis.set_ylabel("Times")
    lengths = np.flatnonzero(survey.gaps)
    if not len(lengths):
        axis.text(0.5, 0.5, "nobody took part twice", ha="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return
    width = -(-int(lengths[-1]) // _MOST_BARS)
    heights = np.add.reduceat(survey.gaps[1 : lengths[-1] + 1], np.arange(0, lengths[-1], width))
    starts = 1 + width * np.arange(len(heights))
    axis.bar(starts - 0.5, heights, width=width, align="edge", color=_TAKING_PART, edgecolor="white")
    axis.set_yscale("log")
    axis.set_ylim(0.5, None)
