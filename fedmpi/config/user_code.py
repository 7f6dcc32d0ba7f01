"""Code of the user's own: functions that a config names as package.module:function, and Python objects.

An object that a program passes to `fedmpi.run` stands in the config under its importable name if it has
one, else as `__python__:Name`, which means nothing outside that program. Invariant: only names that stand
in the user's own config are ever imported.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmpi.config.source_text import source_text
from fedmpi.errors import UserError

if TYPE_CHECKING:
    from fedmpi.config.keys import Config

PASSED = "__python__"
# Arguments of fedmpi.run, and the config keys that name what they stand for.
ARGUMENTS = {
    "model": "model.name",
    "participation": "participation.availability",
    "method": "algorithm.name",
    "partition": "data.partition",
    "dataset": "data.dataset",
    "task": "task.name",
}

_START_ANEW = "start a new run, or go on with trust=True"
_INSTANCES = ("model", "dataset", "task")  # may be given themselves, instead of a function that makes them


@dataclass(frozen=True, kw_only=True)
class PassedObject:
    """An object of the program that called."""

    name: str  # in the config
    function: Callable
    source: str  # text, as far as it is known


_passed: dict[tuple[str, str], PassedObject] = {}  # by config key and name


@contextlib.contextmanager
def passed_objects(objects: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Make objects known for a `with` block, by argument of fedmpi.run; gives settings that name them."""
    names = {ARGUMENTS[argument]: value for argument, value in objects.items() if isinstance(value, str)}
    things = {
        ARGUMENTS[argument]: _describe(value, argument)
        for argument, value in objects.items()
        if not isinstance(value, str)
    }
    before = dict(_passed)
    _passed.update({(key, thing.name): thing for key, thing in things.items()})
    try:
        yield names | {key: thing.name for key, thing in things.items()}
    finally:
        _passed.clear()
        _passed.update(before)


def import_function(name: str, key: str) -> Callable:
    """The function a config names; modules are looked for in the working directory too."""
    if (key, name) in _passed:
        return _passed[key, name].function
    module_name, _, function_name = name.partition(":")
    if module_name == PASSED:
        raise UserError(
            f'config {key} = "{name}": a Python object of the program that made this config; '
            f"pass it again, as in {_call('run', '', key, function_name)}"
        )
    with _working_directory_on_path():
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise UserError(
                f'config {key} = "{name}": importing {module_name} raised '
                f"{type(error).__name__}: {error}; it must be importable from {os.getcwd()} "
                "or from PYTHONPATH"
            ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n in vars(module) if callable(vars(module)[n]) and not n.startswith("_")]
        raise UserError(
            f'config {key} = "{name}": {module_name} has no function {function_name}; '
            f"it has: {', '.join(sorted(names)) or 'none'}"
        )
    return function


def call_function(
    name: str, key: str, arguments: dict[str, Any], options: dict[str, Any] | None = None, shown: str = ""
) -> Any:
    """What the function that a config names returns; its exception is a UserError.

    It may leave out `arguments` that it does not need, but has to know all `options`.
    """
    function = import_function(name, key)
    try:
        return function(**fitting(function, arguments), **(options or {}))
    except Exception as error:
        shown = shown or ", ".join(arguments) or "no arguments"
        raise UserError(
            f'config {key} = "{name}": calling it with {shown} raised {type(error).__name__}: {error}'
        ) from error


def fitting(function: Callable, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function names; all of them where that is not known.

    >>> fitting(lambda t: [t], {"t": 3, "seed": 1})
    {'t': 3}
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return arguments
    if any(p.kind in (p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters):
        return arguments
    names = {p.name for p in parameters}
    return {name: value for name, value in arguments.items() if name in names}


def describe_code(config: Config) -> dict[str, str]:
    """An attribute of the result file: the user's own code behind the config, with its source."""
    from fedmpi.config.effects import chosen

    described = {}
    for registry, name, part in chosen(config):
        if part is not None or ":" not in name:
            continue
        thing = _passed.get((registry.key, name))
        source = thing.source if thing else source_text(import_function(name, registry.key))
        place = registry.key + (f", {name}" if registry.key in described else "")
        described[place] = {"name": name, "sha256": _digest(source), "source": source}
    return {"user_code": json.dumps(described)} if described else {}


def uses_passed_objects(config: Config) -> bool:
    """Whether a config names an object that only the program that made it has."""
    from fedmpi.config.effects import chosen

    return any(name.startswith(f"{PASSED}:") for _, name, _ in chosen(config))


def require_same_objects(stored: dict[str, Any], path: object, remedy: str = _START_ANEW) -> None:
    """Refuse to go on with other Python objects than a run was begun with, or without them."""
    described = json.loads(stored.get("user_code", "{}"))
    for key, code in described.items():
        module, _, name = code["name"].partition(":")
        if module != PASSED:
            continue
        thing = _passed.get((key, code["name"]))
        if thing is None:
            raise UserError(
                f'{path}: was started from a Python program with "{name}" as {key}, which only that '
                f"program has; go on from there with {_call('resume', str(path), key, name)}"
            )
        if _digest(thing.source) != code["sha256"]:
            raise UserError(
                f'{path}: the source of "{name}" ({key}) is not the one that the run was begun with: the '
                f"results would mix two experiments; {remedy}"
            )


def require_stored_names(config: Config, named: Mapping[str, str], path: object) -> None:
    """Refuse objects and names for a run that was begun with others: they would not be used."""
    for key, name in named.items():
        section, _, field = key.partition(".")
        stored = getattr(getattr(config, section), field)
        if stored != name:
            argument = next(a for a, k in ARGUMENTS.items() if k == key)
            raise UserError(
                f'{argument}: was given as "{name}", but {path} was begun with {key} = "{stored}"; leave '
                "it out, or start a new run"
            )


def _call(function: str, first: str, key: str, name: str) -> str:
    """How to pass an object: fedmpi.resume('a.h5', model=Net)."""
    argument = next((a for a, k in ARGUMENTS.items() if k == key), "model")
    shown = repr(first) if first else "..."
    given = "..." if name == argument else name  # a lambda, which has no name of its own
    return f"fedmpi.{function}({shown}, {argument}={given})"


def _describe(value: Any, argument: str) -> PassedObject:
    """An object with the name and the source that stand for it."""
    if not callable(value) and argument not in _INSTANCES:
        raise UserError(
            f"{argument} = {type(value).__name__}: expected a function, a class, or a name as in the config"
        )
    function = value if callable(value) and not _is_module(value) else _giving(value)
    inner = value.func if isinstance(value, functools.partial) else value
    plain = getattr(inner, "__name__", type(inner).__name__)
    plain = plain if plain.isidentifier() else argument  # a lambda has no name
    name = _importable_name(value) or f"{PASSED}:{plain}"
    return PassedObject(name=name, function=function, source=source_text(value))


def _giving(value: Any) -> Callable:
    """An instance stands for a function that gives it; a torch module is copied each time."""
    import copy

    return (lambda: copy.deepcopy(value)) if _is_module(value) else (lambda: value)


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _importable_name(value: Any) -> str:
    """package.module:name, if another process finds the same object there."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        return ""
    found = sys.modules.get(module)
    is_file = getattr(found, "__file__", None) is not None
    return f"{module}:{name}" if is_file and getattr(found, name, None) is value else ""


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


@contextlib.contextmanager
def _working_directory_on_path() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
