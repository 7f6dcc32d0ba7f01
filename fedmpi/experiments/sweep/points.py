"""What a sweep consists of: from a sweep file to a list of named, valid configs. No MPI, no torch.

Runs are cases x grid x seeds. A case that itself sets a grid key is not varied along that axis.
Invariant: every config of a sweep is valid before the first run starts; all problems in one report.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedmpi.config import Config, may_change, sections, validate
from fedmpi.config.effects import default_of
from fedmpi.config.toml import toml_value
from fedmpi.errors import ConfigError, did_you_mean

_KEYS = ("base", "seeds", "grid", "cases")
_MOST_RUNS = 100_000
_LONGEST_NAME = 120
_EVERY_CLIENT = 1000  # assumed clients in a round without a selection; only to order runs by size


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep."""

    index: int
    name: str  # of its file, without .h5
    method: str  # the case's name, or algorithm.name
    settings: dict[str, Any]  # what the sweep sets, without the seed
    seed: int
    config: Config

    @property
    def digest(self) -> str:
        """Of everything that results depend on: rounds, cadences and paths may change."""
        return hashlib.sha256(repr(sorted(experiment(self.config).items())).encode()).hexdigest()

    @property
    def work(self) -> float:
        """Relative duration, without a unit; enough to start the longest runs first."""
        config = self.config
        clients = config.participation.clients_per_round or config.data.num_clients or _EVERY_CLIENT
        batch = config.algorithm.batch_size or _EVERY_CLIENT
        return float(config.run.num_rounds) * config.algorithm.local_steps * batch * clients

    @property
    def cost_key(self) -> str:
        """Runs with the same key take as long as each other per round: rates do not matter."""
        kept = {
            k: v for k, v in self.settings.items() if not isinstance(v, float) and k != "run.num_rounds"
        }
        return repr(sorted(kept.items()))


def load_sweep(
    path: str | Path,
    *,
    base: str | None = None,
    seeds: list[int] | None = None,
    common: Mapping[str, Any] | None = None,
) -> list[Point]:
    """All runs of a sweep file, in order; every problem of it and of its configs is one ConfigError.

    `base` and `seeds` take the place of what the file says; `common` settings hold for all runs.
    """
    text, source = validate.read_text(path), str(path)
    try:
        sweep = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"not valid TOML: {error}"], source) from None
    sweep |= {key: value for key, value in (("base", base), ("seeds", seeds)) if value is not None}
    _refuse_problems(sweep, source)
    base_path = Path(path).parent / sweep["base"]
    return plan_sweep(sweep, source, validate.read_text(base_path), str(base_path), common)


def plan_sweep(
    sweep: dict[str, Any],
    source: str,
    base_text: str,
    base_source: str,
    common: Mapping[str, Any] | None = None,
) -> list[Point]:
    """All runs of a sweep over a base config given as text; `common` settings hold for all of them."""
    _refuse_problems({**sweep, "base": base_source}, source)
    points, problems = [], []
    for index, (case, axes, settings, seed) in enumerate(_combinations(sweep)):
        name = _file_name(case, axes if case else settings, seed)
        all_settings = {**(common or {}), **settings, "run.seed": seed, "run.name": name}
        try:
            config = _config(base_text, base_source, all_settings)
        except ConfigError as error:
            problems += [p.replace("(--set)", f"({source})") for p in error.problems]
            continue
        points.append(
            Point(
                index=index,
                name=name,
                method=case or config.algorithm.name,
                settings=settings,
                seed=seed,
                config=config,
            )
        )
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), source)
    return points


def _refuse_problems(sweep: dict[str, Any], source: str) -> None:
    problems = list(_problems(sweep, source))
    if problems:
        raise ConfigError(problems, source)


def experiment(config: Config) -> dict[str, Any]:
    """Settings by "section.key" that must not change when a run is resumed.

    Those at their default are left out: a later version of fedmpi, with more keys, gets the same settings.
    """
    flat, changeable = {}, set(may_change())
    for section in fields(config):
        chosen = getattr(config, section.name)
        for key in fields(chosen) if chosen is not None else ():
            value = getattr(chosen, key.name)
            if value != default_of(key) or key.metadata["required"]:
                flat[f"{section.name}.{key.name}"] = value
    return {key: value for key, value in flat.items() if key not in changeable}


def different_keys(stored: Config, wanted: Config) -> list[str]:
    """Settings in which the experiment in a file differs from the one wanted."""
    old, new = experiment(stored), experiment(wanted)
    if wanted.algorithm.engine == "auto":  # the file holds the engine chosen
        old.pop("algorithm.engine", None)
    return sorted(key for key in new.keys() | old.keys() if old.get(key) != new.get(key))


def _config(text: str, source: str, settings: dict[str, Any]) -> Config:
    overrides = [f"{key}={toml_value(value)}" for key, value in settings.items()]
    return validate.parse(text, source, overrides)


def _problems(sweep: dict[str, Any], source: str) -> Iterator[str]:
    """What is wrong with the sweep file itself."""
    for key in sweep:
        if key not in _KEYS:
            yield f"sweep {key}: unknown key; {did_you_mean(key, _KEYS)} ({source})"
    if not isinstance(sweep.get("base"), str):
        yield f'sweep base: expected the name of a config file, such as base = "config.toml" ({source})'
    seeds = sweep.get("seeds", [1])
    if not isinstance(seeds, list) or not seeds or not all(type(s) is int and s >= 0 for s in seeds):
        yield f"sweep seeds = {seeds}: expected a list of integers >= 0, such as [1, 2, 3] ({source})"
    elif len(set(seeds)) < len(seeds):
        yield f"sweep seeds = {seeds}: a seed appears twice ({source})"
    grid, cases = sweep.get("grid", {}), sweep.get("cases", [{}])
    if not isinstance(grid, dict):
        yield f'sweep grid: expected a section [grid] of "section.key" = [values] ({source})'
        grid = {}
    for key, values in _flat(grid).items():
        yield from _key_problems(f"grid {key}", key, source)
        if not isinstance(values, list) or not values:
            yield f"sweep grid {key} = {values!r}: expected a list of values ({source})"
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
        for key in _flat({k: v for k, v in case.items() if k != "name"}):
            yield from _key_problems(f"cases {key}", key, source)
    size = len(cases) * len(seeds if isinstance(seeds, list) else [1])
    for values in _flat(grid).values():
        size *= len(values) if isinstance(values, list) else 1
    if size > _MOST_RUNS:
        yield f"sweep of {size:,} runs: at most {_MOST_RUNS:,} are accepted ({source})"


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


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """Settings by "section.key", whether written that way or as nested tables."""
    flat = {}
    for key, value in table.items():
        if key in sections() and isinstance(value, dict):
            flat |= {f"{key}.{inner}": inside for inner, inside in value.items()}
        else:
            flat[key] = value
    return flat


def _combinations(sweep: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], int]]:
    """Case name, grid settings, all settings and seed of each run; no run twice."""
    grid, seen = _flat(sweep.get("grid", {})), set()
    for case in sweep.get("cases", [{}]):
        own = _flat({key: value for key, value in case.items() if key != "name"})
        axes = {key: values for key, values in grid.items() if key not in own}
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            settings = own | chosen
            for seed in sweep.get("seeds", [1]):
                key = repr((case.get("name", ""), sorted(settings.items(), key=lambda item: item[0]), seed))
                if key not in seen:
                    seen.add(key)
                    yield case.get("name", ""), chosen, settings, seed


def _file_name(case: str, settings: dict[str, Any], seed: int) -> str:
    """Readable, safe on every file system, and unique to the settings."""
    parts = [case] if case else []
    for key, value in settings.items():
        is_name = key.endswith(".name") or isinstance(value, str)
        parts.append(_short(value) if is_name else f"{key.partition('.')[2]}-{_short(value)}")
    full = "_".join([*parts, f"seed-{seed}"])
    safe = re.sub(r"[^A-Za-z0-9._+-]+", "-", full).strip("-.")
    if safe == full and len(safe) <= _LONGEST_NAME:
        return safe
    digest = hashlib.sha256(repr((case, settings, seed)).encode()).hexdigest()[:8]
    return f"{safe[: _LONGEST_NAME - 9]}_{digest}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
