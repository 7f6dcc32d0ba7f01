"""The best settings of each method of a sweep, mean and spread over seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpi.experiments.sweep.store import Store
from fedmpi.participation.cycle import stored_cycle
from fedmpi.results.settled import settled
from fedmpi.storage.columns import DONE, metric_of
from fedmpi.storage.reader import load_table, read_attributes, read_config


@dataclass(frozen=True)
class Group:
    """One setting of one method over its seeds."""

    method: str
    settings: dict[str, Any]
    values: list[float]  # of the runs that are done
    num_seeds: int
    paths: list[Path]  # of all runs
    higher_is_better: bool = False

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    @property
    def text(self) -> str:
        """Mean and standard deviation."""
        spread = f" ± {statistics.stdev(self.values):.4f}" if len(self.values) > 1 else ""
        return f"{self.mean:.4f}{spread}"


def best_lines(groups: list[Group], metric: str, *, everything: bool = False) -> list[str]:
    """A table of each method's best setting, or of all of them, best first."""
    sign = -1 if any(group.higher_is_better for group in groups) else 1
    complete = _complete(groups)
    unfinished = sum(g.num_seeds - len(g.values) for g in groups)
    rows = []
    for method in dict.fromkeys(group.method for group in groups):
        ranked = sorted((g for g in complete if g.method == method), key=lambda g: sign * g.mean)
        rows += [_row(g, groups) for g in (ranked if everything else ranked[:1])]
        if not ranked:
            rows.append([method, "no setting is done for all seeds", "", "", ""])
    lines = _table([["method", "settings", metric.replace("_", " "), "seeds", ""], *rows])
    if unfinished:
        lines.append(
            f"{unfinished} of {sum(g.num_seeds for g in groups)} runs have no result (diverged, failed or "
            "not done); settings without all their seeds are left out"
        )
    return lines


def best_groups(groups: list[Group]) -> list[Group]:
    """The best setting of each method: lowest loss, highest accuracy."""
    choose = max if any(group.higher_is_better for group in groups) else min
    by_method: dict[str, list[Group]] = {}
    for group in _complete(groups):
        by_method.setdefault(group.method, []).append(group)
    return [choose(some, key=lambda group: group.mean) for some in by_method.values()]


def _complete(groups: list[Group]) -> list[Group]:
    return [group for group in groups if len(group.values) == group.num_seeds]


def collect(store: Store, metric: str, last: int = 1, *, whole_cycles: bool = True) -> list[Group]:
    """All settings of a sweep with the metric of each finished run, a mean over its last evaluations.

    At least `last` of them, and whole cycles of a periodic availability.
    """
    groups: dict[str, Group] = {}
    for entry in store.plan():
        key = repr((entry["method"], sorted(entry["settings"].items(), key=lambda item: item[0])))
        group = groups.get(key) or Group(entry["method"], entry["settings"], [], 0, [])
        outcome = store.outcome(entry["name"])
        values, is_higher = list(group.values), group.higher_is_better
        if outcome is not None and outcome.status == DONE:
            path = store.run_path(entry["name"])
            table, attributes = load_table(path, "eval"), read_attributes(path)
            is_higher = metric_of(attributes, metric).better == "higher"
            cycle = stored_cycle(read_config(str(attributes["config"]))) if whole_cycles else 1
            reached = settled(table["round"], table[metric], cycle, last)
            values += [reached] if math.isfinite(reached) else []
        paths = [*group.paths, store.run_path(entry["name"])]
        groups[key] = Group(
            group.method, group.settings, values, group.num_seeds + 1, paths, is_higher
        )  # fmt: skip
    return list(groups.values())


def _row(group: Group, groups: list[Group]) -> list[str]:
    settings = ", ".join(f"{key.partition('.')[2]} {_show(value)}" for key, value in group.settings.items())
    return [group.method, settings, group.text, str(len(group.values)), _edges(group, groups)]


def _edges(group: Group, groups: list[Group]) -> str:
    """A best value at the end of its axis calls for a wider grid."""
    notes = []
    for key, value in group.settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        axis = {g.settings.get(key) for g in groups if g.method == group.method} - {None}
        if len(axis) > 2 and value in (min(axis), max(axis)):
            side = "lowest" if value == min(axis) else "highest"
            notes.append(f"{key.partition('.')[2]} is the {side} tried")
    return "; ".join(notes)


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
