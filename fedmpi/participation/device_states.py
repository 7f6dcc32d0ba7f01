"""Logs of what phones were doing, as FLASH (Yang et al., WWW 2021) has them in state_traces.json.

A device has "messages": lines of a time and a state after a tab, such as battery_charged_on, wifi, 4g,
screen_off, screen_lock or 80%. A state holds until a message ends it; what is not yet known does not hold.
The authors' own rule of who is ready is `charging`, `wifi` and `locked`; as with them, a device whose log
has a line that means nothing is never ready. Unlike theirs, a ready time that
nothing ends lasts to the device's last message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from fedmpi.errors import UserError, did_you_mean

CONDITIONS = ("charging", "wifi", "screen-off", "locked")
DEFAULT = ("charging", "wifi")

# What a message says: (condition, whether it holds now).
_MEANINGS = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
    "screen_off": ("screen-off", True),
    "screen_on": ("screen-off", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
_SAY_NOTHING = ("battery_low", "battery_okay", "phone_on")
_FORMAT = "%Y-%m-%d %H:%M:%S"
_DAY = 24 * 60 * 60


def is_state_log(log: Any) -> bool:
    """Whether JSON has this form: at least one device with messages."""
    return isinstance(log, dict) and any(isinstance(r, dict) and "messages" in r for r in log.values())


def checked_conditions(text: str) -> tuple[str, ...]:
    """The conditions of `--ready charging,wifi`."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in CONDITIONS:
            raise UserError(f"--ready {text}: {name!r} is no condition; {did_you_mean(name, CONDITIONS)}")
    return names


def read_states(
    log: dict[str, Any], ready: Collection[str], what: str
) -> tuple[list[tuple[str, float, float]], list[str], float, list[str]]:
    """(device, start, end) in seconds while all of `ready` hold; devices; when the log ends; what to tell.

    Time 0 is the midnight before the first message of all, the end the midnight after the last: whole days,
    so that a trace that is repeated keeps its rhythm.
    """
    messages, problems = {}, []
    for name, record in log.items():
        try:
            messages[name] = list(_messages(record))
        except ValueError as error:
            messages[name] = []
            problems.append(f'device "{name[:40]}": {error}')
    times = [time for found in messages.values() for time, _ in found]
    if not times:
        told = problems[0] if problems else "no messages"
        raise UserError(f'{what}: {told}; expected lines such as "2020-01-28 10:11:12", a tab, and "wifi"')
    begin = min(times).replace(hour=0, minute=0, second=0)
    days = (max(times) - begin) // timedelta(days=1) + 1
    rows = [
        (name, (start - begin).total_seconds(), (end - begin).total_seconds())
        for name, found in messages.items()
        for start, end in _ready_times(found, ready)
    ]
    notes = [f"time 0 is {begin:{_FORMAT}}; ready means {' and '.join(ready)}"]
    if problems:
        told = "devices with a log that cannot be read are never ready, as with FLASH"
        notes.append(f"{len(problems):,} {told}: {problems[0]}")
    return rows, list(log), float(days * _DAY), notes


def _messages(record: Any) -> Iterator[tuple[datetime, str]]:
    """Time and state of each line, in order of time; ValueError for what is neither."""
    text = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError('no "messages"')
    found = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        time, tab, state = line.strip().partition("\t")
        state = state.strip().lower()
        if not tab or not _is_known(state):
            raise ValueError(f"{line.strip()[:60]!r} is no time, tab and known state")
        found.append((datetime.strptime(time.strip(), _FORMAT), state))
    yield from sorted(found, key=lambda message: message[0])  # stable


def _is_known(state: str) -> bool:
    is_battery = state.endswith("%") and state[:-1].replace(".", "", 1).isdecimal()
    return is_battery or state in _MEANINGS or state in (*_SAY_NOTHING, "phone_off")


def _ready_times(
    messages: Iterable[tuple[datetime, str]], ready: Collection[str]
) -> Iterator[tuple[datetime, datetime]]:
    """From when to when all conditions hold, at most to the last message."""
    holds: set[str] = set()
    since = time = None
    for time, state in messages:
        if state == "phone_off":
            holds.clear()
        elif state in _MEANINGS:
            condition, is_on = _MEANINGS[state]
            (holds.add if is_on else holds.discard)(condition)
        is_ready = holds.issuperset(ready)
        if is_ready and since is None:
            since = time
        elif since is not None and not is_ready:
            if since < time:
                yield since, time
            since = None
    if since is not None and since < time:
        yield since, time
