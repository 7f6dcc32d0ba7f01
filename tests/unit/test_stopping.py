"""Reasons to stop early: signals, and limits on a clock that cannot go backwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from fedmpi.simulation.stopping import StopRequest, reason

REASONS = {
    signal.SIGUSR1: "signal USR1",
    signal.SIGUSR2: "signal USR2",
    signal.SIGTERM: "signal TERM",
    signal.SIGINT: "Ctrl-C",
}
TIME_IS_UP = "the time limit is near"


class Clock:
    """Both clocks of the time module, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic, self.wall = 1000.0, 1.7e9
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic)
        monkeypatch.setattr(time, "time", lambda: self.wall)

    def pass_by(self, seconds: float) -> None:
        """Let time go by."""
        self.monotonic += seconds
        self.wall += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Clocks that stand still, outside of SLURM."""
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    return Clock(monkeypatch)


@pytest.fixture
def listening() -> Iterator[StopRequest]:
    """A request that listens; the handlers are put back afterwards."""
    before = {number: signal.getsignal(number) for number in REASONS}
    try:
        yield StopRequest().listen()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def seconds_until_stop(stop: StopRequest, clock: Clock, round_seconds: float, most: int = 2000) -> float:
    """Run rounds of equal length until the code is not 0; the time at the end of that round."""
    for number in range(1, most + 1):
        clock.pass_by(round_seconds)
        code = stop.code  # asked within the round, as the simulation does
        stop.round_done()
        if code:
            assert reason(code) == TIME_IS_UP
            return number * round_seconds
    raise AssertionError(f"no stop in {most} rounds")


@pytest.mark.parametrize("number", REASONS)
def test_a_signal_is_noted(listening, number):
    """A signal does not end the process; it is noted with its reason."""
    assert listening.code == 0
    os.kill(os.getpid(), number)
    assert reason(listening.code) == REASONS[number]


@pytest.mark.parametrize("second", REASONS)
@pytest.mark.parametrize("first", REASONS)
def test_a_second_signal_changes_nothing(listening, first, second):
    """The first reason stays, whichever signal comes next."""
    os.kill(os.getpid(), first)
    os.kill(os.getpid(), second)
    assert reason(listening.code) == REASONS[first]


def test_a_signal_wins_over_a_later_limit(listening, clock):
    """A limit that is reached after a signal does not change the reason."""
    listening.limit(1.0)
    os.kill(os.getpid(), signal.SIGUSR1)
    clock.pass_by(3600)
    assert reason(listening.code) == "signal USR1"


def test_a_limit_wins_over_a_later_signal(listening, clock):
    """A signal after the limit was noted does not change the reason."""
    listening.limit(1.0)
    clock.pass_by(61)
    assert reason(listening.code) == TIME_IS_UP
    os.kill(os.getpid(), signal.SIGTERM)
    assert reason(listening.code) == TIME_IS_UP


def test_without_a_limit_nothing_stops(clock):
    """Neither max_minutes nor SLURM: a run of ten years is fine."""
    stop = StopRequest()
    stop.limit(None)
    for _ in range(10):
        clock.pass_by(365 * 86400)
        stop.round_done()
        assert stop.code == 0


@pytest.mark.parametrize("minutes", [1.0, 10.0, 0.5])
@pytest.mark.parametrize("round_seconds", [0.5, 1.0, 7.0])
def test_a_limit_leaves_time_for_two_rounds(clock, minutes, round_seconds):
    """The stop comes before max_minutes is up, and no more than three rounds before."""
    stop = StopRequest()
    stop.limit(minutes)
    seconds = seconds_until_stop(stop, clock, round_seconds)
    assert 60 * minutes - 3 * round_seconds <= seconds <= 60 * minutes


def test_a_limit_counts_from_where_it_is_set(clock):
    """Time before `limit`, such as loading data, is not taken for a round's time."""
    stop = StopRequest()
    clock.pass_by(500)
    stop.limit(1.0)
    stop.round_done()
    clock.pass_by(1)
    stop.round_done()
    assert stop.code == 0


def test_the_longest_round_counts(clock):
    """One slow round, as with an evaluation, is remembered after many quick ones."""
    stop = StopRequest()
    stop.limit(10.0)
    clock.pass_by(60)
    stop.round_done()
    for _ in range(400):
        clock.pass_by(1)
        stop.round_done()
    assert stop.code == 0  # 460 of 600 seconds, two rounds of 60 still fit
    clock.pass_by(21)
    assert reason(stop.code) == TIME_IS_UP


def test_the_end_of_a_slurm_job_is_a_limit(clock, monkeypatch):
    """The stop comes 30 seconds and two rounds before SLURM_JOB_END_TIME."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(clock.wall) + 600))
    stop = StopRequest()
    stop.limit(None)
    assert 570 - 3 * 5.0 <= seconds_until_stop(stop, clock, 5.0) <= 570


@pytest.mark.parametrize(("minutes", "slurm_seconds", "limit"), [(5.0, 600, 300), (50.0, 600, 570)])
def test_the_nearer_of_both_limits_counts(clock, monkeypatch, minutes, slurm_seconds, limit):
    """Of max_minutes and SLURM's end the one that comes first decides."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(clock.wall) + slurm_seconds))
    stop = StopRequest()
    stop.limit(minutes)
    assert limit - 3 <= seconds_until_stop(stop, clock, 1.0) <= limit


def test_a_slurm_job_past_its_end_stops_at_once(clock, monkeypatch):
    """An end in the past stops the run in its first round."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(clock.wall) - 5))
    stop = StopRequest()
    stop.limit(None)
    assert reason(stop.code) == TIME_IS_UP


@pytest.mark.parametrize("text", ["", "unknown", "12.5", "-5", "1e9", "0x10", "²"])
def test_a_slurm_time_that_is_no_number_is_no_limit(clock, monkeypatch, text):
    """A SLURM_JOB_END_TIME that cannot be read neither stops the run nor fails."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", text)
    stop = StopRequest()
    stop.limit(None)
    clock.pass_by(1e6)
    assert stop.code == 0


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
@pytest.mark.parametrize("slurm", [False, True])
def test_a_jump_of_the_wall_clock_changes_nothing(clock, monkeypatch, jump, slurm):
    """The wall clock set back or ahead by a day in mid-run moves no limit."""
    if slurm:
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(clock.wall) + 330))
    stop = StopRequest()
    stop.limit(None if slurm else 5.0)
    for _ in range(100):
        clock.pass_by(1)
        stop.round_done()
        assert stop.code == 0
    clock.wall += jump
    assert stop.code == 0
    assert 300 - 3 <= 100 + seconds_until_stop(stop, clock, 1.0) <= 300
