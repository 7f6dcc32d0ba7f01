"""Functions of the user's own, named in a config as package.module:function.

Invariant: only names that stand in the user's own config are ever imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fedmpi.errors import UserError


def import_function(name: str, key: str) -> Callable:
    """The function a config names as package.module:function; looked for in the working directory too."""
    module_name, _, function_name = name.partition(":")
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


def call_function(name: str, key: str, arguments: dict[str, Any], shown: str = "") -> Any:
    """What the function that a config names returns; its exception is a UserError."""
    function = import_function(name, key)
    try:
        return function(**arguments)
    except Exception as error:
        shown = shown or ", ".join(arguments) or "no arguments"
        raise UserError(
            f'config {key} = "{name}": calling it with {shown} raised {type(error).__name__}: {error}'
        ) from error


@contextlib.contextmanager
def _working_directory_on_path() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
