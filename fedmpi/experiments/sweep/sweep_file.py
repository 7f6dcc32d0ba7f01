"""A sweep file as a table, with the files that it builds on, and what is wrong with it. No MPI, no torch.

`base` names a config, or another sweep, whose own base, [common] and [quick] hold here too unless this file
says otherwise; its cases, grid and seeds do not. Where there is no such file, the name of a published
experiment will do: base = "periodic". Invariant: each file's problems are told with its own name.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedmpi.config import sections, validate
from fedmpi.errors import ConfigError, did_you_mean
from fedmpi.experiments.reproduce import shipped

KEYS = ("base", "seeds", "common", "quick", "grid", "cases")
_MOST_RUNS = 100_000
_MOST_LAYERS = 10


def read_sweep(path: str | Path) -> tuple[dict[str, Any], str, str]:
    """The sweep with the settings of those it builds on; text and name of the config below all of them."""
    layers = [_read(Path(shipped(path)))]
    while True:
        below = _base_of(layers[-1])
        text = validate.read_text(below)
        if not is_sweep(text):
            break
        layers.append(_read(below))
        if len(layers) > _MOST_LAYERS:
            raise ConfigError([f"sweep base: more than {_MOST_LAYERS} sweeps on each other"], str(path))
    merged = dict(layers[0][1])
    for table in ("common", "quick"):
        settings: dict[str, Any] = {}
        for _, layer in reversed(layers):
            settings |= flat(layer.get(table, {}))
        if settings:
            merged[table] = settings
    return merged, text, str(below)


def shortened(sweep: dict[str, Any], source: str) -> dict[str, Any]:
    """The quick version: its [quick] settings, and the first seed alone."""
    if "quick" not in sweep:
        raise ConfigError(["sweep quick: missing; --quick needs a section [quick] of settings"], source)
    common = flat(sweep.get("common", {})) | flat(sweep["quick"])
    return {**sweep, "common": common, "seeds": sweep.get("seeds", [1])[:1]}


def is_sweep(text: str) -> bool:
    """Whether this is the text of a sweep rather than that of a config."""
    try:
        return "base" in tomllib.loads(text)
    except (ValueError, RecursionError):
        return False  # the config's own check says what is wrong


def refuse_problems(sweep: dict[str, Any], source: str) -> None:
    """All problems of the table itself are one ConfigError."""
    problems = list(_problems(sweep, source))
    if problems:
        raise ConfigError(problems, source)


def _read(path: Path) -> tuple[Path, dict[str, Any]]:
    text = validate.read_text(path)
    try:
        sweep = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"not valid TOML: {error}"], str(path)) from None
    refuse_problems(sweep, str(path))
    return path, sweep


def _base_of(layer: tuple[Path, dict[str, Any]]) -> Path:
    """Beside the sweep; or a published experiment."""
    path, sweep = layer
    beside = path.parent / sweep["base"]
    return beside if beside.exists() else Path(shipped(sweep["base"], otherwise=beside))


def _problems(sweep: dict[str, Any], source: str) -> Iterator[str]:
    """What is wrong with the sweep file itself."""
    for key in sweep:
        if key not in KEYS:
            yield f"sweep {key}: unknown key; {did_you_mean(key, KEYS)} ({source})"
    if not isinstance(sweep.get("base"), str):
        yield f'sweep base: expected the name of a config file, such as base = "config.toml" ({source})'
    seeds = sweep.get("seeds", [1])
    if not isinstance(seeds, list) or not seeds or not all(type(s) is int and s >= 0 for s in seeds):
        yield f"sweep seeds = {seeds}: expected a list of integers >= 0, such as [1, 2, 3] ({source})"
    elif len(set(seeds)) < len(seeds):
        yield f"sweep seeds = {seeds}: a seed appears twice ({source})"
    grid, cases = sweep.get("grid", {}), sweep.get("cases", [{}])
    yield from _grid_problems("grid", grid, source)
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        yield f"sweep cases: expected sections [[cases]] ({source})"
        return
    names = [case["name"] for case in cases if "name" in case]
    for name in dict.fromkeys(names):
        if not isinstance(name, str) or not name:
            yield f"sweep cases name = {name!r}: expected a string ({source})"
        elif names.count(name) > 1:
            yield f'sweep cases name = "{name}": two cases have this name ({source})'
    for case in cases:
        for key in flat({k: v for k, v in case.items() if k not in ("name", "grid")}):
            yield from _key_problems(f"cases {key}", key, source)
        yield from _grid_problems("cases grid", case.get("grid", {}), source)
    for table in ("common", "quick"):
        if not isinstance(sweep.get(table, {}), dict):
            yield f'sweep {table}: expected a section [{table}] of "section.key" = value ({source})'
            continue
        for key in flat(sweep.get(table, {})):
            yield from _key_problems(f"{table} {key}", key, source)
    size = sum(_num_runs(case.get("grid", {})) for case in cases) * _num_runs(grid)
    size *= len(seeds) if isinstance(seeds, list) else 1
    if size > _MOST_RUNS:
        yield f"sweep of {size:,} runs: at most {_MOST_RUNS:,} are accepted ({source})"


def _grid_problems(what: str, grid: Any, source: str) -> Iterator[str]:
    if not isinstance(grid, dict):
        section = what.replace(" ", ".")
        yield f'sweep {what}: expected a section [{section}] of "section.key" = [values] ({source})'
        return
    for key, values in flat(grid).items():
        yield from _key_problems(f"{what} {key}", key, source)
        if not isinstance(values, list) or not values:
            yield f"sweep {what} {key} = {values!r}: expected a list of values ({source})"


def _num_runs(grid: Any) -> int:
    """Of a grid; 1 of what is none."""
    values = flat(grid).values() if isinstance(grid, dict) else ()
    return math.prod(len(v) for v in values if isinstance(v, list))


def _key_problems(what: str, key: str, source: str) -> Iterator[str]:
    section, _, name = key.partition(".")
    known = [f"{s}.{f.name}" for s, kind in sections().items() for f in fields(kind)]
    if key in ("run.seed", "run.name"):
        yield f"sweep {what}: the sweep sets it; " + (
            f"use seeds = [...] ({source})" if key == "run.seed" else f"give cases a name ({source})"
        )
    elif key not in known:
        near = known if section not in sections() else [k for k in known if k.startswith(f"{section}.")]
        hint = did_you_mean(key, near) if name and section in sections() else 'expected "section.key"'
        yield f"sweep {what}: unknown key; {hint} ({source})"


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """Settings by "section.key", whether written that way or as nested tables."""
    flat = {}
    for key, value in table.items():
        if key in sections() and isinstance(value, dict):
            flat |= {f"{key}.{inner}": inside for inner, inside in value.items()}
        else:
            flat[key] = value
    return flat
