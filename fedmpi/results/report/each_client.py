"""The section of the page on clients: how even the model is to them, in a table and a picture each."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from fedmpi.results.fairness import fairness, last_values, metrics_of
from fedmpi.results.groups import Group
from fedmpi.results.report.sections import cell, figure_cell, html_table
from fedmpi.storage.columns import PARTS

_COLUMNS = {
    "mean": "mean", "std": "std over clients", "median": "median", "worst_decile": "worst 10 %",
    "worst": "worst", "best": "best",
}  # fmt: skip
_WIDTH, _HEIGHT = 120, 26  # of a small picture
_POINTS = 60


def clients(groups: Sequence[Group]) -> str:
    """A table of all groups, sets and metrics at the last evaluation; nothing without such evaluations."""
    rows = [row for group in groups for row in _rows(group)]
    if not rows:
        return ""
    head = [
        "Group",
        "Samples",
        "Metric",
        "Clients",
        *_COLUMNS.values(),
        "Jain's index",
        "From worst to best",
    ]
    return (
        f'<section id="clients"><h2>Clients</h2>{html_table("each-client", head, rows)}'
        '<p class="quiet">At the last evaluation of clients; every client counts the same. Worst 10 %: '
        "mean over the clients with the smallest accuracy, or the largest loss. ± over seeds. Jain's index "
        "is 1 if all clients have the same accuracy.</p></section>"
    )


def _rows(group: Group) -> list[list[str]]:
    runs = [run for run in group.runs if run.clients_eval is not None and len(run.clients_eval)]
    lasts = []
    for run in runs:
        table = fairness(run)
        lasts.append(table[table["round"] == table["round"].max()].set_index(["part", "metric"]))
    rows = []
    for part in PARTS:
        for metric in metrics_of(runs[0]) if runs else ():
            own = [table.loc[(part, metric)] for table in lasts if (part, metric) in table.index]
            if own:
                rows.append(
                    [
                        cell(group.label),
                        cell(part),
                        cell(f"{metric}, %" if metric.endswith("accuracy") else metric),
                        cell(f"{int(own[0]['clients']):,}", int(own[0]["clients"])),
                        *(_spread_cell(metric, [row[column] for row in own]) for column in _COLUMNS),
                        _spread_cell("jain", [row["jain"] for row in own]),
                        f"<td>{_picture(last_values(runs[0], part, metric), group.label, metric)}</td>",
                    ]
                )
    return rows


def _spread_cell(metric: str, values: Sequence[float]) -> str:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
    return figure_cell(metric, float(np.mean(values)), deviation)


def _picture(values: np.ndarray, label: str, metric: str) -> str:
    """A line through all clients, from worst to best."""
    if not len(values) or not np.isfinite(values).all():
        return ""
    shown = values[np.linspace(0, len(values) - 1, min(len(values), _POINTS)).round().astype(int)]
    low, high = float(shown.min()), float(shown.max())
    heights = (shown - low) / (high - low) if high > low else np.full(len(shown), 0.5)
    across = np.linspace(1, _WIDTH - 1, len(shown))
    points = " ".join(
        f"{x:.1f},{_HEIGHT - 2 - y * (_HEIGHT - 4):.1f}" for x, y in zip(across, heights, strict=True)
    )
    title = f"{label}, {metric} of clients: {low:.4g} to {high:.4g}"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"><title>{escape(title)}</title>'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
