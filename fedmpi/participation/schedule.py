"""Participation given directly: any matrix Q from a file.

Columns `round,client,weight` of a CSV file, or datasets of those names in an HDF5 file (at its root or in
/participation, so that the result file of a run is a schedule too). A round that is not in the file has
no participant. Invariant: every row is checked before the first round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.participation.selection import selection
from fedmpi.participation.tables import read_table


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

    def available(self, t: int) -> np.ndarray:
        """Those who take part; the file says nothing about others."""
        return self.weights(t)[0]

    def late(self, t: int) -> None:
        """No update comes later."""

    def undelivered(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Nobody: those who take part are in the file."""
        return self._clients[:0], self._clients[:0]

    def state(self) -> dict[str, np.ndarray]:
        """Nothing to keep."""
        return {}

    def restore(self, t: int, state: dict[str, np.ndarray]) -> None:
        """Nothing to restore."""

    def digest(self) -> str:
        """SHA-256 of all rows."""
        return digest_of(self._rounds, self._clients, self._weights)


def digest_of(*columns: np.ndarray) -> str:
    """SHA-256 of columns of numbers."""
    sha = hashlib.sha256()
    for column in columns:
        sha.update(np.ascontiguousarray(column))
    return sha.hexdigest()


def read_schedule(path: str | Path, num_clients: int) -> Schedule:
    """The schedule in a .csv or .h5 file; a bad row is a UserError that names its place."""
    kinds = {"round": int, "client": int, "weight": float}
    table = read_table(path, "schedule", kinds, group="participation")
    rounds, clients, weights = table.columns
    table.refuse(rounds < 0, "negative round; expected round >= 0")
    table.refuse(
        (clients < 0) | (clients >= num_clients), f"no such client; expected 0 to {num_clients - 1}"
    )
    table.refuse(~np.isfinite(weights) | (weights < 0), "bad weight; expected a finite number >= 0")
    order = np.lexsort((clients, rounds))
    again = (np.diff(rounds[order]) == 0) & (np.diff(clients[order]) == 0)
    repeated = np.zeros(len(rounds), bool)
    repeated[order[1:][again]] = True
    table.refuse(repeated, "client listed twice in a round; expected one row for each")
    return Schedule(rounds, clients, weights)


@dataclass(frozen=True, kw_only=True)
class ScheduleKeys:
    """Of schedule."""

    schedule: str | None = option(
        None,
        "schedule: file of round, client, weight (.csv or .h5)",
        may_change=True,  # its location; the contents are checked
    )


def _conflicts(config: Config) -> Iterator[Finding]:
    who = config.participation
    if who.schedule is None:
        yield "participation.schedule", 'missing; selection = "schedule" needs a .csv or .h5 file'
    if who.availability != "always":
        yield (
            "participation.availability",
            f'"{who.availability}" cannot be combined with selection = "schedule", '
            'which itself says who takes part; use "always"',
        )


@selection("schedule", ScheduleKeys, conflicts=_conflicts, gives_weights=True)
def scheduled(config: Config, num_clients: int) -> Schedule:
    """Participants and weights from a file."""
    return read_schedule(config.participation.schedule, num_clients)
