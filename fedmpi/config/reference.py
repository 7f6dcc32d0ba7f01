"""All config keys, and all names that they accept, as a page for people (configs/REFERENCE.md)."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import fields

from fedmpi.config.effects import default_of
from fedmpi.config.explain import readers
from fedmpi.config.keys import sections
from fedmpi.config.registry import REGISTRIES
from fedmpi.config.toml import toml_value
from fedmpi.config.values import expected


def reference() -> str:
    """Markdown: a table of keys for each section, then the names that its keys accept."""
    lines = [
        "# Every config key",
        "",
        "Written by `fedmpi schema --page keys`; `fedmpi help KEY` prints the same. A key with names in",
        "its last column is read only there; `fedmpi check` says which keys have no effect.",
    ]
    for name, record in sections().items():
        lines += ["", f"## [{name}]", "", record.__doc__.partition("] ")[2], ""]
        lines += ["| key | default | meaning | accepted | read by |", "|---|---|---|---|---|"]
        lines += _rows(name, record)
        lines += _names(name)
    return "\n".join([*lines, ""])


def _rows(section: str, record: type) -> Iterator[str]:
    types_of = typing.get_type_hints(record)
    for key in fields(record):
        default = default_of(key)
        shown = f"`{toml_value(default)}`" if default not in (None, "") else ""
        if key.metadata["required"]:
            shown = "required"
        accepted = expected(types_of[key.name], key.metadata)
        cells = (
            f"`{key.name}`",
            shown,
            key.metadata["doc"],
            accepted,
            ", ".join(readers(section, key.name)),
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _names(section: str) -> Iterator[str]:
    """What stands behind each name."""
    for registry in REGISTRIES.values():
        if registry.section == section:
            yield from ("", f"`{registry.name}`:", "")
            for part in registry.parts():
                keys = ", ".join(f"`{key}`" for key in sorted(part.key_names))
                yield f"- `{part.name}`: {part.summary}" + (f" Keys: {keys}." if keys else "")
