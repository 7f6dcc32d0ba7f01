"""Figures of earlier runs of `fedmpi bench` in a file, to compare a change with what was before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmpi.errors import UserError
from fedmpi.storage.output import write_output

FORMAT = "fedmpi-bench"

# The figures that are compared, and whether more is better. Ratios first: both sides were measured in one
# run; seconds and rounds depend on what else the machine did.
_COMPARED = {
    "ratio": True,
    "ratio_median": True,
    "rounds_per_s": True,
    "run_rounds_per_s": True,
    "times_by_hand": False,
    "seconds": False,
    "step_ms": False,
    "share_of_sgemm": True,
    "scaling": True,
}


def read_record(path: Path, option: str) -> list[dict[str, Any]]:
    """The results in a record, oldest first."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be read ({error.strerror})") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not found.get("results"):
        raise UserError(f"{option} {path}: not a record of figures; expected a file that --save made")
    return found["results"]


def add_to_record(path: Path, results: dict[str, Any]) -> None:
    """Append results to a record, or begin one."""
    before = read_record(path, "--save") if path.exists() else []
    text = json.dumps({"format": FORMAT, "results": [*before, results]}, indent=1)
    write_output(path, text.encode() + b"\n", "--save")


def compared(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Lines: every figure that both have, then and now, and the change."""
    lines = [f"against {before['version']} of {before['date']}, {before['machine']}:"]
    if now["machine"] != before["machine"]:
        lines.append(f"           another machine: now {now['machine']}")
    rows = list(_rows(now, before))
    if not rows:
        return [*lines, "           no figure was measured both times"]
    for figure, name, old, new, is_better in rows:
        change = (new / old - 1) * 100
        better = "" if abs(change) < 5 else "  better" if (change > 0) == is_better else "  worse"
        lines.append(f"{figure:<20} {name:<18} {old:>10.4g} -> {new:<10.4g} {change:+5.0f} %{better}")
    return lines


def _rows(
    now: dict[str, Any], before: dict[str, Any], figure: str = ""
) -> Iterator[tuple[str, str, float, float, bool]]:
    for key, value in now.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            yield from _rows(value, old, f"{figure} {key}".strip())
        elif figure and key in _COMPARED and isinstance(old, int | float) and old:
            yield figure, key.replace("_", " "), float(old), float(value), _COMPARED[key]
