"""A run in a few lines of text: what a notebook or the prompt shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedmpi.storage.reader import Run

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 30


def sparkline(values: np.ndarray, width: int) -> str:
    """A small curve of block characters, averaged to at most `width` of them.

    >>> sparkline(np.array([0.0, 1.0, 2.0, 7.0]), 10)
    '▁▂▃█'
    """
    if not len(values):
        return ""
    parts = np.array([part.mean() for part in np.array_split(values, min(width, len(values)))])
    low, high = parts.min(), parts.max()
    levels = (parts - low) / (high - low) * 7 if high > low else np.zeros(len(parts))
    return "".join(_BLOCKS[round(level)] for level in levels)


def sketch(run: Run) -> str:
    """Name, status and rounds; a small curve and the last value of each metric that was evaluated."""
    method = run.config["algorithm"]["name"]
    seed, rounds = run.config["run"]["seed"], run.config["run"]["num_rounds"]
    done = f"{run.status}, {len(run.train):,} of {rounds:,} rounds"
    lines = [f"Run {run.name!r}: {method}, seed {seed}, {done} ({run.path})"]
    width = max(14, *map(len, run.metrics))
    for name in run.metrics:
        values = run.eval[name].to_numpy()
        values = values[np.isfinite(values)]
        if len(values):
            lines.append(f"  {name:<{width}} {sparkline(values, _WIDTH):<{_WIDTH}} {values[-1]:.4f}")
    return "\n".join(lines)
