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
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedmpi.config import SECTIONS, Config
from fedmpi.errors import ConfigError, UserError, did_you_mean

_MAX_BYTES = 8 << 20


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The Config in a TOML file, with `section.key=value` overrides applied."""
    return parse(read_text(path), str(path), overrides)


def read_text(path: str | Path) -> str:
    """The text of a config file; an unreadable one is a UserError."""
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"config {path}: is a directory; name a .toml file")
        if path.stat().st_size > _MAX_BYTES:
            size = path.stat().st_size / 1e6
            raise UserError(f"config {path}: {size:.1f} MB is no config (at most 8 MB); name a .toml file")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"config {path}: no such file; see configs/ for examples") from None
    except UnicodeDecodeError:
        raise UserError(f"config {path}: not a text file (UTF-8); name a .toml file") from None
    except OSError as error:
        raise UserError(f"config {path}: cannot be read ({error.strerror})") from None


def parse(text: str, source: str, overrides: Sequence[str] = ()) -> Config:
    """The Config in TOML text. `source` names it in messages."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"not valid TOML: {error}"], source) from None
    except RecursionError:
        raise ConfigError(["not valid TOML: nested too deeply"], source) from None

    places = _Places(text, source)
    problems: list[str] = []
    _apply_overrides(tables, overrides, places, problems)

    # Each section by itself, then what must hold between sections.
    records = {}
    for name in tables:
        if name not in SECTIONS:
            problems.append(f"config {name}: unknown section; {did_you_mean(name, SECTIONS)} ({source})")
    for name, kind in SECTIONS.items():
        if name == "warmup" and name not in tables:
            continue
        records[name] = _section(name, kind, tables.get(name, {}), places, problems)
    if not problems:
        config = _resolve(Config(**records), source)
        problems = [f"config {key}: {text} ({places[key]})" for key, text in _conflicts(config)]
    if problems:
        raise ConfigError(problems, source)
    return config


class _Places:
    """Where a key stands: file and line, or the command line."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.lines: dict[str, str] = {}
        section = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
                section = header[1]
            elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", line):
                self.lines.setdefault(f"{section}.{key[1]}", f"{source}:{number}")

    def __getitem__(self, key: str) -> str:
        return self.lines.get(key, self.source)


def _apply_overrides(tables: dict, overrides: Sequence[str], places: _Places, problems: list[str]) -> None:
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (equals and dot and section and name):
            problems.append(f"--set {override}: expected section.key=value, for example run.seed=2")
            continue
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text  # a bare word is a string: --set model.name=mlp
        if not isinstance(tables.setdefault(section, {}), dict):
            tables[section] = {}
        tables[section][name] = value
        places.lines[f"{section}.{name}"] = "--set"


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
        wanted = _expected(types_of[key], known[key].metadata)
        if not _has_type(value, types_of[key]) or not _in_range(value, known[key].metadata):
            problems.append(f"config {name}.{key} = {_show(value)}: expected {wanted} ({where})")
        values[key] = value
    for key, f in known.items():
        if f.metadata["required"] and key not in table:
            wanted = _expected(types_of[key], f.metadata)
            problems.append(
                f"config {name}.{key}: missing; {f.metadata['doc']}; expected {wanted} ({places.source})"
            )
    return kind(**values) if len(problems) == found else None


def _show(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 80 else text[:77] + "..."


def _as_float(value: Any, kind: Any) -> Any:
    """Whole numbers are fine where a float is expected, in lists too."""
    accepts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if float in accepts and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
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
    return isinstance(value, bool | int | float | str)


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


def _expected(kind: Any, rule: Any) -> str:
    """What a key accepts, in words: `an integer >= 1`."""
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
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
    for name, sign in (("at_least", ">="), ("above", ">"), ("at_most", "<=")):
        if rule[name] is not None:
            text += f" {sign} {rule[name]}"
    return text


def _resolve(config: Config, source: str) -> Config:
    """Fill in the defaults that depend on other keys."""
    run, data = config.run, config.data
    if not run.name:
        run = replace(run, name=Path(source).stem)
    if data.augment is None:
        data = replace(data, augment=data.dataset == "cifar-10")
    if data.noise_std is None:
        data = replace(data, noise_std=0.25 if data.dataset == "synthetic" else 0.0)
    if data.num_clients is None and data.centers is not None:
        data = replace(data, num_clients=len(data.centers))
    return replace(config, run=run, data=data)


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Combinations that cannot work, as (key, problem)."""
    run, data, model = config.run, config.data, config.model
    who, warmup = config.participation, config.warmup
    if warmup and warmup.num_rounds > run.num_rounds:
        yield (
            "warmup.num_rounds",
            (f"{warmup.num_rounds} rounds of warm-up exceed run.num_rounds = {run.num_rounds}"),
        )

    # Data and model.
    if (data.dataset == "quadratic") != (model.name == "quadratic"):
        yield (
            "model.name",
            (
                f'"{model.name}" does not fit data.dataset = "{data.dataset}"; '
                'data and model are both "quadratic" or neither is'
            ),
        )
    if data.dataset == "quadratic":
        yield from _quadratic_conflicts(config)
    elif data.num_clients is None and data.partition != "natural":
        yield "data.num_clients", "missing; N, the number of clients; expected an integer >= 1"
    if data.partition == "natural" and data.dataset in (
        "fashion-mnist",
        "cifar-10",
        "fashion-mini",
        "synthetic",
    ):
        yield (
            "data.partition",
            (
                f'"natural" needs a client column, which "{data.dataset}" has not; '
                "use a prepared .h5 file with one, or another partition"
            ),
        )
    if (
        data.dataset == "synthetic"
        and data.partition == "classes-per-client"
        and (data.classes_per_client > data.num_classes)
    ):
        yield (
            "data.classes_per_client",
            (f"{data.classes_per_client} exceeds data.num_classes = {data.num_classes}"),
        )
    if run.cuda_aware and run.device == "cpu":
        yield "run.cuda_aware", 'true needs run.device = "auto" or "cuda", it is "cpu"'

    # Participation.
    num_clients = data.num_clients
    if who.availability == "periodic":
        for key in ("num_groups", "rounds_per_group"):
            if getattr(who, key) is None:
                yield (
                    f"participation.{key}",
                    'missing; availability = "periodic" needs it; expected an integer >= 1',
                )
        if num_clients and who.num_groups and who.num_groups > num_clients:
            yield "participation.num_groups", f"{who.num_groups} groups for {num_clients} clients"
    if who.selection in ("uniform", "permutation"):
        if who.clients_per_round is None:
            yield (
                "participation.clients_per_round",
                (f'missing; selection = "{who.selection}" needs it; expected an integer >= 1'),
            )
        elif num_clients and who.clients_per_round > num_clients:
            yield (
                "participation.clients_per_round",
                (f"{who.clients_per_round} exceeds data.num_clients = {num_clients}"),
            )
    if who.selection == "schedule":
        if who.schedule is None:
            yield (
                "participation.schedule",
                'missing; selection = "schedule" needs a .csv or .h5 file',
            )
        if who.availability != "always":
            yield (
                "participation.availability",
                (
                    f'"{who.availability}" cannot be combined with selection = "schedule", '
                    'which says itself who takes part; use "always"'
                ),
            )


def _quadratic_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    data, model = config.data, config.model
    if data.centers is None:
        yield "data.centers", "missing; quadratic data needs one list of numbers per client"
        return
    lengths = sorted({len(center) for center in data.centers})
    if len(lengths) > 1:
        yield "data.centers", f"centers have different lengths {lengths}; expected all the same"
    if data.num_clients != len(data.centers):
        yield (
            "data.num_clients",
            f"{data.num_clients} clients, but data.centers has {len(data.centers)}",
        )
    if model.initial is not None and len(model.initial) != lengths[0]:
        yield "model.initial", f"{len(model.initial)} numbers, but centers have {lengths[0]}"


def unused_keys(config: Config) -> list[str]:
    """Keys set away from their default that this combination does not read, one sentence each."""
    data, who = config.data, config.participation
    needs = [
        ("data", "similarity", data.partition == "majority-label"),
        ("data", "alpha", data.partition == "dirichlet"),
        ("data", "classes_per_client", data.partition == "classes-per-client"),
        ("data", "partition", data.dataset != "quadratic"),
        ("data", "centers", data.dataset == "quadratic"),
        *(
            ("data", key, data.dataset == "synthetic")
            for key in ("train_samples", "test_samples", "num_classes", "shape")
        ),
        ("model", "hidden", config.model.name == "mlp"),
        ("model", "initial", config.model.name == "quadratic"),
        ("model", "options", ":" in config.model.name),
        *(
            ("participation", key, who.availability == "periodic")
            for key in ("num_groups", "rounds_per_group", "random_offset")
        ),
        ("participation", "clients_per_round", who.selection in ("uniform", "permutation")),
        ("participation", "schedule", who.selection == "schedule"),
        ("participation", "weighting", who.selection != "schedule"),
        ("algorithm", "amplify_every", config.algorithm.amplification != 1),
    ]
    notes = []
    for section, key, used in needs:
        default = next(f for f in fields(SECTIONS[section]) if f.name == key)
        unset = default.default_factory() if callable(default.default_factory) else default.default
        if not used and getattr(getattr(config, section), key) != unset:
            notes.append(f"{section}.{key} has no effect with the other settings")
    return notes
