"""From TOML text to a valid Config: every problem found, in one report.

Invariant: nothing passes silently. An unknown key, a wrong type, a value out of range and a combination
that cannot work are each named with key, value, what is accepted and where it stands.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedmpi.config.compositions import checked_entries
from fedmpi.config.effects import chosen, conflicts
from fedmpi.config.keys import Config, sections
from fedmpi.config.registry import REGISTRIES
from fedmpi.config.values import as_float, expected, has_type, in_range, show
from fedmpi.errors import ConfigError, UserError, did_you_mean
from fedmpi.errors.moved_files import command_for

_MAX_BYTES = 8 << 20


def load(path: str | Path, overrides: Sequence[str] = (), given_by: str = "--set") -> Config:
    """The Config in a TOML file, with `section.key=value` overrides applied."""
    return parse(read_text(path), str(path), overrides, given_by)


def read_text(path: str | Path) -> str:
    """The text of a config file; an unreadable one is a UserError."""
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"config {path}: is a directory; name a .toml file")
        if path.stat().st_size > _MAX_BYTES:
            size = path.stat().st_size / 1e6
            raise UserError(
                f"config {path}: {size:.1f} MB is too large for a config (at most 8 MB); name a .toml file"
            )
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        if command := command_for(str(path)):
            raise UserError(f"config {path}: moved; it is `{command}` now (--write-configs DIR)") from None
        raise UserError(f"config {path}: no such file; see configs/ for examples") from None
    except UnicodeDecodeError:
        raise UserError(f"config {path}: not a text file (UTF-8); name a .toml file") from None
    except OSError as error:
        raise UserError(f"config {path}: cannot be read ({error.strerror})") from None


def parse(text: str, source: str, overrides: Sequence[str] = (), given_by: str = "--set") -> Config:
    """The Config in TOML text. `source` names it in messages, `given_by` the place of overrides."""
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise ConfigError([f"not valid TOML: {error}"], source) from None
    except RecursionError:
        raise ConfigError(["not valid TOML: nested too deeply"], source) from None

    places = _Places(text, source, tables)
    problems: list[str] = []
    _apply_overrides(tables, overrides, places, problems, given_by)

    # Each section by itself, then what must hold between sections.
    records, known = {}, sections()
    for name in tables:
        if name not in known:
            problems.append(f"config {name}: unknown section; {did_you_mean(name, known)} ({source})")
    for name, kind in known.items():
        if name == "warmup" and name not in tables:
            continue
        records[name] = _section(name, kind, tables.get(name, {}), places, problems)
    if not problems:
        config = _resolve(Config(**records), source)
        problems = [f"config {key}: {text} ({places[key]})" for key, text in conflicts(config)]
    if problems:
        raise ConfigError(problems, source)
    return config


class _Places:
    """Where a key stands: file and line, or the command line."""

    def __init__(self, text: str, source: str, sections: Collection[str]) -> None:
        self.source = source
        self.lines: dict[str, str] = {}
        section = ""
        for number, line in enumerate(text.splitlines(), start=1):
            header = re.match(r"\s*\[\s*([\w.-]+)\s*\]", line)
            if header and header[1].split(".")[0] in sections:
                section = header[1]
            elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", line):
                self.lines.setdefault(f"{section}.{key[1]}", f"{source}:{number}")

    def __getitem__(self, key: str) -> str:
        return self.lines.get(key, self.source)


def _apply_overrides(
    tables: dict, overrides: Sequence[str], places: _Places, problems: list[str], given_by: str
) -> None:
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (equals and dot and section and name):
            problems.append(f"{given_by} {override}: expected section.key=value, for example run.seed=2")
            continue
        try:
            (value,) = tomllib.loads(f"value = {text}").values()
        except (ValueError, RecursionError):
            value = text  # a bare word is a string: --set model.name=mlp
        if isinstance(tables.setdefault(section, {}), dict):
            tables[section][name] = value
        places.lines[f"{section}.{name}"] = given_by


def _section(name: str, kind: type, table: Any, places: _Places, problems: list[str]) -> Any:
    """The record of one section, or None with the problems noted."""
    if not isinstance(table, dict):
        problems.append(f"config {name} = {show(table)}: expected a section [{name}] ({places.source})")
        return None
    types_of = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    found = len(problems)
    values = {}
    for key, value in table.items():
        where = places[f"{name}.{key}"]
        if key not in known:
            problems.append(f"config {name}.{key}: unknown key; {did_you_mean(key, known)} ({where})")
            continue
        value = as_float(value, types_of[key])
        wanted = expected(types_of[key], known[key].metadata)
        if not has_type(value, types_of[key]) or not in_range(value, known[key].metadata):
            problems.append(f"config {name}.{key} = {show(value)}: expected {wanted} ({where})")
        elif known[key].metadata["several"] and isinstance(value, list):
            value, wrong = checked_entries(REGISTRIES[f"{name}.{key}"], value, kind)
            problems += [f"config {name}.{key}: {text} ({where})" for text in wrong]
        values[key] = value
    for key, f in known.items():
        if f.metadata["required"] and key not in table:
            wanted = expected(types_of[key], f.metadata)
            problems.append(
                f"config {name}.{key}: missing; {f.metadata['doc']}; expected {wanted} ({places.source})"
            )
    return kind(**values) if len(problems) == found else None


def _resolve(config: Config, source: str) -> Config:
    """Fill in the defaults that depend on other keys."""
    if not config.run.name:
        config = replace(config, run=replace(config.run, name=Path(source).stem))
    own = {
        (registry.section, key): value
        for registry, _, part in chosen(config)
        for key, value in (part.defaults if part else {}).items()
    }
    for section, kind in sections().items():
        record = getattr(config, section)
        missing = [f for f in fields(kind) if record is not None and getattr(record, f.name) is None]
        given = {}
        for key in missing:
            value = own.get((section, key.name), key.metadata["otherwise"])
            given[key.name] = value(record) if callable(value) else value
        if given:
            config = replace(config, **{section: replace(record, **given)})
    return config
