"""Participation given outright: any matrix Q from a file.

Columns `round,client,weight` of a CSV file, or datasets of those names in an HDF5 file (at its root or in
/participation, so that the result file of a run is a schedule too). A round that is not in the file has
no participant. Invariant: every row is checked before the first round.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.files import check_harmless

_COLUMNS = ("round", "client", "weight")


class Schedule:
    """Weights as given."""

    def __init__(self, rounds: np.ndarray, clients: np.ndarray, weights: np.ndarray) -> None:
        order = np.lexsort((clients, rounds))
        order = order[weights[order] > 0]  # q = 0 means not taking part
        self._rounds, self._clients, self._weights = (a[order] for a in (rounds, clients, weights))

    def weights(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """(clients, weights) of round t."""
        first, last = np.searchsorted(self._rounds, [t, t + 1])
        return self._clients[first:last], self._weights[first:last]

    def state(self) -> dict[str, np.ndarray]:
        """Nothing to keep."""
        return {}

    def restore(self, t: int, state: dict[str, np.ndarray]) -> None:
        """Nothing to restore."""

    def digest(self) -> str:
        """SHA-256 of all rows."""
        sha = hashlib.sha256()
        for column in (self._rounds, self._clients, self._weights):
            sha.update(np.ascontiguousarray(column))
        return sha.hexdigest()


def read_schedule(path: str | Path, num_clients: int) -> Schedule:
    """The schedule in a .csv or .h5 file; a bad row is a UserError that names its place."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f'config participation.schedule = "{path}": no such file')
    is_hdf5 = path.suffix in (".h5", ".hdf5")
    columns, unit, first = (*_read_hdf5(path), "row", 0) if is_hdf5 else (*_read_csv(path), "line", 2)
    rounds, clients, weights = columns

    def refuse(bad: np.ndarray, what: str) -> None:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            values = f"round {rounds[row]}, client {clients[row]}, weight {weights[row]}"
            raise UserError(f"schedule {path}, {unit} {row + first}: {what} ({values})")

    refuse(rounds < 0, "negative round; expected round >= 0")
    refuse((clients < 0) | (clients >= num_clients), f"no such client; expected 0 to {num_clients - 1}")
    refuse(~np.isfinite(weights) | (weights < 0), "bad weight; expected a finite number >= 0")
    order = np.lexsort((clients, rounds))
    again = (np.diff(rounds[order]) == 0) & (np.diff(clients[order]) == 0)
    repeated = np.zeros(len(rounds), bool)
    repeated[order[1:][again]] = True
    refuse(repeated, "client listed twice in a round; expected one row for each")
    return Schedule(rounds, clients, weights)


def _read_csv(path: Path) -> tuple[tuple[np.ndarray, ...]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"schedule {path}: cannot be read as text ({error})") from None
    header = [name.strip() for name in lines[0].split(",")] if lines else []
    if header != list(_COLUMNS):
        raise UserError(f"schedule {path}, line 1: columns {header}; expected round,client,weight")
    while lines and not lines[-1].strip():
        lines.pop()
    rounds, clients, weights = [], [], []
    for number, line in enumerate(lines[1:], start=2):
        try:
            t, client, weight = line.split(",")
            rounds.append(np.int64(int(t)))
            clients.append(np.int64(int(client)))
            weights.append(float(weight))
        except (ValueError, OverflowError):
            raise UserError(
                f"schedule {path}, line {number}: {line[:60]!r}; "
                "expected round,client,weight such as 0,17,0.1"
            ) from None
    return ((np.array(rounds, np.int64), np.array(clients, np.int64), np.array(weights)),)


def _read_hdf5(path: Path) -> tuple[tuple[np.ndarray, ...]]:
    try:
        check_harmless(path)
        with h5py.File(path, "r", locking=False) as file:
            group = file.get("participation", file)
            missing = [name for name in _COLUMNS if name not in group]
            if missing:
                raise UserError(f"schedule {path}: no dataset {missing[0]}; expected {_COLUMNS}")
            columns = [group[name][()] for name in _COLUMNS]
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way inside the HDF5 library
        raise UserError(f"schedule {path}: cannot be read as HDF5 ({error})") from None
    if len({c.shape for c in columns}) > 1 or columns[0].shape is None or columns[0].ndim != 1:
        raise UserError(f"schedule {path}: datasets differ in length or are not one-dimensional")
    if any(c.dtype.kind not in "iu" for c in columns[:2]) or columns[2].dtype.kind not in "iuf":
        raise UserError(f"schedule {path}: round and client must be integers, weight a number")
    for c in columns[:2]:
        if len(c) and int(c.max()) >= 2**63:
            raise UserError(f"schedule {path}, row {int(c.argmax())}: {c.max()} exceeds 63 bits")
    return ((columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2].astype(float)),)
