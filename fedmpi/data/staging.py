"""A copy of a prepared data file on a node's local disk (`data.stage`), for later runs.

Shared file systems are slow when many jobs open the same file. Invariant: a copy is named after its source
file, with size and time, so an old one is never mistaken for a new one; it appears whole or not at all, and
what is read from it is checked like any prepared file.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from fedmpi.data.prepared import Dataset, read_dataset
from fedmpi.errors import OutputError, UserError
from fedmpi.storage.files import write_contended


def read_staged(path: Path, stage: str) -> Dataset:
    """The data set in the copy; in the file itself, if the copy is damaged."""
    copy = staged(path, stage)
    try:
        return read_dataset(copy)
    except UserError as error:
        if copy == path:
            raise
        print(f"note: {error}; removed, reading {path} itself", file=sys.stderr, flush=True)
        copy.unlink(missing_ok=True)
        return read_dataset(path)


def staged(path: Path, stage: str) -> Path:
    """The copy of a file in the folder `stage`, made if needed; the file itself if that fails."""
    folder = Path(os.path.expanduser(os.path.expandvars(stage)))
    if "$" in str(folder):
        raise UserError(
            f'config data.stage = "{stage}": a variable in it is not set on {os.uname().nodename}; SLURM '
            "clusters set $TMPDIR or $SLURM_TMPDIR, or name a folder"
        )
    try:
        status = path.resolve().stat()
    except OSError as error:
        raise UserError(f"data file {path}: cannot be read ({error.strerror})") from None
    identity = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    copy = folder / f"fedmpi-{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.h5"
    if copy.exists():
        return copy
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_contended(copy, path.read_bytes())
    except (OSError, OutputError) as error:
        print(f"note: no copy in data.stage ({error}); reading {path} itself", file=sys.stderr, flush=True)
        return path
    return copy
