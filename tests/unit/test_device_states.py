"""FLASH's logs of phones: what a phone was doing, and when it was ready."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fedmpi.errors import UserError
from fedmpi.participation.activity import read_activity
from fedmpi.participation.device_states import CONDITIONS

# As the authors' file has it: times in order, states after a tab, batteries, networks.
PHONE = """
2020-01-28 10:00:00\tbattery_charged_off
2020-01-28 10:00:00\t4G
2020-01-28 22:00:00\tscreen_off
2020-01-28 22:00:00\tscreen_lock
2020-01-28 22:10:00\tbattery_charged_on
2020-01-28 22:10:30\t83.0%
2020-01-28 22:20:00\twifi
2020-01-29 06:30:00\tscreen_on
2020-01-29 06:31:00\tscreen_unlock
2020-01-29 07:00:00\tUnknown
2020-01-29 07:05:00\tWIFI
2020-01-29 07:30:00\tbattery_charged_off
2020-01-29 21:00:00\tbattery_charged_on
2020-01-29 22:00:00\tscreen_off
"""
HOUR = 3600


def log_file(folder: Path, **messages: str) -> Path:
    """A file with one device for each text."""
    path = folder / "state_traces.json"
    path.write_text(json.dumps({n: {"guid": n, "model": "A", "messages": t} for n, t in messages.items()}))
    return path


def hours(path: Path, *ready: str) -> list[tuple[float, float]]:
    """When its first device is ready, in hours from midnight."""
    log = read_activity(path, ready)
    return [
        (round(a / HOUR, 3), round(b / HOUR, 3))
        for n, a, b in zip(log.clients, log.starts, log.ends, strict=True)
        if n == 0
    ]


def test_a_phone_is_ready_while_all_conditions_hold(tmp_path):
    """Hours from the first midnight; a state holds until it is ended, the last one to the last message."""
    path = log_file(tmp_path, a=PHONE)
    assert hours(path, "charging", "wifi") == [(22.333, 31), (31.083, 31.5), (45, 46)]
    assert hours(path, "charging", "wifi", "screen-off") == [(22.333, 30.5)]
    assert hours(path, "charging", "wifi", "locked") == [(22.333, 30.517)]
    assert hours(path, "charging") == [(22.167, 31.5), (45, 46)]
    log = read_activity(path)
    assert log.finish_time == 48 * HOUR  # whole days
    assert "time 0 is 2020-01-28 00:00:00; ready means charging and wifi" in log.notes


def twin(text: str, ready: tuple[str, ...]) -> np.ndarray:
    """Whether it is ready in each minute of two days: every minute replays all messages before."""
    last = max(line.split("\t")[0] for line in text.strip().split("\n"))
    there = np.zeros(2 * 24 * 60, bool)
    for minute in range(len(there)):
        now = f"2020-01-{28 + minute // 1440} {minute // 60 % 24:02}:{minute % 60:02}:00"
        holds = dict.fromkeys(CONDITIONS, False)
        for line in text.strip().split("\n"):
            time, state = line.lower().split("\t")
            if time > now:
                continue
            if state.startswith("battery_charged"):
                holds["charging"] = state.endswith("on")
            if state in ("wifi", "unknown", "4g"):
                holds["wifi"] = state == "wifi"
            if state in ("screen_on", "screen_off"):
                holds["screen-off"] = state == "screen_off"
            if state in ("screen_lock", "screen_unlock"):
                holds["locked"] = state == "screen_lock"
        there[minute] = all(holds[name] for name in ready) and now < last
    return there


@pytest.mark.parametrize("seed", range(3))
def test_against_a_replay_of_every_minute(tmp_path, seed):
    """Random logs: rounds of a minute are those in which a slow replay finds all conditions."""
    draws = np.random.default_rng(seed)
    states = "battery_charged_on battery_charged_off wifi 4g unknown screen_on screen_off screen_lock "
    states = (states + "screen_unlock 12%").split()
    minutes = np.sort(draws.choice(2 * 24 * 60 - 1, 60, replace=False)).tolist()
    text = "\n".join(
        f"2020-01-{28 + m // 1440} {m // 60 % 24:02}:{m % 60:02}:00\t{draws.choice(states)}"
        for m in minutes
    )
    path = log_file(tmp_path, a=f"2020-01-28 00:00:00\t4g\n{text}")
    for count in (1, 2, 3):
        for ready in combinations(CONDITIONS, count):
            found = np.zeros(2 * 24 * 60, bool)
            _, starts, ends = read_activity(path, ready).in_rounds(60)
            for a, b in zip(starts, ends, strict=True):
                found[a:b] = True
            assert np.array_equal(found, twin(text, ready)), ready


def test_a_phone_that_is_off_is_not_ready(tmp_path):
    """phone_off ends all conditions."""
    states = {"01:00": "wifi", "01:01": "battery_charged_on", "02:01": "phone_off", "03:00": "phone_on"}
    text = "\n".join(f"2020-01-28 {time}:00\t{state}" for time, state in states.items())
    assert hours(log_file(tmp_path, a=text), "charging", "wifi") == [(1.017, 2.017)]


@pytest.mark.parametrize(
    "line", ["2020-01-28 10:00:00 wifi", "10:00\twifi", "2020-01-28 10:00:00\tflying", "\x00"]
)
def test_a_device_that_cannot_be_read_is_never_ready_and_told(tmp_path, line):
    """It keeps its number, as with the authors; the first such line is named. Alone, it is refused."""
    log = read_activity(log_file(tmp_path, a=f"{PHONE}\n{line}", b=PHONE, c=PHONE))
    assert (log.num_clients, sorted(set(log.clients.tolist()))) == (3, [1, 2])
    assert any("1 devices with a log that cannot be read are never ready" in note for note in log.notes)
    with pytest.raises(UserError, match='device "a"'):
        read_activity(log_file(tmp_path, a=line))


def test_the_command(fedmpi_cli, tmp_path):
    """`fedmpi data trace` writes a trace, says what ready means, and refuses conditions that are none."""
    path = log_file(tmp_path, a=PHONE, b=PHONE)
    arguments = ["data", "trace", path, "--out", "t.csv", "--round-seconds", "3600"]
    done = fedmpi_cli(*arguments, "--ready", "charging,wifi,locked")
    assert done.returncode == 0, done.stderr
    assert "ready means charging and wifi and locked" in done.stdout
    assert "participation.trace_period = 48" in done.stdout
    assert (tmp_path / "t.csv").read_text() == "client,start,end\n0,23,31\n1,23,31\n"
    done = fedmpi_cli(*arguments, "--ready", "charging,wfi", "--force")
    assert done.returncode == 2
    assert "did you mean wifi?" in done.stderr
    (tmp_path / "times.json").write_text('{"1": {"active": [0], "inactive": [9000]}}')
    done = fedmpi_cli("data", "trace", "times.json", *arguments[3:], "--ready", "wifi", "--force")
    assert done.returncode == 2
    assert "has times, not states" in done.stderr
