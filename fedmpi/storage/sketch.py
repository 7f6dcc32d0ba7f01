"""A run in a few lines of text: what a notebook or the prompt shows of it."""

from __future__ import annotations

import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedmpi.storage.reader import Run

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 30
_SECTIONS = ("algorithm", "participation", "warmup", "model", "data", "run")  # the most telling first
_TOLD = ("algorithm.name", "run.name", "run.num_rounds", "run.seed")


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
    """Name, status and rounds; a small curve and the last value of each metric; what the config sets."""
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
    return "\n".join([*lines, *_settings(run)])


def _settings(run: Run) -> list[str]:
    """Keys that differ from their defaults, folded; without those that the first line has."""
    from fedmpi.config.effects import default_of  # here: reading a file needs no list of keys
    from fedmpi.config.keys import sections

    shown = []
    for section in _SECTIONS:
        given = run.config.get(section, {})
        for key in fields(sections()[section]):
            usual = default_of(key), key.metadata["otherwise"]
            if key.name in given and given[key.name] not in usual and f"{section}.{key.name}" not in _TOLD:
                name = section if key.name == "name" else key.name
                shown.append(f"{name} {given[key.name]}")
    text = ", ".join(shown)
    return textwrap.wrap(text, 98, initial_indent="  ", subsequent_indent="  ", max_lines=4)
