"""Availability from a trace: intervals of rounds for each client, as logs of real devices give them.

Columns `client,start,end` of a CSV file, or datasets of those names in an HDF5 file (at its root or in
/trace): the client is available in rounds start <= t < end. `trace_period` repeats the trace for ever;
an interval may then run past the end of the period into its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import ParticipationConfig
from fedmpi.config.options import option
from fedmpi.participation.availability import Availability, availability
from fedmpi.participation.schedule import digest_of
from fedmpi.participation.tables import read_table

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


@dataclass(frozen=True, kw_only=True)
class TraceKeys:
    """Of trace."""

    trace: str | None = option(
        None,
        "trace: file of client, start, end (.csv or .h5)",
        needed="a .csv or .h5 file",
        may_change=True,  # its location; the contents are checked
    )
    trace_period: int | None = option(
        None, "trace: rounds after which it repeats; default: never", at_least=1
    )


def _period(who: ParticipationConfig) -> int | None:
    return getattr(who, "trace_period", None)


@availability(
    "trace", TraceKeys, is_cheap=True, cycle=_period, start={"trace": "trace.csv", "trace_period": 20}
)
class Trace(Availability):
    """Available as given by the intervals in a file.

    Rounds asked for in ascending order cost O(changes), plus a scan of N flags where the set changes.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        columns = _read_trace(config.trace, num_clients, config.trace_period)
        self._digest = digest_of(*columns)
        self._period = config.trace_period
        clients, starts, ends = columns
        if self._period:
            clients, starts, ends = _wrapped(clients, starts, ends, self._period)
        # One event where an interval begins (+1) and one where it ends (-1), in order of time.
        times = np.concatenate([starts, ends])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._clients = np.concatenate([clients, clients])[order]
        self._changes = np.repeat([1, -1], len(clients))[order]
        self._open = np.zeros(num_clients, np.int64)  # intervals a client is in; they may overlap
        self._done = 0  # events applied
        self._available = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """Clients in an interval at round t."""
        if self._period:
            t %= self._period
        upto = int(np.searchsorted(self._times, t, side="right"))
        if upto < self._done:  # an earlier round, or the next period
            self._open[:] = 0
            self._done, self._available = 0, np.arange(0)
        if upto > self._done:
            events = slice(self._done, upto)
            np.add.at(self._open, self._clients[events], self._changes[events])
            self._done = upto
            now = np.flatnonzero(self._open)
            if not np.array_equal(now, self._available):
                self._available = now
        return self._available

    def digest(self) -> str:
        """SHA-256 of all rows."""
        return self._digest


def _read_trace(path: str, num_clients: int, period: int | None) -> list[np.ndarray]:
    table = read_table(path, "trace", {"client": int, "start": int, "end": int}, group="trace")
    clients, starts, ends = table.columns
    table.refuse(
        (clients < 0) | (clients >= num_clients), f"no such client; expected 0 to {num_clients - 1}"
    )
    table.refuse(starts < 0, "negative start; expected start >= 0")
    table.refuse(ends <= starts, "empty interval; expected end > start")
    if period:
        table.refuse(starts >= period, f"start beyond trace_period = {period}")
        table.refuse(ends - starts > period, f"longer than trace_period = {period}")
    return table.columns


def _wrapped(
    clients: np.ndarray, starts: np.ndarray, ends: np.ndarray, period: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split intervals that run past the end of the period in two."""
    over = ends > period
    return (
        np.concatenate([clients, clients[over]]),
        np.concatenate([starts, np.zeros(over.sum(), np.int64)]),
        np.concatenate([np.minimum(ends, period), ends[over] - period]),
    )
