"""Values as TOML text; the standard library only reads it."""

from __future__ import annotations

import re
from typing import Any


def toml_value(value: Any) -> str:
    """A value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        controls = {ord(c): f"\\u{ord(c):04x}" for c in map(chr, [*range(32), 127])}
        return '"' + escaped.translate(controls) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _key(name: str) -> str:
    """Bare where TOML allows it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
