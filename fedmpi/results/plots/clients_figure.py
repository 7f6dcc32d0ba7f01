"""How clients are served: the spread over them while training goes on, and all of them at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmpi.errors import UserError
from fedmpi.results.fairness import (
    WORST_SHARE,
    fairness,
    is_lower_better,
    last_values,
    metrics_of,
    parts_in,
)
from fedmpi.results.groups import Group
from fedmpi.results.plots.style import colours, tidy
from fedmpi.storage.columns import PARTS
from fedmpi.storage.reader import Run

_SHARES = np.linspace(0, 1, 201)  # of the clients, from worst to best
_OF = {"train": "their training samples", "test": "their test samples", "held-out": "held-out clients"}


def draw_clients(groups: Sequence[Group]) -> object:
    """A row for each set of samples: mean and worst tenth over rounds; all clients from worst to best."""
    from matplotlib import pyplot

    groups = [g for g in groups if any(run.clients_eval is not None for run in g.runs)]
    runs = [run for group in groups for run in group.runs if run.clients_eval is not None]
    if not runs:
        raise UserError("nothing to draw: no run evaluates its clients; set run.eval_clients_every")
    present = {part for run in runs for part in parts_in(run)}
    parts, metric, label = [part for part in PARTS if part in present], *_metric(runs)
    figure, axes = pyplot.subplots(
        len(parts), 2, figsize=(10.4, 0.7 + 3.4 * len(parts)), squeeze=False, layout="constrained",
        sharey="row",
    )  # fmt: skip
    for (over_rounds, at_end), part in zip(axes, parts, strict=True):
        for group, colour in zip(groups, colours(len(groups)), strict=True):
            own = [run for run in group.runs if run.clients_eval is not None and part in parts_in(run)]
            if own:
                _draw_rounds(over_rounds, own, part, metric, colour)
                _draw_end(at_end, own, part, metric, colour, group.label)
        over_rounds.set(xlabel="Round", ylabel=label)
        over_rounds.set_title(f"On {_OF[part]}: mean, and worst tenth (dashed)", fontsize=10, loc="left")
        at_end.set(xlabel="Clients from worst to best (%)", xlim=(0, 100))
        at_end.set_title("Each client at the end", fontsize=10, loc="left")
        tidy(over_rounds)
        tidy(at_end)
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=3, loc="outside lower center")
    return figure


def _metric(runs: Sequence[Run]) -> tuple[str, str]:
    """The first of which more is better, where there is one, and its axis; of what all runs have."""
    shared = [metrics_of(run) for run in runs]
    known = {
        name: column
        for name, column in shared[0].items()
        if all(name in other for other in shared) and any(r.clients_eval[name].notna().any() for r in runs)
    }
    metric = next((name for name, column in known.items() if not is_lower_better(column)), "loss")
    units = "%" if _scale(metric) == 100 else known[metric].units
    return metric, f"{metric.replace('_', ' ').capitalize()} of a client ({units})"


def _scale(metric: str) -> float:
    return 100 if metric.endswith("accuracy") else 1


def _draw_rounds(axis: object, runs: Sequence[Run], part: str, metric: str, colour: str) -> None:
    """Mean over clients, and over the worst tenth of them; means over seeds."""
    tables = [fairness(run) for run in runs]
    own = [t[(t["part"] == part) & (t["metric"] == metric)].set_index("round") for t in tables]
    for column, style in (("mean", "-"), ("worst_decile", "--")):
        joined = sum(table[column] for table in own) / len(own)
        axis.plot(joined.index, _scale(metric) * joined, style, color=colour, linewidth=1.5)
    low, high = (sum(table[column] for table in own) / len(own) for column in ("worst_decile", "mean"))
    axis.fill_between(low.index, _scale(metric) * low, _scale(metric) * high, color=colour, alpha=0.1)


def _draw_end(axis: object, runs: Sequence[Run], part: str, metric: str, colour: str, label: str) -> None:
    """All clients from worst to best; mean over seeds."""
    curves = []
    for run in runs:
        values = last_values(run, part, metric)
        if len(values):
            curves.append(np.interp(_SHARES, np.linspace(0, 1, len(values)), values))
    if curves:
        values = _scale(metric) * np.mean(curves, axis=0)
        axis.plot(100 * _SHARES, values, color=colour, label=label, linewidth=1.5)
        axis.axvspan(0, 100 * WORST_SHARE, color="grey", alpha=0.06, linewidth=0)
