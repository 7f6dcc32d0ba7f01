"""Configs, sweeps and objects as Python programs give them: files or dicts, plain values or numpy's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmpi.config import Config, validate
from fedmpi.config.toml import toml_value
from fedmpi.config.user_code import ARGUMENTS
from fedmpi.errors import UserError
from fedmpi.experiments.sweep.points import Point, load_sweep, plan_sweep

ConfigSource = str | Path | Mapping[str, Any]  # a TOML file, or its sections as a dict
Settings = Mapping[str, Any] | None  # {"algorithm.local_lr": 0.1}
GIVEN_BY = "overrides"  # where messages say that such settings stand


def known_objects(objects: dict[str, Any]) -> dict[str, Any]:
    """The objects, None left out; another keyword is a TypeError, as in any Python function."""
    for name in objects:
        if name not in ARGUMENTS:
            raise TypeError(f"unexpected keyword argument {name!r}; objects are {', '.join(ARGUMENTS)}")
    return {name: value for name, value in objects.items() if value is not None}


def load_config(config: ConfigSource, overrides: Settings, named: Mapping[str, str]) -> Config:
    """The config of a file or a dict, with overrides and the names of passed objects."""
    texts = override_texts(overrides) + override_texts(named)
    if isinstance(config, Mapping):
        return validate.parse(_toml_of(config), "config", texts, GIVEN_BY)
    return validate.load(_file("config", config), texts, GIVEN_BY)


def override_texts(overrides: Settings) -> list[str]:
    """Overrides as the command line would have them."""
    if overrides is not None and not isinstance(overrides, Mapping):
        raise UserError(
            f"overrides = {overrides!r}: expected a dict, such as {{'algorithm.local_lr': 0.1}}"
        )
    return [f"{key}={toml_value(_plain(value, str(key)))}" for key, value in (overrides or {}).items()]


def points_of(sweep: ConfigSource, named: Mapping[str, str]) -> list[Point]:
    """Rank 0: all runs of a sweep file or of a dict like one."""
    if not isinstance(sweep, Mapping):
        return load_sweep(_file("sweep", sweep), common=named)
    table, base = {k: _plain(v, f"sweep {k}") for k, v in sweep.items() if k != "base"}, sweep.get("base")
    if isinstance(base, Mapping):
        return plan_sweep(table, "sweep", _toml_of(base), "base", named)
    base = _file("sweep base", base)
    return plan_sweep(table, "sweep", validate.read_text(base), str(base), named)


def _file(name: str, value: Any) -> str | Path:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise UserError(f"{name} = {value!r}: expected a TOML file, or a dict of its sections")
    return value


def _toml_of(config: Mapping[str, Any]) -> str:
    """A dict of sections as the text that a user would have written."""
    lines = []
    for section, table in config.items():
        if table is None:
            continue
        if not isinstance(table, Mapping):
            lines.insert(0, f"{toml_value(str(section))} = {toml_value(_plain(table, str(section)))}")
            continue
        name = str(section)
        lines.append(f"[{name if name.isidentifier() else toml_value(name)}]")
        for key, value in table.items():
            if value is not None:
                text = toml_value(_plain(value, f"{section}.{key}"))
                lines.append(f"{toml_value(str(key))} = {text}")
    return "\n".join(lines)


def _plain(value: Any, name: str) -> Any:
    """What TOML knows: numpy numbers and arrays, tuples, ranges and paths become plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | range):
        return [_plain(v, name) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v, name) for k, v in value.items()}
    if isinstance(value, bool | int | float | str):
        return value
    raise UserError(
        f"config {name} = {value!r}: expected a number, a string, a list or a table of such"
        + ("; leave the key out for its default" if value is None else "")
    )
