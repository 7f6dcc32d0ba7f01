"""What a sweep consists of: from a sweep file to a list of named, valid configs. No MPI, no torch.

Runs are cases x grid x seeds. A case that itself sets a grid key is not varied along that axis; a grid
of its own varies that case alone.
Invariant: every config of a sweep is valid before the first run starts; all problems in one report.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedmpi.config import Config, may_change, validate
from fedmpi.config.effects import default_of
from fedmpi.config.toml import toml_value
from fedmpi.errors import ConfigError
from fedmpi.experiments.sweep.sweep_file import flat, read_sweep, refuse_problems, shortened

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
        return float(config.run.num_rounds) * config.algorithm.mean_local_steps * batch * clients

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
    quick: bool = False,
    seeds: list[int] | None = None,
    common: Mapping[str, Any] | None = None,
) -> list[Point]:
    """All runs of a sweep file, in order; every problem of it and of its configs is one ConfigError.

    The path may be the name of a published experiment. `quick` takes the [quick] settings and the first
    seed, `seeds` the place of what the file says; `common` settings hold for all runs.
    """
    sweep, base_text, base_source = read_sweep(path)
    if quick:
        sweep = shortened(sweep, str(path))
    if seeds is not None:
        sweep["seeds"] = seeds
    return plan_sweep(sweep, str(path), base_text, base_source, common)


def plan_sweep(
    sweep: dict[str, Any],
    source: str,
    base_text: str,
    base_source: str,
    common: Mapping[str, Any] | None = None,
) -> list[Point]:
    """All runs of a sweep over a base config given as text; `common` settings hold for all of them."""
    refuse_problems({**sweep, "base": base_source}, source)
    points, problems = [], []
    common = flat(sweep.get("common", {})) | dict(common or {})
    for index, (case, axes, settings, seed) in enumerate(_combinations(sweep)):
        name = _file_name(case, axes if case else settings, seed)
        all_settings = {**common, **settings, "run.seed": seed, "run.name": name}
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


def _combinations(sweep: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], int]]:
    """Case name, grid settings, all settings and seed of each run; no run twice."""
    grid, seen = flat(sweep.get("grid", {})), set()
    for case in sweep.get("cases", [{}]):
        own = flat({key: value for key, value in case.items() if key not in ("name", "grid")})
        axes = {key: values for key, values in grid.items() if key not in own} | flat(case.get("grid", {}))
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
