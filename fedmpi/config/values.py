"""What a config key accepts: is a value of the right type and in its range, and how to say so in words.

Invariant: pure functions of a value, a type and the rule of a key (options.py).
"""

from __future__ import annotations

import math
import re
import types
import typing
from typing import Any


def show(value: Any) -> str:
    """A value for a message, not too long."""
    try:
        text = repr(value) if not isinstance(value, str) else f'"{value}"'
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def as_float(value: Any, kind: Any) -> Any:
    """Whole numbers are fine where a float is expected, in lists too."""
    accepts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if float in accepts and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else value
    for accepted in accepts:
        if typing.get_origin(accepted) is list and isinstance(value, list):
            return [as_float(v, typing.get_args(accepted)[0]) for v in value]
    return value


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; numbers are finite."""
    if isinstance(kind, types.UnionType):
        return any(has_type(value, k) for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is list:
        inner = typing.get_args(kind)[0]
        return isinstance(value, list) and bool(value) and all(has_type(v, inner) for v in value)
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


def in_range(value: Any, rule: Any) -> bool:
    """Whether a value of the right type is one that the key accepts; each number of a list."""
    if isinstance(value, list):
        return all(in_range(v, rule) for v in value)
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
    if rule["several"] and typing.get_origin(kind) is list:
        return 'a list of them, or of tables {name = "...", ...} with keys of their own'
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
