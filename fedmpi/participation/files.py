"""Writing schedules and traces: columns of numbers that participation/table.py reads back.

Invariant: a file appears whole or not at all, and reading it gives the same numbers, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.files import replacing, write_whole

_FORMATS = (".h5", ".hdf5", ".csv")


def table_target(out: str, *, force: bool) -> Path:
    """The file to write; a bad format, an unwritable place or an existing file is a UserError."""
    target = Path(out)
    if target.suffix not in _FORMATS:
        raise UserError(
            f"--out {out}: format {target.suffix or 'missing'}; accepted: {', '.join(_FORMATS)}"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        exists = target.exists()
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there ({error.strerror})") from None
    if exists and not force:
        raise UserError(f"--out {out}: exists; choose another name, or overwrite it with --force")
    return target


def write_table(
    path: Path, group: str, columns: dict[str, np.ndarray], attributes: dict[str, str | int | float]
) -> None:
    """Columns of the same length, as .csv, or in a group of an .h5 file with attributes."""
    if path.suffix == ".csv":
        # tolist() gives Python numbers, whose text is the shortest that reads back the same.
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        lines = [",".join(columns), *(",".join(map(repr, row)) for row in rows)]
        write_whole(path, ("\n".join(lines) + "\n").encode())
        return
    with replacing(path) as file:
        file.attrs.update(attributes)
        for name, column in columns.items():
            is_empty = len(column) == 0  # HDF5 cannot compress nothing
            how = {} if is_empty else {"compression": "gzip", "shuffle": True}
            file.create_dataset(f"{group}/{name}", data=column, **how)
