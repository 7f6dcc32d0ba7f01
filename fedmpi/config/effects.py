"""What must hold between config keys, and which keys have an effect: asked of the parts that were chosen.

Invariant: each finding names one key, says what it clashes with and what would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from fedmpi.config.compositions import availabilities_in, names_in, readers_of, shared_keys
from fedmpi.config.keys import Config, sections
from fedmpi.config.records import replace
from fedmpi.config.registry import AVAILABILITIES, PARTITIONS, REGISTRIES, Finding, Part, Registry
from fedmpi.config.toml import toml_value

_SHORTEST_STALL = 0.01  # minutes; a flush on a busy machine may take as long


def chosen(config: Config) -> Iterator[tuple[Registry, str, Part | None]]:
    """Each kind of part, a name that the config gives, and the part; None for a user's own."""
    for registry in REGISTRIES.values():
        for name in names_in(getattr(getattr(config, registry.section), registry.name)):
            yield registry, name, registry.part(name)


def _views(config: Config, registry: Registry) -> list[Config]:
    """The config as each part of a kind sees it: as if it stood alone."""
    if registry is not AVAILABILITIES:
        return [config]
    return [replace(config, participation=one) for one in availabilities_in(config.participation)]


def conflicts(config: Config) -> Iterator[Finding]:
    """Combinations that cannot work, as (key, problem)."""
    yield from _conflicts_between_sections(config)
    for registry in REGISTRIES.values():
        if not has_effect(config, registry.section, registry.name):
            continue
        value = getattr(getattr(config, registry.section), registry.name)
        if isinstance(value, list):
            section = getattr(config, registry.section)
            yield from shared_keys(registry, section, _given(config, registry.section))
        for name, view in zip(names_in(value), _views(config, registry), strict=True):
            part = registry.part(name)
            if part:
                yield from _missing(view, registry, name, part)
            if part and part.conflicts:
                yield from part.conflicts(view)


def _given(config: Config, section: str) -> dict[str, Any]:
    """The keys of a section that are set away from their default."""
    return {
        key.name: value
        for name, key, value in _keys(config)
        if name == section and value not in (default_of(key), key.metadata["otherwise"])
    }


def _conflicts_between_sections(config: Config) -> Iterator[Finding]:
    run, data, warmup = config.run, config.data, config.warmup
    if warmup and warmup.num_rounds > run.num_rounds:
        problem = f"{warmup.num_rounds} rounds of warm-up exceed run.num_rounds = {run.num_rounds}"
        yield "warmup.num_rounds", problem
    knows_clients = PARTITIONS.fact(data.partition, "knows_clients")
    if data.num_clients is None and not knows_clients and has_effect(config, "data", "partition"):
        yield "data.num_clients", "missing; N, the number of clients; expected an integer >= 1"
    if 0 < run.stall_minutes < _SHORTEST_STALL:
        problem = f"would end every job; expected {_SHORTEST_STALL:g} or more, or 0 for never"
        yield "run.stall_minutes", f"{run.stall_minutes:g} minutes {problem}"
    if run.cuda_aware and run.device == "cpu":
        yield "run.cuda_aware", 'true needs run.device = "auto" or "cuda", it is "cpu"'
    yield from _steps_conflicts(config)
    if config.algorithm.lr_schedule == "step" and config.algorithm.lr_halve_every is None:
        problem = 'missing; lr_schedule = "step" needs it; expected an integer >= 1'
        yield "algorithm.lr_halve_every", problem


def _steps_conflicts(config: Config) -> Iterator[Finding]:
    steps, num_clients = config.algorithm.local_steps, config.data.num_clients
    is_range = config.algorithm.local_steps_law == "uniform"
    if is_range and not (isinstance(steps, list) and len(steps) == 2 and steps[0] <= steps[1]):
        yield (
            "algorithm.local_steps",
            f'{toml_value(steps)}: local_steps_law = "uniform" needs [least, most], such as [2, 8]',
        )
    elif not is_range and isinstance(steps, list) and num_clients and len(steps) != num_clients:
        yield (
            "algorithm.local_steps",
            f"{len(steps)} numbers for data.num_clients = {num_clients}; expected one for each client, or "
            '[least, most] with local_steps_law = "uniform"',
        )


def _missing(config: Config, registry: Registry, name: str, part: Part) -> Iterator[Finding]:
    """Keys that the part cannot do without."""
    given = getattr(config, registry.section)
    for record in part.keys:
        for key in fields(record):
            if key.metadata["needed"] and getattr(given, key.name) is None:
                yield (
                    f"{registry.section}.{key.name}",
                    f'missing; {registry.name} = "{name}" needs it; expected {key.metadata["needed"]}',
                )


def has_effect(config: Config, section: str, key: str) -> bool:
    """Whether this experiment reads a key."""
    if section == "algorithm" and ":" in config.algorithm.name:
        return True  # a user's own method may read any key
    owners = [r for r in REGISTRIES.values() if r.section == section and _declares(r, key)]
    if owners and not any(_is_read(config, registry, key) for registry in owners):
        return False
    rule = next(f for f in fields(sections()[section]) if f.name == key).metadata
    if rule["has_effect"] is None:
        return True
    views = _views(config, owners[0]) if owners else [config]
    return any(rule["has_effect"](view) for view in views)


def _declares(registry: Registry, key: str) -> bool:
    return any(key in part.key_names for part in registry.parts())


def _is_read(config: Config, registry: Registry, key: str) -> bool:
    return bool(readers_of(registry, getattr(config, registry.section), key))


def unused_keys(config: Config) -> list[str]:
    """Keys set away from their default that this combination does not read, one sentence each."""
    return [
        f"{section}.{key.name} has no effect with the other settings"
        for section, key, value in _keys(config)
        if value not in (default_of(key), key.metadata["otherwise"])
        and not has_effect(config, section, key.name)
    ]


def config_text(config: Config, *, everything: bool) -> str:
    """The resolved config for people: the keys that have an effect, and how to see all of them."""
    if everything:
        return config.to_toml()
    shown = effective_toml(config)
    hidden = config.to_toml().count(" = ") - shown.count(" = ")
    return (
        f"{shown}# {hidden} keys without effect are not shown; see them with --all\n" if hidden else shown
    )


def effective_toml(config: Config, *, everything: bool = True) -> str:
    """The resolved config without the keys that have no effect; without `everything` no defaults either."""
    lines: list[str] = []
    for section, key, value in _keys(config):
        if not everything and value == default_of(key) and not key.metadata["required"]:
            continue
        if f"[{section}]" not in lines:
            lines += [""] * bool(lines) + [f"[{section}]"]
        if value is not None and has_effect(config, section, key.name):
            lines.append(f"{key.name} = {toml_value(value)}")
    return "\n".join([*lines, ""])


def default_of(key: Field) -> Any:
    """The value of a key that is not given."""
    return key.default if key.default is not MISSING else key.default_factory()


def _keys(config: Config) -> Iterator[tuple[str, Field, Any]]:
    for section in fields(config):
        record = getattr(config, section.name)
        for key in fields(record) if record is not None else ():
            yield section.name, key, getattr(record, key.name)
