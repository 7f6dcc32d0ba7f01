"""Writing a run's results, on rank 0 only.

Rows are collected in memory; `flush` replaces the file by a copy with the rows appended (files.py).
Invariant: the file under its own name is always whole and closed, so that any process can read it during
the run, and a kill at any moment leaves the last flushed state. No reader's lock can block the
writer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.errors.wording import command, option
from fedmpi.storage.columns import FORMAT, FORMAT_VERSION, OPTIONAL_TABLES, RUNNING, TABLES, Column
from fedmpi.storage.files import replacing
from fedmpi.storage.reader import peek

_FLUSH_SECONDS = 2.0
_FLUSH_SHARE = 0.01  # of the time may go into flushing
_NOT_A_VARIABLE = "This is a netCDF dimension but not a netCDF variable. %10d"  # text fixed by netCDF-4


class RunWriter:
    """The result file of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, int] = {}  # on disk, of each table
        self._rows: dict[str, list[tuple]] = {name: [] for name in [*TABLES, *OPTIONAL_TABLES]}
        self._snapshots: list[tuple[int, np.ndarray]] = []
        self._next_flush = 0.0
        self.share = _FLUSH_SHARE

    @classmethod
    def create(
        cls, path: Path, attributes: dict[str, Any], parameters: str, global_params: np.ndarray
    ) -> RunWriter:
        """A new file. `parameters` describes the model's names and shapes as JSON."""
        writer = cls(path)
        with replacing(path) as file:
            file.attrs.update(format=FORMAT, format_version=FORMAT_VERSION, status=RUNNING)
            file.attrs.update(attributes)
            for name, columns in TABLES.items():
                _create_table(file.create_group(name), columns)
            _create_model(file.create_group("model"), parameters, global_params)
        return writer

    @classmethod
    def reopen(cls, path: Path, rows: dict[str, int], attributes: dict[str, Any]) -> RunWriter:
        """An existing file, cut back to the rows that a checkpoint names."""
        writer = cls(path)
        with replacing(path, copy=True) as file:
            # Drop rows that were written after the checkpoint.
            for name in [*TABLES, *OPTIONAL_TABLES, "params"]:
                for column in file.get(name, {}).values():
                    if column.maxshape[0] is None:  # not the bare dimension of /params
                        column.resize(rows.get(name, 0), axis=0)
            writer.rows = _count_rows(file)
            file.attrs.update(attributes, status=RUNNING)
        return writer

    def add(self, table: str, *values: Any) -> None:
        """Rows for the next flush: a number or an array for each column, numbers repeated to fit."""
        self._rows[table].append(values)

    def add_snapshot(self, completed: int, global_params: np.ndarray) -> None:
        """x_t for /params."""
        self._snapshots.append((completed, global_params.copy()))

    @property
    def is_flush_due(self) -> bool:
        """Whether the last flush was long enough ago to keep the cost below 1 % of the time."""
        return time.monotonic() >= self._next_flush

    def flush(self, global_params: np.ndarray, **attributes: Any) -> None:
        """Write all rows, the model and changed attributes to disk."""
        begin = time.monotonic()
        with replacing(self.path, copy=True) as file:
            # New rows; an optional table is created with its first row.
            for name, columns in TABLES.items():
                _append(file[name], columns, self._rows[name])
            for name, columns in OPTIONAL_TABLES.items():
                if self._rows[name]:
                    if name not in file:
                        _create_table(file.create_group(name), columns)
                    _append(file[name], columns, self._rows[name])

            # Snapshots, the latest model, attributes.
            self._write_snapshots(file)
            file["model/global_params"][...] = global_params
            file.attrs.update(attributes)
            rows = _count_rows(file)
        self.rows = rows

        # Rows are dropped only now, so that a failed flush can be tried again.
        for rows in self._rows.values():
            rows.clear()
        self._snapshots.clear()

        # The next flush waits longer if this one took long.
        now = time.monotonic()
        self._next_flush = now + max(_FLUSH_SECONDS, (now - begin) / self.share)

    def _write_snapshots(self, file: h5py.File) -> None:
        if not self._snapshots:
            return
        rounds = np.array([t for t, _ in self._snapshots])
        values = np.stack([x for _, x in self._snapshots])

        # The group is created with the first snapshot.
        if "params" not in file:
            group = file.create_group("params")
            _create_table(group, (Column("round", "i8", "rounds", "completed rounds: t is x_t"),))
            _create_bare_dimension(group, "parameter", values.shape[1])
            data = group.create_dataset(
                "global_params", (0, values.shape[1]), "f8", maxshape=(None, values.shape[1]),
                chunks=(max(1, min(64, (1 << 20) // (8 * values.shape[1]))), values.shape[1]),
            )  # fmt: skip
            _describe(data, "1", "x_t, float64")
            _attach(data, group, "round", "parameter")

        _extend(file["params/round"], rounds)
        _extend(file["params/global_params"], values)


def check_target(path: Path, *, force: bool) -> None:
    """Refuse early to overwrite results or a foreign file, or to write where that is not possible."""
    out = option("out", path)

    # Try to write next to the target.
    trial = path.with_name(f".{path.name}.partial")
    try:
        exists = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        reason = error.strerror
        raise UserError(f"{out}: cannot write there ({reason}); choose another name") from None
    if not exists:
        return

    # Only --force overwrites a run, and nothing overwrites another file.
    run = peek(path)
    if run is None:
        raise UserError(f"{out}: exists and is not a fedmpi run file; choose another name")
    if not force:
        raise UserError(
            f'{out}: already holds a run (status "{run["status"]}", {run["rounds"]} rounds); continue it '
            f"with {command('resume', path)}, choose another name, or overwrite it with {option('force')}"
        )


def _count_rows(file: h5py.File) -> dict[str, int]:
    """Rows of every table."""
    counts = {name: len(file[name][columns[0].name]) for name, columns in TABLES.items()}
    there = [name for name in [*OPTIONAL_TABLES, "params"] if name in file]
    return counts | {name: len(file[name]["round"]) for name in there}


def _create_model(group: h5py.Group, parameters: str, global_params: np.ndarray) -> None:
    _create_bare_dimension(group, "parameter", len(global_params))
    data = group.create_dataset("global_params", data=global_params)
    _describe(data, "1", "x_t after the last round written")
    _attach(data, group, "parameter")
    group.attrs["parameters"] = parameters


def _attach(data: h5py.Dataset, group: h5py.Group, *scales: str) -> None:
    """Name the dimensions of a dataset by scales of its group."""
    for axis, scale in enumerate(scales):
        data.dims[axis].attach_scale(group[scale])
        data.dims[axis].label = scale


def _create_table(group: h5py.Group, columns: tuple[Column, ...]) -> None:
    """Empty, growing, compressed columns along a dimension scale."""
    # The columns.
    for column in columns:
        data = group.create_dataset(
            column.name, (0,), column.dtype, maxshape=(None,), chunks=(8192,),
            compression="gzip", compression_opts=4, shuffle=True,
        )  # fmt: skip
        _describe(data, column.units, column.description)

    # The first one is the dimension of the others.
    group[columns[0].name].make_scale(columns[0].name)
    for column in columns[1:]:
        _attach(group[column.name], group, columns[0].name)


def _create_bare_dimension(group: h5py.Group, name: str, size: int) -> None:
    """A dimension without values, as netCDF-4 has them; takes no space."""
    scale = group.create_dataset(name, (size,), "i1", chunks=(min(size, 1 << 20),))
    scale.make_scale(_NOT_A_VARIABLE % size)
    _describe(scale, "1", "position in the flat vector of parameters; holds no values")


def _describe(data: h5py.Dataset, units: str, description: str) -> None:
    data.attrs["units"] = units
    data.attrs["description"] = description
    data.attrs["long_name"] = description  # the name that plotting tools look for


def _append(group: h5py.Group, columns: tuple[Column, ...], rows: list[tuple]) -> None:
    """Append what `RunWriter.add` collected."""
    if not rows:
        return
    lengths = [
        max((len(value) for value in row if isinstance(value, np.ndarray)), default=1) for row in rows
    ]
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        # Arrays one after another, numbers repeated to fit.
        if isinstance(values[0], np.ndarray):
            block = np.concatenate(values)
        else:
            block = np.repeat(np.array(values), lengths)
        _extend(group[column.name], block)


def _extend(data: h5py.Dataset, block: np.ndarray) -> None:
    data.resize(len(data) + len(block), axis=0)
    data[len(data) - len(block) :] = block
