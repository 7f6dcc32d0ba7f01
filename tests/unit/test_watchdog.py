"""The watchdog of one process: no alarm without a reason, none if it is off, nothing left behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import fedmpi
from fedmpi.mpi.watch import board, pulse, watchdog
from tests.support.configs import SLOW
from tests.support.simulations import single_rank


@pytest.fixture
def ends(monkeypatch) -> list[int]:
    """Statuses with which a watchdog would have ended this process."""
    found: list[int] = []
    monkeypatch.setattr(watchdog, "leave", lambda comm, code, **how: found.append(code))
    return found


def watchers() -> list[str]:
    """Threads of a watch."""
    return [thread.name for thread in threading.enumerate() if thread.name == "fedmpi watchdog"]


def wait_for(found: list[int]) -> None:
    """Until the watchdog has ended the process, or five seconds."""
    limit = time.monotonic() + 5
    while not found and time.monotonic() < limit:
        time.sleep(0.01)


def test_silence_at_work_ends_the_process(ends, tmp_path, capfd):
    """A warning at a tenth of the limit, then the sentence and the stack; status 75."""
    with watchdog.watching(single_rank(), 0.3 / 60, tmp_path / "r.h5"):
        pulse.here.in_round(7)
        wait_for(ends)
    said = capfd.readouterr().err
    assert ends == [75]
    assert said.count("fedmpi: warning: rank 0 of 1") == 1
    assert "fedmpi: stalled: rank 0 of 1" in said
    assert "in round 7" in said
    assert "in wait_for" in said  # where the main thread is


def test_rounds_without_a_watch_leave_the_next_one_alone(ends, tmp_path):
    """A run with run.stall_minutes = 0 before it: the next one is watched all the same."""
    pulse.here.starts()
    pulse.here.in_round(3)
    with watchdog.watching(single_rank(), 0.2 / 60, tmp_path / "r.h5"):
        pulse.here.in_round(0)
        wait_for(ends)
    assert ends == [75]


def test_progress_is_no_silence(ends, tmp_path):
    """Ten times the limit, in steps that are shorter: nothing is said."""
    with watchdog.watching(single_rank(), 0.2 / 60, tmp_path / "r.h5"):
        pulse.here.in_round(0)
        for _ in range(40):
            time.sleep(0.05)
            pulse.here.tick()
    assert ends == []


def test_the_limit_adapts_to_what_phases_take(ends, tmp_path):
    """After two silences of a phase a third may be twenty times as long; another phase keeps its limit."""
    with watchdog.watching(single_rank(), 0.25 / 60, tmp_path / "r.h5"):
        pulse.here.in_round(0)
        for _ in range(3):
            pulse.here.at(pulse.CODES["evaluation"])
            time.sleep(0.1)
        time.sleep(0.6)
        assert ends == []
        pulse.here.at(pulse.CODES["local SGD"])
        wait_for(ends)
    assert ends == [75]


def test_preparing_a_run_has_a_limit_of_its_own(ends, tmp_path):
    """Data may take ten minutes to load, however short run.stall_minutes is."""
    with watchdog.watching(single_rank(), 0.1 / 60, tmp_path / "r.h5"):
        time.sleep(0.5)
        assert ends == []
        assert pulse.here.slot[pulse.ALLOWED_MS] == 600_000


def test_time_in_which_the_process_was_stopped_does_not_count(ends, tmp_path, monkeypatch):
    """Ctrl-Z and an hour later fg, or a laptop that slept: the watchdog wakes up with the rest."""
    clock = iter([0.0, 0.01, 3600.0, *(3600.0 + 0.001 * k for k in range(10**6))])
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: next(clock))
    dog = watchdog.Watchdog(single_rank(), 1.0, tmp_path / "r.h5", "")
    dog.board.own[pulse.STATE] = pulse.GOES_ON
    dog.start()
    dog._ended.wait(0.3)
    dog.end()
    assert dog._now < 1.0
    assert ends == []


def test_zero_is_off(tmp_path):
    """run.stall_minutes = 0 starts no thread."""
    with watchdog.watching(single_rank(), 0, tmp_path / "r.h5"):
        assert watchers() == []


def test_a_call_inside_a_callback_belongs_to_the_outer_watch(ends, tmp_path):
    """One watch in a process: the inner one must not make the outer one blind."""
    with watchdog.watching(single_rank(), 1.0, tmp_path / "r.h5"):
        with watchdog.watching(single_rank(), 0.001, tmp_path / "s.h5"):
            assert len(watchers()) == 1
        assert len(watchers()) == 1
        assert pulse.here.is_watched
    assert not pulse.here.is_watched
    assert watchers() == []


def test_slow_rounds_are_no_stalls(ends, fedmpi_cli, tmp_path):
    """A run whose rounds take longer than the limit, but not their steps, ends as ever."""
    (tmp_path / "c.toml").write_text(SLOW)
    words = ("run.num_rounds=2", "run.stall_minutes=0.015", "algorithm.local_steps=12")
    settings = [word for setting in words for word in ("--set", setting)]
    done = fedmpi_cli("run", "c.toml", "--out", "r.h5", *settings, FEDMPI_TEST_SLEEP="0.04")
    assert done.returncode == 0, done.stderr
    assert fedmpi.load_run(tmp_path / "r.h5").train.wall_time_s.iloc[0] > 0.9
    assert ends == []


@pytest.mark.parametrize("value", ["-1", "1e9", "nan", '"soon"', "1e-4"])
def test_absurd_limits_are_refused(fedmpi_cli, small_config, value):
    """Negative, longer than a month, no number, so short that no job lives: status 2, with the range."""
    done = fedmpi_cli("check", small_config, "--set", f"run.stall_minutes={value}")
    assert done.returncode == 2
    assert "run.stall_minutes" in done.stderr


class _Board:
    """Two nodes with a rank each, as seen from one of them."""

    def __init__(self, rank: int, token: bytes = b"0123456789abcdef") -> None:
        self.rank, self.size, self.nodes, self.hosts = rank, 2, [0, 1], ["n0", "n1"]
        self.token = token
        self.slots = [memoryview(bytearray(8 * pulse.SLOT)).cast("q") for _ in range(3)]


def _couriers(folder: Path, *boards: _Board, told: list[str]) -> list[board.Courier]:
    return [board.Courier(b, folder / "r.h5", 0.01, lambda: True, told.append) for b in boards]


def test_pulses_pass_between_nodes_by_files(tmp_path):
    """Each sees the other's numbers; a file of another job is not taken for one of this."""
    told, one, two = [], _Board(0), _Board(1)
    couriers = _couriers(tmp_path, one, two, told=told)
    one.slots[0][pulse.PROGRESS], two.slots[1][pulse.PROGRESS] = 11, 22
    for courier in couriers:
        courier.start()
    limit = time.monotonic() + 5
    while (one.slots[1][0], two.slots[0][0]) != (22, 11) and time.monotonic() < limit:
        time.sleep(0.01)
    for courier in couriers:
        courier.end()
    assert (one.slots[1][pulse.PROGRESS], two.slots[0][pulse.PROGRESS]) == (22, 11)
    assert told == []
    assert list(tmp_path.iterdir()) == []

    old = _Board(1, token=b"another job.....")
    (stranger,) = _couriers(tmp_path, old, told=told)
    stranger._write()
    couriers[0]._board.slots[1][pulse.PROGRESS] = 0
    couriers[0]._read()
    assert one.slots[1][pulse.PROGRESS] == 0


def test_a_folder_for_heartbeats_that_cannot_be_written_is_a_warning(tmp_path):
    """Once, and not the end of the run."""
    told: list[str] = []
    (courier,) = _couriers(tmp_path / "missing", _Board(0), told=told)
    for _ in range(4):
        courier._write()
        courier._read()
    assert len(told) == 1
    assert "heartbeats cannot be written to" in told[0]
