"""All config keys as a JSON schema, with which editors complete and check a TOML file while it is typed."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from fedmpi.config.effects import default_of
from fedmpi.config.keys import sections
from fedmpi.config.registry import REGISTRIES

FUNCTION = r"^[\w.]+:\w+$"
FILE = r"\.(h5|hdf5)$"
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", dict: "object"}


def json_schema() -> dict[str, Any]:
    """A schema (draft 2020-12) of a config file."""
    known = sections()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fedmpi config",
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, record in known.items() if _required(record) and name != "warmup"],
        "properties": {name: _section(name, record) for name, record in known.items()},
    }


def _section(name: str, record: type) -> dict[str, Any]:
    types_of = typing.get_type_hints(record)
    schema = {
        "type": "object",
        "description": record.__doc__.partition("] ")[2],
        "additionalProperties": False,
        "required": _required(record),
        "properties": {key.name: _key(key, types_of[key.name]) for key in fields(record)},
    }
    conditions = list(_conditions(name))
    return schema | ({"allOf": conditions} if conditions else {})


def _required(record: type) -> list[str]:
    return [key.name for key in fields(record) if key.metadata["required"]]


def _conditions(section: str) -> Iterator[dict[str, Any]]:
    """What a part cannot do without."""
    for registry in REGISTRIES.values():
        for part in registry.parts() if registry.section == section else ():
            needed = [k.name for r in part.keys for k in fields(r) if k.metadata["needed"]]
            if needed:
                chosen = {"properties": {registry.name: {"const": part.name}}, "required": [registry.name]}
                yield {"if": chosen, "then": {"required": needed}}


def _key(key: Field, kind: Any) -> dict[str, Any]:
    rule = key.metadata
    accepted = [_kind(k, rule) for k in _kinds(kind)]
    schema = accepted[0] if len(accepted) == 1 else {"anyOf": accepted}
    default = default_of(key)
    if default is not None and not rule["required"]:
        schema = {**schema, "default": default}
    return {"description": rule["doc"], **schema}


def _kinds(kind: Any) -> list[Any]:
    alternatives = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return [k for k in alternatives if k is not type(None)]


def _kind(kind: Any, rule: Any) -> dict[str, Any]:
    if rule["several"] and typing.get_origin(kind) is list:
        table = {"type": "object", "properties": {"name": _kind(str, rule)}, "required": ["name"]}
        return {"type": "array", "minItems": 1, "items": {"anyOf": [_kind(str, rule), table]}}
    if rule["choices"]:
        accepted: list[dict[str, Any]] = [{"enum": list(rule["choices"])}]
        accepted += [{"type": "string", "pattern": FUNCTION}] * rule["or_function"]
        accepted += [{"type": "string", "pattern": FILE}] * rule["or_file"]
        return accepted[0] if len(accepted) == 1 else {"anyOf": accepted}
    if typing.get_origin(kind) is list:
        return {"type": "array", "minItems": 1, "items": _kind(typing.get_args(kind)[0], rule)}
    limits = {"minimum": rule["at_least"], "maximum": rule["at_most"], "exclusiveMinimum": rule["above"]}
    return {"type": _TYPES[kind]} | {name: value for name, value in limits.items() if value is not None}
