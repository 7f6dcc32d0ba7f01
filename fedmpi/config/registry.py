"""Parts of an experiment that a config chooses by name, and what each part declares about its keys.

A part (a method, an availability, a model, ...) is registered where it is defined:

    @dataclass(frozen=True, kw_only=True)
    class PeriodicKeys:
        num_groups: int | None = option(None, "periodic: groups that take turns", needed="an integer >= 1")

    @availability("periodic", PeriodicKeys)
    class Periodic(Availability): ...

A fact `start={"num_groups": 5}` gives values for `fedmpi new`, of keys that have no default to begin with.
From then on its name is accepted, its keys belong to their section, and `check`, errors, the JSON schema
and the reference page know both. Parts are found by importing the package that holds those of a kind;
this module imports none of them itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmpi.config.keys import Config

Finding = tuple[str, str]  # "section.key", and what is wrong


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a config may choose, with what it declares."""

    name: str
    make: Any  # the class or function
    keys: tuple[type, ...] = ()  # records of the keys that it reads
    conflicts: Callable[[Config], Iterator[Finding]] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of keys of its section that are not given
    facts: Mapping[str, Any] = field(default_factory=dict)  # what other parts ask about it

    @property
    def key_names(self) -> set[str]:
        """The keys that it reads, besides those of its section that everybody reads."""
        return {f.name for record in self.keys for f in fields(record)}

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return (self.make.__doc__ or "").strip().partition("\n")[0]


class Registry(Mapping[str, Any]):
    """The parts of one kind by name, in the order of their definition; a call registers one more."""

    def __init__(self, key: str, package: str) -> None:
        """`key` of the config that names the part; `package` that defines the built-in ones."""
        self.key, self._package = key, package
        self.section, _, self.name = key.partition(".")
        self._parts: dict[str, Part] = {}
        self._is_loaded = False
        REGISTRIES[key] = self

    def __call__(
        self,
        name: str,
        *keys: type,
        conflicts: Callable[[Config], Iterator[Finding]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> Callable[[Any], Any]:
        """A decorator that registers a class or a function under a name."""

        def register(make: Any) -> Any:
            self._parts[name] = Part(
                name=name, make=make, keys=keys, conflicts=conflicts, defaults=defaults or {}, facts=facts
            )
            return make

        return register

    def part(self, name: str) -> Part | None:
        """What stands under a name; None for a function or a file of the user's own."""
        self._load()
        return self._parts.get(name)

    def fact(self, name: str, fact: str) -> Any:
        """What a part says of itself; None if it does not, and for a user's own."""
        part = self.part(name)
        return part.facts.get(fact) if part else None

    def parts(self) -> list[Part]:
        """All of them."""
        self._load()
        return list(self._parts.values())

    def remove(self, name: str) -> None:
        """Forget a part; for tests that add one."""
        del self._parts[name]

    def __getitem__(self, name: str) -> Any:
        self._load()
        return self._parts[name].make

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(list(self._parts))

    def __len__(self) -> int:
        self._load()
        return len(self._parts)

    def _load(self) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            importlib.import_module(self._package)


REGISTRIES: dict[str, Registry] = {}

DATASETS = Registry("data.dataset", "fedmpi.data.sources")
PARTITIONS = Registry("data.partition", "fedmpi.data.partition_rules")
MODELS = Registry("model.name", "fedmpi.models.builtin")
TASKS = Registry("task.name", "fedmpi.tasks")
AVAILABILITIES = Registry("participation.availability", "fedmpi.participation")
SELECTIONS = Registry("participation.selection", "fedmpi.participation")
WEIGHTINGS = Registry("participation.weighting", "fedmpi.participation")
METHODS = Registry("algorithm.name", "fedmpi.methods")
