"""The table of evaluations of many runs: a pandas table that shows and draws its runs.

Invariant: it holds nothing but its rows; whatever is selected or computed from it is a plain pandas table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from pandas.plotting import PlotAccessor

from fedmpi.results.groups import differing_keys_of, value_text
from fedmpi.storage.columns import METRICS_ATTRIBUTE, headline
from fedmpi.storage.reader import Run
from fedmpi.storage.sketch import sparkline

_MOST_RUNS, _MOST_KEYS = 20, 4
_WIDTH = 16


class Drawing(PlotAccessor):
    """What pandas draws; and with the name of a metric, or nothing, what fedmpi draws."""

    def __call__(
        self, metric: str | None = None, *rest: Any, x: str = "rounds", ax: Any = None, **options: Any
    ) -> Any:
        """`plot("test_accuracy", x="bytes")`: groups of runs with a band over seeds, on axes."""
        parent = self._parent
        is_ours = metric is None or metric in parent.metric_names() or metric not in parent.columns
        if rest or options or not is_ours:  # plot("round", "train_loss") and the like
            own = {"x": x} if x != "rounds" else {}
            arguments = (metric, *rest) if metric is not None else rest
            return super().__call__(*arguments, **own, **options, **({} if ax is None else {"ax": ax}))
        from fedmpi.results.plots.at_once import draw_at_once  # here, since matplotlib takes time to load

        return draw_at_once(list(parent.runs()), metric, x, ax)


class Runs(pandas.DataFrame):
    """What `load_runs` gives of evaluations."""

    @property
    def _constructor(self) -> type[pandas.DataFrame]:
        return pandas.DataFrame

    @property
    def plot(self) -> Drawing:
        """As `fedmpi plot` draws, or as pandas does."""
        return Drawing(self)

    def metric_names(self) -> list[str]:
        """What the tasks of these runs record."""
        return [metric["name"] for metric in self.attrs["metrics"]]

    def runs(self) -> Iterator[Run]:
        """Each run as far as the table knows it."""
        for path, rows in self.groupby("file", sort=False, observed=True):
            first = rows.iloc[0]
            own = [m for m in self.attrs["metrics"] if rows[m["name"]].notna().any()]
            rows = pandas.DataFrame(rows).reset_index(drop=True)
            yield Run(
                path=Path(path), status=first.status, config=_config(first), eval=rows,
                attributes={METRICS_ATTRIBUTE: json.dumps(own)},
                train=None, participation=None, clients=None, global_params=None, params=None,
            )  # fmt: skip

    def _lines(self) -> tuple[list[str], list[list[str]]]:
        """Headings and cells: a line for each run, with what differs between their configs."""
        runs = list(self.runs())
        keys = differing_keys_of([run.config for run in runs])[:_MOST_KEYS] if runs else []
        shown = dict.fromkeys(("train_loss", headline(self.metric_names())))
        metrics = [name for name in shown if name in self and self[name].notna().any()]
        lines = []
        for run in runs[:_MOST_RUNS]:
            values = [run.config.get(s, {}).get(k) for s, _, k in (key.partition(".") for key in keys)]
            cells = [run.name, *map(value_text, values), str(run.config["run"]["seed"]), run.status]
            cells.append(f"{run.eval['round'].iloc[-1]:,}")
            lines.append(cells + [_curve(run.eval[name].to_numpy()) for name in metrics])
        return ["run", *keys, "seed", "status", "rounds", *metrics], lines

    def _caption(self) -> str:
        count = self.file.nunique()
        more = f", the first {_MOST_RUNS} here" if count > _MOST_RUNS else ""
        runs = f"{count:,} run{'s' * (count != 1)}{more}"
        return f"{runs}; {len(self):,} rows x {self.shape[1]} columns, .head() shows some"

    def __repr__(self) -> str:
        head, lines = self._lines()
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        texts = ["  ".join(f"{c:<{w}}" for c, w in zip(r, widths, strict=True)) for r in (head, *lines)]
        return "\n".join([self._caption(), *(text.rstrip() for text in texts)])

    def _repr_html_(self) -> str:
        head, lines = self._lines()
        heads = "".join(f"<th>{escape(text)}</th>" for text in head)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in cells)}</tr>" for cells in lines
        )
        return (
            f"<table><caption>{escape(self._caption())}</caption><thead><tr>{heads}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _config(row: pandas.Series) -> dict[str, dict[str, Any]]:
    """The config that stands in the columns of a row; lists are JSON there."""
    config: dict[str, dict[str, Any]] = {}
    for column, value in row.items():
        section, dot, key = column.partition(".")
        if not dot or (value is None or value != value):  # nan: the run has no such key
            continue
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, str) and value[:1] in "[{":
            value = json.loads(value)
        config.setdefault(section, {})[key] = value
    return config


def _curve(values: np.ndarray) -> str:
    """A small curve and the last value."""
    values = values[np.isfinite(values)]
    return f"{sparkline(values, _WIDTH):<{_WIDTH}} {values[-1]:.4f}" if len(values) else "-"
