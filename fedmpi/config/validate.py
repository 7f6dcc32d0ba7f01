"""From TOML text to a valid Config: every problem found, in one report.

Invariant: nothing passes silently. An unknown key, a wrong type, a value out of range and a combination
that cannot work are each named with key, value, what is accepted and where it stands.
"""

from __future__ import annotations

import math
import re
import tomllib
import types
import typing
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedmpi.config.effects import chosen, conflicts
from fedmpi.config.keys import Config, sections
from fedmpi.errors import ConfigError, UserError, did_you_mean

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
        problems.append(f"config {name} = {_show(table)}: expected a section [{name}] ({places.source})")
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
        value = _as_float(value, types_of[key])
        wanted = expected(types_of[key], known[key].metadata)
        if not _has_type(value, types_of[key]) or not _in_range(value, known[key].metadata):
            problems.append(f"config {name}.{key} = {_show(value)}: expected {wanted} ({where})")
        values[key] = value
    for key, f in known.items():
        if f.metadata["required"] and key not in table:
            wanted = expected(types_of[key], f.metadata)
            problems.append(
                f"config {name}.{key}: missing; {f.metadata['doc']}; expected {wanted} ({places.source})"
            )
    return kind(**values) if len(problems) == found else None


def _show(value: Any) -> str:
    try:
        text = repr(value) if not isinstance(value, str) else f'"{value}"'
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def _as_float(value: Any, kind: Any) -> Any:
    """Whole numbers are fine where a float is expected, in lists too."""
    accepts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if float in accepts and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else value
    for accepted in accepts:
        if typing.get_origin(accepted) is list and isinstance(value, list):
            return [_as_float(v, typing.get_args(accepted)[0]) for v in value]
    return value


def _has_type(value: Any, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_has_type(value, k) for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is list:
        inner = typing.get_args(kind)[0]
        return isinstance(value, list) and bool(value) and all(_has_type(v, inner) for v in value)
    if kind is dict:
        return isinstance(value, dict) and all(_is_plain(v) for v in value.values())
    if kind is float:
        return isinstance(value, float) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, kind)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | float | str) or (isinstance(value, int) and value.bit_length() <= 1024)


def _in_range(value: Any, rule: Any) -> bool:
    if isinstance(value, list):
        return all(_in_range(v, rule) for v in value)
    if rule["choices"] and isinstance(value, str):
        is_function = rule["or_function"] and re.fullmatch(r"[\w.]+:\w+", value)
        is_file = rule["or_file"] and value.endswith((".h5", ".hdf5"))
        return bool(value in rule["choices"] or is_function or is_file)
    if isinstance(value, int | float):
        return (
            (rule["at_least"] is None or value >= rule["at_least"])
            and (rule["at_most"] is None or value <= rule["at_most"])
            and (rule["above"] is None or value > rule["above"])
        )
    return True


_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def expected(kind: Any, rule: Any) -> str:
    """What a key accepts, in words: `an integer >= 1`."""
    if isinstance(kind, types.UnionType):
        kinds = [k for k in typing.get_args(kind) if k is not type(None)]
        return ", or ".join(expected(k, rule) for k in kinds)
    if rule["choices"]:
        extra = ["package.module:function"] * rule["or_function"] + ["path of an .h5 file"] * rule[
            "or_file"
        ]
        return "one of " + ", ".join([*(f'"{c}"' for c in rule["choices"]), *extra])
    if typing.get_origin(kind) is list:
        inner = typing.get_args(kind)[0]
        words = (
            "lists of numbers"
            if typing.get_origin(inner) is list
            else {int: "integers"}.get(inner, "numbers")
        )
        text = f"a list of {words}"
    else:
        text = _WORDS.get(kind, "a table of plain values")
    return text + _range_text(rule)


def _range_text(rule: Any) -> str:
    """` >= 1`, ` from 0 to 1`, ` above 0, at most 1`, or nothing."""
    at_least, above, at_most = rule["at_least"], rule["above"], rule["at_most"]
    if at_most is None:
        signs = ((">=", at_least), (">", above))
        return "".join(f" {sign} {value}" for sign, value in signs if value is not None)
    if at_least is not None:
        return f" from {at_least} to {at_most}"
    return f" above {above}, at most {at_most}" if above is not None else f" <= {at_most}"


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
