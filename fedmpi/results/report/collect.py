"""What the page shows, taken from the run files: curves, figures, participation, timing, warnings."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedmpi.participation.cycle import stored_cycle
from fedmpi.results.groups import Group
from fedmpi.results.naming import is_lower_better
from fedmpi.results.settled import settled
from fedmpi.storage.clocks import CLOCKS, totals
from fedmpi.storage.columns import BESIDE_PHASES, DIVERGED, IN_ALL, RUNNING, STOPPED
from fedmpi.storage.reader import Run

MOST_POINTS = 1000  # of a curve; more would be finer than a screen
_ROWS, _COLUMNS = 64, 240  # of the participation picture
_MANY_RUNS = 30
_TAIL = 0.03  # of the evaluations, as in the paper's moving averages, and whole cycles


def curve(run: Run, metrics: Iterable[str] | None = None) -> dict[str, list]:
    """Evaluations thinned evenly to what a screen can show, first and last kept; gaps are null.

    `metrics` of all runs of a page, some of which this one may not record; default: its own.
    """
    count = len(run.eval)
    kept = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))
    rounds = run.eval["round"].to_numpy()[kept]
    columns: dict[str, list] = {"round": rounds.tolist()}
    for name, clock in CLOCKS.items():
        times = clock.after(run, rounds)
        if times is not None and name != "rounds":
            columns[name] = [float(f"{t:.8g}") for t in times]
    for name in run.metrics if metrics is None else metrics:
        values = run.eval[name].to_numpy() if name in run.eval else np.full(count, np.nan)
        # The training set may be evaluated at a different cadence: keep what there is.
        values = _carried(values, kept) if name.startswith("train") else values[kept]
        columns[name] = [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]
    return columns


def _carried(values: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """At each kept place the last finite value since the kept place before."""
    result = np.full(len(kept), np.nan)
    finite = np.flatnonzero(np.isfinite(values))
    place = np.searchsorted(kept, finite)
    result[place[place < len(kept)]] = values[finite[place < len(kept)]]
    return result


def figures(run: Run) -> dict[str, float]:
    """Last, best and settled figures of a run, directly from its file."""
    result: dict[str, float] = {}
    for name, metric in run.metrics.items():
        everything = run.eval[name].to_numpy()
        values = everything[np.isfinite(everything)]
        if len(values):
            best = values.min() if is_lower_better(metric) else values.max()
            at_least = max(1, round(_TAIL * len(values)))
            rounds, cycle = run.eval["round"].to_numpy(), stored_cycle(run.config)
            result |= {
                f"last {name}": float(values[-1]),
                f"best {name}": float(best),
                f"tail {name}": settled(rounds, everything, cycle, at_least),
            }
    return result | totals(run)


def spread(group: Group, name: str) -> tuple[float, float, int]:
    """Mean and standard deviation over the group's runs of one of their figures, and how many have it."""
    values = [f[name] for f in map(figures, group.runs) if name in f]
    if not values:
        return np.nan, np.nan, 0
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
    return float(np.mean(values)), deviation, len(values)


def participation_pictures(groups: Sequence[Group]) -> tuple[list[dict[str, Any]], list[int | None]]:
    """The different pictures, and which of them is each run's; of many runs only the first of a group."""
    pictures: dict[str, dict[str, Any]] = {}
    which: list[int | None] = []
    is_many = sum(len(group.runs) for group in groups) > _MANY_RUNS
    for group in groups:
        for number, run in enumerate(group.runs):
            picture = None if is_many and number else _picture(run)
            if picture is None:
                which.append(None)
                continue
            key = hashlib.sha256(repr(picture).encode()).hexdigest()
            pictures.setdefault(key, picture)
            which.append(list(pictures).index(key))
    return list(pictures.values()), which


def _picture(run: Run) -> dict[str, Any] | None:
    """Who took part when: over the whole run, merged into few enough cells, and in its first rounds."""
    clients, rounds = len(run.clients), len(run.train)
    if not clients or not rounds or not len(run.participation):
        return None
    rows = min(clients, _ROWS)
    row_of = np.arange(clients) * rows // clients
    often = np.bincount(run.participation["client"].to_numpy(), minlength=clients)[:clients]
    first = int(run.train["round"].iloc[0])
    picture = {
        "rows": rows, "clients": clients, "whole": _raster(run, row_of, first, rounds),
        "often": np.round(np.bincount(row_of, often) / np.bincount(row_of), 2).tolist(),
        "least": int(often.min()), "most": int(often.max()), "never": int((often == 0).sum()),
    }  # fmt: skip
    if rounds > _COLUMNS:
        picture["begin"] = _raster(run, row_of, first, _COLUMNS // 2)
    return picture


def _raster(run: Run, row_of: np.ndarray, first: int, rounds: int) -> dict[str, Any]:
    """The share of each cell's clients and rounds that took part, as bytes in base64."""
    columns = min(rounds, _COLUMNS)
    client, t = run.participation["client"].to_numpy(), run.participation["round"].to_numpy() - first
    inside = (client >= 0) & (client < len(row_of)) & (t >= 0) & (t < rounds)
    place = row_of[client[inside]] * columns + t[inside] * columns // rounds
    sizes = np.outer(np.bincount(row_of), np.bincount(np.arange(rounds) * columns // rounds))
    shares = np.bincount(place, minlength=sizes.size).reshape(sizes.shape) / sizes
    levels = np.ceil(255 * np.sqrt(shares / max(shares.max(), 1e-300))).astype(np.uint8)
    text = base64.b64encode(levels.tobytes()).decode()
    return {"first": first, "rounds": rounds, "columns": columns, "levels": text}


def phases(run: Run) -> list[dict[str, float]]:
    """Seconds of each rank by phase, with what is in none of them as "other"; empty while it runs."""
    try:
        ranks = json.loads(run.attributes.get("phases", "[]"))
        result = []
        for rank in ranks:
            named = {k: float(v) for k, v in rank.items() if k not in BESIDE_PHASES}
            named["other"] = max(float(rank[IN_ALL]) - sum(named.values()), 0.0)
            result.append({**named, **{k: float(rank.get(k, 0.0)) for k in BESIDE_PHASES}})
    except (ValueError, TypeError, KeyError, AttributeError):  # of another version
        return []
    return result


def warnings_of(run: Run) -> list[str]:
    """What a reader of the figures must know about a run."""
    done, total = len(run.train), run.config["run"]["num_rounds"]
    warnings = []
    if run.status == DIVERGED:
        warnings.append(f"diverged after {done:,} of {total:,} rounds: the model became infinite")
    elif run.status == STOPPED:
        warnings.append(f"stopped after {done:,} of {total:,} rounds; `fedmpi resume` continues it")
    elif run.status == RUNNING:
        warnings.append(f"still running, or killed, at {done:,} of {total:,} rounds")
    if not len(run.eval):
        warnings.append("holds no evaluation yet")
    samples = run.config["run"].get("eval_train_samples")
    if samples:
        warnings.append(f"training loss and accuracy are taken on a subset of {samples:,} samples")
    return warnings
