"""The text that stands for a Python object in a result file, and tells it from another one.

Two objects that would compute differently should differ in it. Known gap: what a function takes from
outside its own text (global names, closures) is not part of it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

_DEEPEST = 6  # levels of lists, dicts and instances that are described


def source_text(value: Any, depth: int = 0) -> str:
    """The source of a function or class, with the values that an instance or a partial adds to it."""
    if isinstance(value, functools.partial):
        given = _value_text([value.args, value.keywords], depth + 1)
        return f"{source_text(value.func, depth)}\n# with {given}"
    if isinstance(value, types.MethodType):
        return f"{source_text(value.__func__, depth)}\n# of {_value_text(value.__self__, depth + 1)}"
    if _has_digest(value):
        return f"# {type(value).__name__} with digest {value.digest()}"
    if hasattr(value, "__qualname__"):  # a function, a class
        return _written(value) or f"# source not known; code {_digest(_code_text(value))}"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):  # its numbers are in the model's digest
        return f"{source_text(type(value))}\n# {_without_addresses(repr(value))}"
    return f"{source_text(type(value))}\n# with {_value_text(getattr(value, '__dict__', {}), depth + 1)}"


def _written(value: Any) -> str:
    """The text of a function or class as its author wrote it; empty where it is not known."""
    try:
        if getattr(value, "__name__", "") == "<lambda>":
            return _lambda_text(value.__code__)
        return inspect.getsource(value)
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""


def _lambda_text(code: types.CodeType) -> str:
    """A lambda without the statement round it; empty if two of them stand at the same place."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    inside = [p for p in code.co_positions() if p[0] is not None and p[2] is not None and p[3] != 0]
    begin, end = min((p[0], p[2]) for p in inside), max((p[1], p[3]) for p in inside)
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Lambda)
        and (node.body.lineno, node.body.col_offset) <= begin
        and (node.body.end_lineno, node.body.end_col_offset) >= end
    ]
    innermost = max(around, key=lambda node: (node.lineno, node.col_offset), default=None)
    return (ast.get_source_segment(text, innermost) or "") if innermost else ""


def _code_text(value: Any) -> str:
    """What is known of code without its source: instructions, names, constants and defaults."""
    if isinstance(value, type):
        members = sorted((name, _code_text(member)) for name, member in vars(value).items())
        return repr((value.__name__, members))
    if isinstance(value, property):
        return _code_text(value.fget)
    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", function)
    if not isinstance(code, types.CodeType):
        return _without_addresses(repr(value)) if callable(value) else _value_text(value)
    constants = [_code_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    defaults = [getattr(function, name, None) for name in ("__defaults__", "__kwdefaults__")]
    return repr((code.co_code, code.co_names, code.co_varnames, constants, _value_text(defaults)))


def _value_text(value: Any, depth: int = 0) -> str:
    """A value as text: arrays and tensors by their numbers, functions and instances as `source_text`."""
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        inside = (f"{key!r}: {_value_text(item, depth + 1)}" for key, item in value.items())
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_value_text(item, depth + 1) for item in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_value_text(item, depth + 1) for item in value))}}}"
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu().numpy()
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if callable(value) or _has_digest(value):
        return source_text(value, depth)
    if type(value).__repr__ is object.__repr__:  # an instance that does not show what is in it
        return f"{type(value).__qualname__} {_value_text(getattr(value, '__dict__', {}), depth + 1)}"
    return _without_addresses(repr(value))


def _has_digest(value: Any) -> bool:
    """A data set, and what of the user's own knows better than we do what tells it from another."""
    return not isinstance(value, type) and callable(getattr(value, "digest", None))


def _without_addresses(text: str) -> str:
    """Without what differs from process to process.

    >>> _without_addresses("<Thing at 0x7f00aa>")
    '<Thing>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
