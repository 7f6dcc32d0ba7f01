"""How a config key is declared: `name: type = option(default, meaning, what it accepts)` in a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmpi.config.keys import Config

REQUIRED = object()


def option(
    default: Any,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    choices: Iterable[str] = (),
    or_function: bool = False,
    or_file: bool = False,
    several: bool = False,
    needed: str = "",
    has_effect: Callable[[Config], bool] | None = None,
    may_change: bool = False,
    otherwise: Any = None,
) -> Any:
    """One config key: default (`REQUIRED`, or None for optional), what it means, what it accepts.

    `needed` says what is accepted where the part that declares the key cannot do without it. `has_effect`
    tells when the key is read, beyond the choice of the part that declares it; by default always.
    `several`: a list of choices, or of tables with one, is the choice of all of them (compositions.py).
    `may_change`: also when a run goes on. `otherwise`: the value where None is the default and the chosen
    part has no default of its own.
    """
    rule = {
        "doc": doc,
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "choices": choices,
        "or_function": or_function,
        "or_file": or_file,
        "several": several,
        "required": default is REQUIRED,
        "needed": needed,
        "has_effect": has_effect,
        "may_change": may_change,
        "otherwise": otherwise,
    }
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=rule)
    return field(default=None if default is REQUIRED else default, metadata=rule)
