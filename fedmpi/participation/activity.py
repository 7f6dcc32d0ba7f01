"""Activity logs of real devices, in seconds, as intervals of rounds.

Read are FedScale's device trace, client -> {"active": [starts], "inactive": [ends], "finish_time": end},
as JSON or as the pickle that FedScale has (plain_pickle.py), or a list of such records; FLASH's states of
phones (device_states.py); and CSV with columns client,start,end. Invariant: what cannot be read is a
UserError that names the client or the line; nothing is dropped silently.
"""

from __future__ import annotations

import csv
import io
import json
import math
import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.errors import UserError
from fedmpi.participation.device_states import DEFAULT, is_state_log, read_states
from fedmpi.participation.plain_pickle import read_plain_pickle

Row = tuple[str, float, float]


@dataclass(frozen=True)
class Activity:
    """Intervals in seconds, start < end, of clients numbered 0 to num_clients - 1."""

    num_clients: int
    clients: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    finish_time: float | None  # when the log ends, the latest of all clients, where it is given
    notes: tuple[str, ...] = ()  # what a user should know of how it was read

    def in_rounds(self, round_seconds: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(client, start, end) in rounds: a client is available if it is active when the round begins.

        So the share of time becomes the share of rounds; an interval in which no round begins is dropped.
        """
        starts = np.ceil(self.starts / round_seconds).astype(np.int64)
        ends = np.ceil(self.ends / round_seconds).astype(np.int64)
        kept = np.flatnonzero(ends > starts)
        order = kept[np.lexsort((self.clients[kept], starts[kept]))]
        return self.clients[order], starts[order], ends[order]


def read_activity(path: str | Path, ready: Collection[str] = DEFAULT) -> Activity:
    """The log in a .json, .csv or pickle file; `ready`: conditions of a log of states."""
    path = Path(path)
    what = f"activity log {path}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{what}: cannot be read ({error.strerror})") from None
    notes: list[str] = []
    if path.suffix in (".pkl", ".pickle") or not path.suffix:
        rows, names, finish_time = _of_log(read_plain_pickle(data, what), what)
    elif path.suffix in (".json", ".csv"):
        rows, names, finish_time, notes = _read_text(path.suffix, data, what, ready)
    else:
        raise UserError(f"{what}: format {path.suffix}; accepted: .json, .csv, .pkl, or none for a pickle")
    number = {name: n for n, name in enumerate(_ordered(names))}
    clients = np.array([number[name] for name, _, _ in rows], np.int64)
    starts, ends = (np.array([row[i] for row in rows], float) for i in (1, 2))
    return Activity(len(number), clients, starts, ends, finish_time, tuple(notes))


def _read_text(
    suffix: str, data: bytes, what: str, ready: Collection[str]
) -> tuple[list[Row], list[str], float | None, list[str]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{what}: not a text file (UTF-8); accepted: JSON or CSV") from None
    if suffix == ".csv":
        try:
            return *_read_csv(text, what), []
        except csv.Error as error:
            raise UserError(f"{what}: not valid CSV ({error})") from None
    try:
        log = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what}: not valid JSON ({error})") from None
    if is_state_log(log):
        return read_states(log, ready, what)
    return *_of_log(log, what), []


def _ordered(names: list[str]) -> list[str]:
    """Clients by number where all names are numbers, otherwise in the order of the file."""
    names = list(dict.fromkeys(names))
    return sorted(names, key=int) if all(n.isdecimal() and len(n) < 19 for n in names) else names


def _read_csv(text: str, what: str) -> tuple[list[Row], list[str], None]:
    reader = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in ("client", "start", "end") if name not in header]
    if missing:
        raise UserError(f"{what}, line 1: columns {header}; expected client,start,end, in seconds")
    columns = [header.index(name) for name in ("client", "start", "end")]
    rows, names = [], []
    for cells in reader:
        if not cells:
            continue
        place = f"{what}, line {reader.line_num}"
        if len(cells) != len(header):
            raise UserError(f"{place}: {len(cells)} values for {len(header)} columns")
        name, start, end = (cells[column].strip() for column in columns)
        names.append(name)
        rows += _checked(name, _number(start, "start", place), _number(end, "end", place), place)
    return rows, names, None


def _of_log(log: Any, what: str) -> tuple[list[Row], list[str], float | None]:
    """FedScale's records."""
    if isinstance(log, list):
        log = {str(n): record for n, record in enumerate(log)}
    if not isinstance(log, dict) or not log:
        raise UserError(f"{what}: no clients; expected a mapping of clients to records")
    rows, finish_times = [], []
    log = {str(name): record for name, record in log.items()}  # numbers, in a pickle
    for name, record in log.items():
        place = f'{what}, client "{name[:40]}"'
        intervals, finish_time = _intervals(record, place)
        finish_times += [] if finish_time is None else [finish_time]
        for number, (start, end) in enumerate(intervals):
            rows += _checked(name, start, end, f"{place}, interval {number}")
    return rows, list(log), max(finish_times, default=None)


def _intervals(record: Any, place: str) -> tuple[list[tuple[float, float]], float | None]:
    """(start, end) of each active time, and when the client's log ends."""
    if not isinstance(record, dict) or not all(
        isinstance(record.get(key), list) for key in ("active", "inactive")
    ):
        raise UserError(
            f'{place}: {reprlib.repr(record)}; expected {{"active": [starts], "inactive": [ends], '
            '"finish_time": seconds}'
        )
    finish = record.get("finish_time", record.get("duration"))
    finish = None if finish is None else _number(finish, "finish_time", place)
    starts = [_number(value, "active", place) for value in record["active"]]
    ends = [_number(value, "inactive", place) for value in record["inactive"]]
    if len(starts) == len(ends) + 1 and finish is not None:
        ends.append(finish)  # active until the log ends
    if len(starts) != len(ends):
        raise UserError(
            f"{place}: {len(starts)} active and {len(ends)} inactive times; expected as many, or one "
            "more active time and a finish_time"
        )
    return list(zip(starts, ends, strict=True)), finish


def _short(value: Any) -> str:
    """For a message, whatever it is: a pickle may hold itself, or as much as a bomb."""
    return repr(str(value)[:40]) if isinstance(value, str | int | float) else reprlib.repr(value)


def _number(value: Any, name: str, place: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < 2**53:
        raise UserError(f"{place}: {name} {_short(value)}; expected seconds >= 0")
    return number


def _checked(name: str, start: float, end: float, place: str) -> list[Row]:
    """The interval as a row; none if it is empty."""
    if end < start:
        raise UserError(f"{place}: ends before it starts ({start:g} to {end:g}); expected end >= start")
    return [(name, start, end)] if end > start else []
