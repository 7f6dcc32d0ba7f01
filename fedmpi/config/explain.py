"""What a config key, a section, or a name stands for, in the terminal: what `fedmpi help` prints.

Invariant: all of it is read from the declarations, so a part that is registered is explained too.
"""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields

from fedmpi.config.effects import default_of
from fedmpi.config.keys import may_change, sections
from fedmpi.config.registry import REGISTRIES, Part, Registry
from fedmpi.config.toml import toml_value
from fedmpi.config.values import expected

_WIDTH = 100


def topics() -> set[str]:
    """Everything that `explain` knows: sections, keys with and without them, names of parts."""
    keys = {(section, key.name) for section, record in sections().items() for key in fields(record)}
    names = {part.name for registry in REGISTRIES.values() for part in registry.parts()}
    return (
        set(sections()) | {f"{section}.{key}" for section, key in keys} | {key for _, key in keys} | names
    )


def explain(topic: str) -> list[str]:
    """A paragraph for each thing of this name; none if there is nothing."""
    found = []
    for section, record in sections().items():
        if topic == section:
            found.append(_section(section, record))
        for key in fields(record):
            if topic in (key.name, f"{section}.{key.name}"):
                found.append(_key(section, record, key))
    for registry in REGISTRIES.values():
        part = registry.part(topic)
        if part is not None:
            found.append(_part(registry, part))
    return found


def overview() -> str:
    """All sections with their keys, and all names that keys accept."""
    lines = []
    for section, record in sections().items():
        lines += [_heading(f"[{section}]", _about(record))]
        lines += [_wrapped(", ".join(key.name for key in fields(record))), ""]
    for registry in REGISTRIES.values():
        names = ", ".join(part.name for part in registry.parts())
        lines.append(_wrapped(f"{registry.key}: {names}", indent=""))
    return "\n".join(lines)


def readers(section: str, key: str) -> list[str]:
    """The names that a key is for, such as `periodic`; none if it is for every experiment."""
    return [
        part.name
        for registry in REGISTRIES.values()
        if registry.section == section
        for part in registry.parts()
        if key in part.key_names
    ]


# What a function is called with; one may leave out arguments that it does not need.
_YOUR_OWN = {
    "model.name": "a function (input_shape, num_classes) that returns a torch module",
    "participation.availability": "a function (t, num_clients, seed) that returns the available clients",
    "algorithm.name": "a class derived from fedmpi.methods.Method",
    "data.partition": "a function (labels, num_clients, seed) that returns the client of each sample",
    "data.dataset": "a function that returns a fedmpi.data.prepared.Dataset",
}


def _about(record: type) -> str:
    return record.__doc__.partition("] ")[2]


def _section(section: str, record: type) -> str:
    lines = [_heading(f"[{section}]", _about(record))]
    width = max(len(key.name) for key in fields(record))
    lines += [_wrapped(f"{key.name:{width}}  {key.metadata['doc']}", width + 2) for key in fields(record)]
    return "\n".join(lines)


def _key(section: str, record: type, key: Field) -> str:
    """Meaning, what is accepted, default, who reads it; and what stands behind names that it accepts."""
    name, rule = f"{section}.{key.name}", key.metadata
    default = default_of(key)
    shown = "none" if default in (None, "") else toml_value(default)
    own = readers(section, key.name)
    lines = [_heading(name, rule["doc"])]
    lines += [_wrapped(f"accepted: {expected(typing.get_type_hints(record)[key.name], rule)}", 12)]
    if name in _YOUR_OWN:
        place = "`mine:name` is that of mine.py in the working folder or on the path"
        lines += [_wrapped(f"your own: {_YOUR_OWN[name]}; {place}", 12)]
    lines += [f"  default:  {'required' if rule['required'] else shown}"]
    if own:
        lines += [_wrapped(f"read by:  {', '.join(own)}", 12)]
    elif rule["has_effect"]:
        lines += ["  read by:  some combinations; `fedmpi check` tells of a key without effect"]
    else:
        lines += ["  read by:  every experiment"]
    if name in may_change():
        lines += ["  resume:   may be another value when a run goes on"]
    if name in REGISTRIES:
        lines += ["", *_summaries(REGISTRIES[name].parts())]
    return "\n".join(lines)


def _summaries(parts: Iterable[Part]) -> Iterator[str]:
    width = max(len(part.name) for part in parts)
    for part in parts:
        yield _wrapped(f"{part.name:{width}}  {part.summary}", width + 2)


def _part(registry: Registry, part: Part) -> str:
    """What it is, and its own keys."""
    lines = [_heading(f'{registry.key} = "{part.name}"', part.summary)]
    for record in part.keys:
        types_of = typing.get_type_hints(record)
        for key in fields(record):
            text = f"{key.name}: {key.metadata['doc']}; {expected(types_of[key.name], key.metadata)}"
            default = part.defaults.get(key.name, default_of(key))
            if key.metadata["needed"]:
                text += "; needed"
            elif default not in (None, "") and not callable(default):
                text += f"; default {toml_value(default)}"
            lines.append(_wrapped(text, 4))
    return "\n".join(lines)


def _heading(name: str, text: str) -> str:
    return textwrap.fill(f"{name}: {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _wrapped(text: str, hang: int = 0, indent: str = "  ") -> str:
    """Text in lines, further ones under its second column."""
    further = indent + " " * hang if hang else indent or "  "
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False,
    )  # fmt: skip
