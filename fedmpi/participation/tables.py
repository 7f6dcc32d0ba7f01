"""Columns of numbers in .csv and .h5 files, read and written, for schedules and traces.

Invariants: whatever cannot be read is a UserError that names the file and the line or row; a file that is
written appears whole or not at all, and reading it gives the same numbers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.files import check_harmless, replacing, write_whole

_FORMATS = (".h5", ".hdf5", ".csv")


@dataclass(frozen=True)
class Table:
    """Columns of the same length, and the place of each row in the file."""

    what: str  # "schedule FILE", for messages
    names: Sequence[str]
    columns: list[np.ndarray]
    unit: str  # "line" or "row"
    first: int  # number of the first row

    def refuse(self, bad: np.ndarray, problem: str) -> None:
        """A UserError for the first bad row, if there is one."""
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            pairs = zip(self.names, self.columns, strict=True)
            values = ", ".join(f"{name} {column[row]}" for name, column in pairs)
            raise UserError(f"{self.what}, {self.unit} {row + self.first}: {problem} ({values})")


def read_table(path: str | Path, key: str, kinds: dict[str, type], group: str) -> Table:
    """The columns named in `kinds` (int or float each), from a file named by `participation.key`.

    In HDF5 they are datasets at the root or in `group`.
    """
    path, what = Path(path), f"{key} {path}"
    if not path.is_file():
        raise UserError(f'config participation.{key} = "{path}": no such file')
    if path.suffix in (".h5", ".hdf5"):
        return Table(what, tuple(kinds), _read_hdf5(path, what, kinds, group), "row", 0)
    return Table(what, tuple(kinds), _read_csv(path, what, kinds), "line", 2)


def _read_csv(path: Path, what: str, kinds: dict[str, type]) -> list[np.ndarray]:
    names = ",".join(kinds)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{what}: cannot be read as text ({error})") from None
    header = [name.strip() for name in lines[0].split(",")] if lines else []
    if header != list(kinds):
        raise UserError(f"{what}, line 1: columns {header}; expected {names}")
    while lines and not lines[-1].strip():
        lines.pop()
    columns: list[list] = [[] for _ in kinds]
    readers = [_integer if kind is int else float for kind in kinds.values()]
    for number, line in enumerate(lines[1:], start=2):
        try:
            for column, reader, text in zip(columns, readers, line.split(","), strict=True):
                column.append(reader(text))
        except (ValueError, OverflowError):
            example = ",".join("17" if kind is int else "0.1" for kind in kinds.values())
            raise UserError(
                f"{what}, line {number}: {line[:60]!r}; expected {names} such as {example}"
            ) from None
    return [
        np.array(column, np.int64 if kind is int else float)
        for column, kind in zip(columns, kinds.values(), strict=True)
    ]


def _integer(text: str) -> np.int64:
    return np.int64(int(text))


def _read_hdf5(path: Path, what: str, kinds: dict[str, type], group: str) -> list[np.ndarray]:
    try:
        check_harmless(path)
        with h5py.File(path, "r", locking=False) as file:
            place = file.get(group, file)
            missing = [name for name in kinds if name not in place]
            if missing:
                raise UserError(f"{what}: no dataset {missing[0]}; expected {', '.join(kinds)}")
            columns = [place[name][()] for name in kinds]
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way inside the HDF5 library
        raise UserError(f"{what}: cannot be read as HDF5 ({error})") from None
    if len({c.shape for c in columns}) > 1 or columns[0].shape is None or columns[0].ndim != 1:
        raise UserError(f"{what}: datasets differ in length or are not one-dimensional")
    for i, (name, kind) in enumerate(kinds.items()):
        column = columns[i]
        if column.dtype.kind not in ("iu" if kind is int else "iuf"):
            raise UserError(f"{what}: dataset {name} holds {column.dtype}; expected {_words(kinds)}")
        if kind is int and len(column) and int(column.max()) >= 2**63:
            raise UserError(f"{what}, row {int(column.argmax())}: {column.max()} exceeds 63 bits")
        columns[i] = column.astype(np.int64 if kind is int else float)
    return columns


def _words(kinds: dict[str, type]) -> str:
    return ", ".join(f"{name} {'integer' if kind is int else 'number'}" for name, kind in kinds.items())


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
        # tolist() gives Python numbers, whose text is the shortest that reads back unchanged.
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
