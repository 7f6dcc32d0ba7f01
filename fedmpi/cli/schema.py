"""`fedmpi schema`: every config key, for editors (JSON schema) or as a page to read."""

from __future__ import annotations

import json
from pathlib import Path

from fedmpi.config.json_schema import json_schema
from fedmpi.config.reference import reference
from fedmpi.storage.output import write_output


def schema(out: str | None, *, markdown: bool) -> int:
    """Print it, or write it to a file."""
    text = reference() if markdown else json.dumps(json_schema(), indent=2) + "\n"
    if out:
        write_output(Path(out), text.encode())
        print(out)
    else:
        print(text, end="")
    return 0
