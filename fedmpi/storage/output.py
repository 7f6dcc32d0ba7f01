"""Files that users asked for with `--out`."""

from __future__ import annotations

from pathlib import Path

from fedmpi.errors import OutputError, UserError
from fedmpi.storage.files import write_whole


def write_output(target: Path, data: bytes, option: str = "--out") -> None:
    """Write a whole file, and create its folders; a place that cannot be written is a UserError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise UserError(f"{option} {target}: is a folder; give the name of a file")
        write_whole(target, data)
    except OSError as error:
        raise UserError(f"{option} {target}: cannot write there ({error.strerror})") from None
    except OutputError as error:
        raise UserError(f"{option} {target}: {error}") from None
