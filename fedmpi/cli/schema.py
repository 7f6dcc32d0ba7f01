"""`fedmpi schema`: references made from the code, for editors (JSON schema) or as pages to read."""

from __future__ import annotations

import json
from pathlib import Path

from fedmpi.config.json_schema import json_schema
from fedmpi.storage.output import write_output

# Where the repository keeps each page.
PAGES = {
    "keys": "configs/REFERENCE.md",
    "commands": "configs/COMMANDS.md",
    "format": "analysis/FORMAT.md",
    "python": "analysis/PYTHON.md",
}


def schema(out: str | None, page: str | None) -> int:
    """Print the schema or a page, or write it to a file."""
    text = reference_page(page) if page else json.dumps(json_schema(), indent=2) + "\n"
    if out:
        write_output(Path(out), text.encode())
        print(out)
    else:
        print(text, end="")
    return 0


def reference_page(name: str) -> str:
    """One of `PAGES`; each loads only what it tells about."""
    if name == "commands":
        from fedmpi.cli.commands_page import commands_page

        return commands_page()
    if name == "format":
        from fedmpi.storage.format_page import format_page

        return format_page()
    if name == "python":
        from fedmpi.cli.python_page import python_page

        return python_page()
    from fedmpi.config.reference import reference

    return reference()
