"""A picture of advice: delta^2(P) over P, and the bound's terms as stacked bars."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmpi.results.plots.style import figure_target, save_figure
from fedmpi.theory.advice import Adviser

_COLOURS = {"start": "#0072B2", "nu": "#56B4E9", "beta": "#009E73", "delta": "#D55E00", "noise": "#999999"}
_LABELS = {
    "start": "start", "nu": "nu² (in a round)", "beta": "beta² (round against all)",
    "delta": "delta²(P) (uneven over P)", "noise": "sigma² (noise)",
}  # fmt: skip


def plot_advice(adviser: Adviser, report: dict[str, Any], name: str, out: str) -> None:
    """Draw advice into a file."""
    target = figure_target(out, "--plot")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    has_bound = report["bound"] is not None
    figure, axes = pyplot.subplots(
        1, 1 + has_bound, figsize=(5.6 + 4.4 * has_bound, 4), squeeze=False, layout="constrained"
    )
    _draw_curve(axes[0, 0], adviser, report)
    if has_bound:
        _draw_bars(axes[0, 1], report)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
    figure.suptitle(
        f"Theory of {name}: {adviser.q.num_clients:,} clients, rho {report['rho']:.3g}", fontsize=11
    )
    save_figure(figure, target, "--plot")
    pyplot.close(figure)


def _draw_curve(axis: object, adviser: Adviser, report: dict[str, Any]) -> None:
    periods, worst, mean = (np.array(column) for column in zip(*adviser.curve, strict=True))
    is_even = worst == 0
    positive = worst[~is_even]
    floor = positive.min() / 10 if len(positive) else 0.1
    for values, colour, style, label in (
        (worst, "#B33C00", "o-", "worst interval"), (mean, "#0072B2", "s--", "mean of intervals"),
    ):  # fmt: skip
        shown = np.where(values > 0, values, np.nan)
        axis.plot(periods, shown, style, color=colour, markersize=4, linewidth=1.4, label=label)
    if is_even.any():
        axis.plot(
            periods[is_even], np.full(is_even.sum(), floor), "v", color="#009E73", markersize=8,
            label="exactly 0: regularized", clip_on=False,
        )  # fmt: skip
    own, wanted = adviser.rates.amplify_every, report["suggested"]["amplify_every"]
    axis.axvline(own, color="grey", linestyle=":", linewidth=1.2, label=f"this config, P = {own:,}")
    if report["bias"]["is_biased"]:
        axis.axhline(
            report["bias"]["floor"], color="#D55E00", linestyle="-.", linewidth=1.2,
            label="biased: no P goes below", zorder=0,
        )  # fmt: skip
    elif wanted != own:
        axis.axvline(wanted, color="black", linestyle="--", linewidth=1, label=f"suggested, P = {wanted:,}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = [m * 10**k for k in range(7) for m in (1, 2, 5) if m * 10**k <= periods[-1]]
    ticks = ticks if len(ticks) < 8 else [tick for tick in ticks if str(tick)[0] == "1"]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("P, rounds between amplifications")
    axis.set_title("delta²(P) / d², from the weights alone", fontsize=11, loc="left")
    axis.legend(frameon=False, fontsize=8)


def _draw_bars(axis: object, report: dict[str, Any]) -> None:
    bars = [("this config", report["bound"]), ("suggested", report["bound_suggested"])]
    bars = [(label, terms) for label, terms in bars if terms]
    bottom = np.zeros(len(bars))
    shares = np.array([[terms[term] / terms["total"] for _, terms in bars] for term in _COLOURS])
    for (term, colour), heights in zip(_COLOURS.items(), 100 * shares, strict=True):
        axis.bar(
            [label for label, _ in bars],
            heights,
            bottom=bottom,
            color=colour,
            label=_LABELS[term],
            width=0.55,
        )
        bottom += heights
    for place, (_, terms) in enumerate(bars):
        axis.text(place, 101, f"{terms['total']:.3g}", ha="center", va="bottom", fontsize=10)
    axis.set_ylim(0, 112)
    axis.set_xlim(-0.5, 2.6)
    axis.set_ylabel("Share of the bound (%), its value on top")
    axis.set_title("What the bound on min |grad f|² is made of", fontsize=11, loc="left")
    axis.legend(frameon=False, fontsize=8, loc="center right", reverse=True)
