"""Several parts of one kind at once: `availability = ["sinusoidal", {name = "markov", to_active = 0.1}]`.

An entry of the list is a name, which reads the keys of its section as it does alone, or a table with the
name and keys of its own, which only this entry reads. Invariant: no key of the section is read by two
entries, so that nobody has to guess whose it is; what a single name can do, a list of one does too.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from fedmpi.config.records import replace
from fedmpi.config.registry import AVAILABILITIES, Finding, Registry
from fedmpi.config.toml import toml_value
from fedmpi.config.values import as_float, expected, has_type, in_range, show
from fedmpi.errors import did_you_mean

Entry = str | dict[str, Any]


def names_in(value: str | list[Entry]) -> list[str]:
    """The names that a key gives, one or several.

    >>> names_in("markov"), names_in(["sinusoidal", {"name": "markov", "to_active": 0.1}])
    (['markov'], ['sinusoidal', 'markov'])
    """
    entries = value if isinstance(value, list) else [value]
    return [entry["name"] if isinstance(entry, Mapping) else entry for entry in entries]


def names_text(value: str | list[Entry]) -> str:
    """The same for people."""
    return " and ".join(names_in(value))


def availabilities_in(who: Any) -> list[Any]:
    """[participation], or what a file holds of it, once for each availability, as if that stood alone."""
    if not isinstance(who.availability, list):
        return [who]
    found = []
    for name, entry in zip(names_in(who.availability), who.availability, strict=True):
        one = replace(who, **{"availability": name, **own_keys(entry)})
        left = _left_to_others(AVAILABILITIES, one, who.availability, entry)
        found.append(replace(one, **dict.fromkeys(left)))
    return found


def _left_to_others(registry: Registry, one: Any, entries: list[Entry], entry: Entry) -> set[str]:
    """Keys of the section that an entry could read, and does not where it is not alone (fact `leaves`)."""
    leaves = registry.fact(getattr(one, registry.name), "leaves") if len(entries) > 1 else None
    return set(leaves(one)) - set(own_keys(entry)) if leaves else set()


def own_keys(entry: Entry) -> dict[str, Any]:
    """The keys that an entry sets for itself."""
    return {k: v for k, v in entry.items() if k != "name"} if isinstance(entry, Mapping) else {}


def availability_facts(who: Any, fact: str) -> Iterator[tuple[Any, Any]]:
    """Each availability's own view of [participation], and what it says of itself."""
    for one in availabilities_in(who):
        yield one, AVAILABILITIES.fact(one.availability, fact)


def checked_entries(registry: Registry, entries: list[Entry], kind: type) -> tuple[list[Entry], list[str]]:
    """The entries of a list with numbers as their keys have them, and what is wrong with the tables."""
    found, problems = [], []
    for entry in entries:
        if isinstance(entry, Mapping):
            entry, wrong = _checked_table(registry, entry, kind)
            problems += wrong
        found.append(entry)
    return found, problems


def _checked_table(registry: Registry, table: dict[str, Any], kind: type) -> tuple[Entry, list[str]]:
    name, rules = table.get("name"), {key.name: key.metadata for key in fields(kind)}
    if not isinstance(name, str) or not in_range(name, rules[registry.name]):
        wanted = expected(str, rules[registry.name])
        return table, [f"a table with name = {show(name)}: expected {wanted}"]
    part, types_of = registry.part(name), typing.get_type_hints(kind)
    readable = part.key_names if part else set()
    checked, problems = {}, []
    for key, value in table.items():
        if key != "name" and key not in readable:
            hint = did_you_mean(key, readable) if readable else "it has no keys of its own"
            problems.append(f'"{name}" does not read {key}; {hint}')
            continue
        checked[key] = value = as_float(value, types_of[key]) if key != "name" else value
        if key != "name" and not (has_type(value, types_of[key]) and in_range(value, rules[key])):
            wanted = expected(types_of[key], rules[key])
            problems.append(f'"{name}" with {key} = {show(value)}: expected {wanted}')
    return checked, problems


def readers_of(registry: Registry, section: Any, key: str) -> list[str]:
    """The names of those entries that read a key of the section."""
    value = getattr(section, registry.name)
    entries = value if isinstance(value, list) else [value]
    readers = []
    for name, entry in zip(names_in(value), entries, strict=True):
        part, own = registry.part(name), own_keys(entry)
        if part is None or key not in part.key_names or key in own:
            continue
        one = replace(section, **{registry.name: name, **own})
        if key not in _left_to_others(registry, one, entries, entry):
            readers.append(name)
    return readers


def shared_keys(registry: Registry, section: Any, given: Mapping[str, Any]) -> Iterator[Finding]:
    """Keys of the section, of those `given`, that more than one entry reads: whose are they?"""
    for key, setting in given.items():
        readers = readers_of(registry, section, key)
        if len(readers) > 1:
            names, shown = " and ".join(f'"{name}"' for name in readers), toml_value(setting)
            example = f'{{name = "{readers[0]}", {key} = {shown if len(shown) <= 40 else "..."}}}'
            yield (
                f"{registry.section}.{key}",
                f"{names} would all read it; say whose it is by a table in the list, "
                f"{registry.name} = [{example}, ...], and give the others their own, or none",
            )
