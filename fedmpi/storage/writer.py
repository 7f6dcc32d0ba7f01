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
from fedmpi.storage.columns import (
    FORMAT,
    FORMAT_VERSION,
    OPTIONAL_TABLES,
    RUNNING,
    TABLES,
    stored_metrics,
    tables,
)
from fedmpi.storage.files import replacing
from fedmpi.storage.reader import open_run, peek
from fedmpi.storage.rows import append, create_model, create_params, create_table, extend
from fedmpi.storage.segments import (
    count_all_rows,
    cut_back,
    is_large,
    join,
    put_away,
    put_rows_away,
    segments_of,
)

_FLUSH_SECONDS = 2.0
_FLUSH_SHARE = 0.01  # of the time may go into flushing


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
        cls,
        path: Path,
        attributes: dict[str, Any],
        parameters: str,
        global_params: np.ndarray,
        clients: tuple = (),
    ) -> RunWriter:
        """A new file. `parameters` describes the model's names and shapes as JSON; `clients`: columns of
        that table, which is there from the start, since it is written once.
        """
        writer = cls(path)
        with replacing(path) as file:
            file.attrs.update(format=FORMAT, format_version=FORMAT_VERSION, status=RUNNING)
            file.attrs.update(attributes)
            columns = tables(stored_metrics(attributes))
            for name in TABLES:
                create_table(file.create_group(name), columns[name])
            if clients:
                append(file["clients"], TABLES["clients"], [clients])
            create_model(file.create_group("model"), parameters, global_params)
            writer.rows = count_all_rows(file)
        writer._next_flush = time.monotonic() + _FLUSH_SECONDS
        return writer

    @classmethod
    def reopen(cls, path: Path, rows: dict[str, int], attributes: dict[str, Any]) -> RunWriter:
        """An existing file, cut back to the rows that a checkpoint names."""
        writer = cls(path)
        with open_run(path) as file:
            is_in_segments = bool(segments_of(file))
        if is_in_segments:
            cut_back(path, rows)
        with replacing(path, copy=True) as file:
            # Drop rows that were written after the checkpoint.
            for name in [*TABLES, *OPTIONAL_TABLES, "params"]:
                for column in file.get(name, {}).values():
                    if column.maxshape[0] is None:  # not the bare dimension of /params
                        left = rows.get(name, 0) - put_away(segments_of(file), name)
                        column.resize(min(left, len(column)), axis=0)
            writer.rows = count_all_rows(file)
            file.attrs.update(attributes, status=RUNNING)
            is_too_large = is_large(file)
        if is_too_large:
            put_rows_away(path)
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
            for name, columns in tables(stored_metrics(file.attrs)).items():
                if name not in file and self._rows[name]:
                    create_table(file.create_group(name), columns)
                if self._rows[name]:
                    append(file[name], columns, self._rows[name])

            # Snapshots, the latest model, attributes.
            self._write_snapshots(file)
            file["model/global_params"][...] = global_params
            file.attrs.update(attributes)
            rows, is_too_large = count_all_rows(file), is_large(file)
        self.rows = rows

        # Rows are dropped only now, so that a failed flush can be tried again.
        for rows in self._rows.values():
            rows.clear()
        self._snapshots.clear()

        # Rows that are complete need not be written again.
        if is_too_large:
            put_rows_away(self.path)

        # The next flush waits longer if this one took long.
        now = time.monotonic()
        self._next_flush = now + max(_FLUSH_SECONDS, (now - begin) / self.share)

    def close(self) -> None:
        """The run is over: one ordinary file."""
        join(self.path)

    def _write_snapshots(self, file: h5py.File) -> None:
        if not self._snapshots:
            return
        rounds = np.array([t for t, _ in self._snapshots])
        values = np.stack([x for _, x in self._snapshots])

        # The group is created with the first snapshot.
        if "params" not in file:
            create_params(file, values.shape[1])
        extend(file["params/round"], rounds)
        extend(file["params/global_params"], values)


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
