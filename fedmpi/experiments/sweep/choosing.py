"""A part of a sweep: some of its runs by name, and each as a config of its own. No MPI, no torch."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from fedmpi.config.effects import effective_toml
from fedmpi.errors import UserError, did_you_mean
from fedmpi.experiments.sweep.points import Point
from fedmpi.results.groups import without_seed
from fedmpi.storage.output import write_output


def only(points: list[Point], patterns: list[str] | None) -> list[Point]:
    """Those whose case or name, with or without its seed, fits a pattern; capitals do not matter."""
    if not patterns:
        return points
    for pattern in patterns:
        if not any(_fits(point, pattern) for point in points):
            names = {name.lower(): name for point in points for name in _names(point)[:2]}
            hint = did_you_mean(pattern.lower(), names)
            raise UserError(f"--only {pattern}: no run of the sweep; {hint} (with _seed-S: one run)")
    return [point for point in points if any(_fits(point, pattern) for pattern in patterns)]


def write_configs(points: list[Point], folder: str | Path, source: str) -> list[Path]:
    """Each run as a config that stands alone: `fedmpi run` gives what the sweep gives."""
    texts = {
        Path(folder) / f"{point.name}.toml": f"# {point.name}, a run of {source}.\n\n"
        + effective_toml(point.config, everything=False)
        for point in points
    }
    for path, text in texts.items():
        if path.exists() and path.read_text() != text:
            raise UserError(f"--write-configs {folder}: {path} exists with other text; name another folder")
    for path, text in texts.items():
        write_output(path, text.encode(), "--write-configs")
    return list(texts)


def _names(point: Point) -> tuple[str, ...]:
    return point.method, without_seed(point.name), point.name


def _fits(point: Point, pattern: str) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for name in _names(point))
