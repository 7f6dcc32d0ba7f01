"""A config to begin with, for a method and an availability: what `fedmpi new` writes.

Invariant: the text is valid, and holds no key without effect. Values stand here, or with the parts
themselves (`start`), so a part of somebody else's has a starting config too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fedmpi.config.effects import default_of, has_effect
from fedmpi.config.keys import Config, sections
from fedmpi.config.registry import AVAILABILITIES, METHODS, REGISTRIES, TASKS, Registry
from fedmpi.config.toml import toml_value
from fedmpi.config.validate import parse
from fedmpi.errors import UserError, did_you_mean

_COLUMN, _WIDTH = 32, 100
_TASK = "classification"  # of every experiment that names no other

# An experiment of seconds on images that come with fedmpi. 21 rounds go through all of a cycle of 20.
_VALUES = {
    "run": {"seed": 1, "num_rounds": 200, "eval_every": 21},
    "data": {"dataset": "fashion-mini", "num_clients": 50, "partition": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [64]},
    "participation": {
        "availability": "", "selection": "permutation", "clients_per_round": 5, "weighting": "equal",
    },
    "algorithm": {"name": "", "local_lr": 0.01, "local_steps": 5, "batch_size": 16},
}  # fmt: skip


def starting_config(method: str, availability: str, task: str = _TASK, **values: Any) -> str:
    """TOML text with comments. `values`: other ones for keys of the availability.

    Several availabilities, with commas between them, become a list of tables with their own keys.
    """
    parts = {"algorithm": (METHODS, method), "participation": (AVAILABILITIES, availability)}
    tables = {section: dict(table) for section, table in _VALUES.items()}
    if task != _TASK:
        parts, tables = parts | {"task": (TASKS, task)}, tables | {"task": {}}
    for section, (registry, names) in parts.items():
        for name in names.split(","):
            _require(registry, name)
        if "," in names and registry is AVAILABILITIES:
            tables[section][registry.name] = [_entry(registry, name, values) for name in names.split(",")]
            values = {}
            continue
        tables[section][registry.name] = names
        for key, value in (registry.fact(names, "start") or {}).items():
            other, _, key = key.rpartition(".")
            tables[other or section][key] = value
    tables = {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}
    tables["participation"] |= values

    # Without what this combination does not read; then with what its parts can read besides.
    config = parse(_text(tables), "new.toml")
    lines = []
    for section, table in tables.items():
        part = parts[section][0].part(parts[section][1]) if section in parts else None
        lines += ["", f"[{section}]", *_lines(section, table, config, part.key_names if part else set())]
    return "\n".join([*lines[1:], ""])


def _entry(registry: Registry, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A table of a list: the part's own values, and of the others those that it reads."""
    start = registry.fact(name, "start") or {}
    return {"name": name, **start, **{key: value for key, value in values.items() if key in start}}


def _require(registry: Registry, name: str) -> None:
    if registry.part(name) is None and ":" not in name:
        raise UserError(f'{registry.key} = "{name}": unknown; {did_you_mean(name, registry)}')


def _text(tables: dict[str, dict[str, Any]]) -> str:
    lines = []
    for section, table in tables.items():
        lines += [f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines)


def _lines(section: str, table: dict[str, Any], config: Config, own: set[str]) -> Iterator[str]:
    """Keys with values, then those that the chosen part reads as well, with their default."""
    rules = {key.name: key for key in fields(sections()[section])}
    names = {str(value) for value in table.values()}
    for name, value in table.items():
        key = f"{section}.{name}"
        if key in REGISTRIES and isinstance(value, list):
            yield from _composition(REGISTRIES[key], value)
        elif has_effect(config, section, name):
            meaning = _meaning(rules[name].metadata["doc"], names)
            meaning = _summary(REGISTRIES[key], value) if key in REGISTRIES else meaning
            yield from _line(f"{name} = {toml_value(value)}", meaning)
    for name, rule in rules.items():
        if name in own and name not in table and has_effect(config, section, name):
            default = default_of(rule)
            value = f"= {toml_value(default)}" if default is not None else "= ..."
            yield from _line(f"# {name} {value}", _meaning(rule.metadata["doc"], names))


def _composition(registry: Registry, entries: list[dict[str, Any]]) -> Iterator[str]:
    """A list of tables, one in a line, each below what it stands for."""
    yield f"# All of these at once; a table has keys of its own: fedmpi help {registry.key}"
    yield f"{registry.name} = ["
    for entry in entries:
        part = registry.part(entry["name"])
        summary = part.summary if part else "Your own."
        yield from textwrap.wrap(summary, _WIDTH, initial_indent="  # ", subsequent_indent="  # ")
        yield f"  {toml_value(entry)},"
    yield "]"


def _meaning(doc: str, names: set[str]) -> str:
    """Without the names that the key is for, where one of them stands in the same section."""
    prefix, _, meaning = doc.partition(": ")
    return meaning if meaning and names & set(prefix.split(", ")) else doc


def _summary(registry: Registry, name: str) -> str:
    """What the name stands for, and where others are."""
    part = registry.part(name)
    return f"{part.summary if part else 'Your own.'} Others: fedmpi help {registry.key}"


def _line(setting: str, meaning: str) -> list[str]:
    """A setting and its comment, beside it or above it."""
    beside = f"{setting:{_COLUMN}} # {meaning}"
    if len(beside) <= _WIDTH:
        return [beside]
    return [*textwrap.wrap(meaning, _WIDTH, initial_indent="# ", subsequent_indent="# "), setting]
