"""The watchdog: a thread of each rank that looks at the pulses of all ranks, warns, and ends a hanging job.

Invariants: it needs no help from MPI nor from a rank that stalls; it never touches a file system itself,
which may be what hangs; seconds in which this process did not run count for nobody; the first living rank
speaks and ends the job, others do so only if that has not happened after a while.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from fedmpi.errors import EXIT_STOPPED
from fedmpi.errors.wording import command
from fedmpi.mpi.comm import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.mpi.watch.beginning import over
from fedmpi.mpi.watch.board import Board, Courier
from fedmpi.mpi.watch.ending import LAST_SECONDS, leave, say, say_stacks
from fedmpi.mpi.watch.judge import Sight, Verdict, judge, told

_WARN_SHARE = 0.1  # of the limit
_START_FACTOR, _START_SECONDS = 6, 600.0  # start-up and data: as many times as long, at least so long
_TIMES_AS_LONG = 20  # as the longest silence of a phase so far, but for one
_OTHERS_SECONDS = 20.0  # after which another rank ends the job if the first one has not
_SAVING_SECONDS = 15.0  # for results, before the end

# What to save before a job is ended; each returns what it has saved, or nothing.
rescues: dict[Path, Callable[[], str]] = {}


@contextlib.contextmanager
def watching(comm: Comm, minutes: float, path: Path, *, is_sweep: bool = False) -> Iterator[None]:
    """Collective to enter. No rank may be silent for longer than `minutes` while this lasts; 0: no watch.

    `path` is the result, beside which heartbeats pass between nodes.
    """
    over()
    if not minutes or pulse.here.is_watched:  # a call inside a callback belongs to the outer one
        yield
        return
    go_on = "the same again goes on with it" if is_sweep else f"go on with {command('resume', path)}"
    dog = Watchdog(comm, 60 * minutes, path, go_on)
    before = pulse.here.slot
    try:
        pulse.here.is_watched = True
        pulse.here.move_to(dog.board.own)
        pulse.here.starts()
        dog.start()
        yield
    finally:
        pulse.here.slot[pulse.STATE] = pulse.LEFT
        dog.end()
        pulse.here.move_to(before)
        pulse.here.is_watched = False
        rescues.clear()


class Watchdog(threading.Thread):
    """Looks at all ranks, a few times in a tenth of the limit."""

    def __init__(self, comm: Comm, limit: float, path: Path, go_on: str) -> None:
        """Collective. `limit` in seconds; `go_on` says how to go on after a stall."""
        super().__init__(name="fedmpi watchdog", daemon=True)
        self._comm, self._limit, self._go_on = comm, limit, go_on
        self.board = Board(comm)
        self._period = min(1.0, limit / 50)
        self._ended = threading.Event()
        self._gaps: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])  # two longest, by phase
        self._now = 0.0  # seconds in which this process ran
        self._changed = [[0, 0.0, 0, 0.0] for _ in range(comm.size)]  # progress, when; beats, when
        self._exchanges = 0, 0.0
        self._has_warned = self._is_acting = False
        self._signal = _stacks_on_request()
        self._courier = None
        if len(set(self.board.nodes)) > 1:
            every = min(max(limit / 20, 0.1), 15.0)
            self._courier = Courier(self.board, path, every, self._is_first_here, self._say_once)
        if not self.board.is_shared:
            self._say_once(
                "no memory to share with the ranks of this node (neither /dev/shm nor the temporary folder "
                "can be written): ranks that stall are noticed, but not named"
            )

    def run(self) -> None:
        """Until the watch ends, or the job."""
        if self._courier:
            self._courier.start()
        last = time.monotonic()
        while not self._ended.wait(self._period):
            # Time in which this process was stopped, or starved, counts as one look.
            now = time.monotonic()
            self._now += min(now - last, 2 * self._period)
            last = now
            self._beat()
            self._obey(judge(self._look()))

    def end(self) -> None:
        """The watch is over."""
        self._ended.set()
        if self.is_alive():
            self.join()
        if self._courier:
            self._courier.end()
        if self._signal:
            faulthandler.unregister(self._signal)

    def _beat(self) -> None:
        """Show that this process runs, and how long it may be silent."""
        slot = self.board.own
        slot[pulse.BEATS] += 1
        slot[pulse.PID] = os.getpid()

        # How long the main thread was silent at work. One such silence may have been a hitch.
        progress, since, *_ = self._changed[self.board.rank]
        gap, longest = self._now - since, self._gaps[slot[pulse.PHASE]]
        if slot[pulse.PROGRESS] != progress and not slot[pulse.WAITS] and gap > min(longest):
            longest[longest.index(min(longest))] = gap
        limit = max(self._limit, _TIMES_AS_LONG * min(longest))
        if slot[pulse.STATE] == pulse.STARTING:
            limit = max(_START_FACTOR * self._limit, _START_SECONDS)
        slot[pulse.ALLOWED_MS] = int(1000 * limit)

    def _look(self) -> list[Sight]:
        """All ranks as they are seen from here."""
        board, now = self.board, self._now
        if board.exchanges != self._exchanges[0]:
            self._exchanges = board.exchanges, now
        is_blind = now - self._exchanges[1] > max(self._limit / 2, 1.0)  # the courier is stuck
        sights = []
        for rank, changed in enumerate(self._changed):
            values = board.slots[rank].tolist()
            if values[pulse.PROGRESS] != changed[0]:
                changed[:2] = values[pulse.PROGRESS], now
            if values[pulse.BEATS] != changed[2]:
                changed[2:] = values[pulse.BEATS], now
            is_far, is_seen = board.is_far(rank), values[pulse.STATE] != pulse.ABSENT
            if not is_seen or (is_far and is_blind):
                is_seen = False
                values[pulse.ALLOWED_MS] = int(1000 * self._limit)
            sights.append(
                Sight(
                    rank=rank, host=board.hosts[rank], values=values, silent=now - changed[1],
                    still=now - changed[3], is_far=is_far, is_seen=is_seen,
                )
            )  # fmt: skip
        return sights

    def _is_first_here(self) -> bool:
        """Whether this is the first rank of its node that runs."""
        mine = [s for s in self._look_quietly() if not s.is_far]
        return next((s.rank for s in mine if s.runs), self.board.rank) == self.board.rank

    def _look_quietly(self) -> list[Sight]:
        """As the watchdog saw it last; for the courier's thread."""
        return [
            Sight(
                rank=rank, host="", values=self.board.slots[rank].tolist(), still=self._now - changed[3],
                is_far=self.board.is_far(rank),
            )
            for rank, changed in enumerate(list(self._changed))
        ]  # fmt: skip

    def _obey(self, verdict: Verdict) -> None:
        """Warn at a tenth of the limit, end the job at the limit."""
        if verdict.share < _WARN_SHARE:
            self._has_warned = False
            return
        speaks = self._speaks(verdict)
        if verdict.share < 1:
            if speaks and not self._has_warned:
                limit = verdict.seconds / verdict.share
                say(f"warning: {told(verdict, self.board.size)}; the job ends if this lasts {limit:.3g} s "
                     "(run.stall_minutes)")  # fmt: skip
            self._has_warned = True
        elif not self._is_acting:
            self._is_acting = True
            self._end_job(verdict, speaks=speaks)

    def _speaks(self, verdict: Verdict) -> bool:
        """Whether this is the first rank that can: of those that wait, else of those that run."""
        able = sorted(s.rank for s in verdict.waiting if s.runs) or sorted(
            s.rank for s in verdict.missing if s.runs
        )
        return not able or able[0] == self.board.rank

    def _end_job(self, verdict: Verdict, *, speaks: bool) -> None:
        """Name the ranks, show stacks, save what is not saved, end with status 75."""
        is_missing = any(sight.rank == self.board.rank for sight in verdict.missing)
        size = self.board.size
        if speaks:
            say(f"stalled: {told(verdict, size)}")
        if speaks or is_missing:
            say_stacks(self.board.rank, size)

        # A process of this host that does not run writes its stack when it wakes up, without Python's help.
        for sight in verdict.missing if speaks and self._signal else ():
            if not sight.runs and not sight.is_far and sight.is_seen:
                say(f"stack of rank {sight.rank} of {size}, if it wakes up:")
                for number in (self._signal, signal.SIGCONT):
                    with contextlib.suppress(OSError):
                        os.kill(sight.values[pulse.PID], number)

        # Results first. The others have time to save theirs, and to write their stacks.
        saved = self._save()
        if not speaks:
            time.sleep(min(_OTHERS_SECONDS, 2 * self._limit))
        elif size > 1:
            time.sleep(min(2.0, self._limit / 4))
        if speaks:
            saved = saved or "what was written before is kept"
            say(f"{saved}; the job ends with status {EXIT_STOPPED}, {self._go_on}")
        leave(self._comm, EXIT_STOPPED, launcher_seconds=min(LAST_SECONDS, 2 * self._limit))

    def _save(self) -> str:
        """What is not written yet, unless the main thread is at work on it; bounded in time."""
        saved: list[str] = []

        def save() -> None:
            for rescue in list(rescues.values()):
                with contextlib.suppress(Exception):
                    saved.append(rescue())

        if not self.board.own[pulse.WAITS]:
            return ""
        saver = threading.Thread(target=save, daemon=True)
        saver.start()
        saver.join(timeout=_SAVING_SECONDS)
        return "; ".join(filter(None, saved))

    def _say_once(self, text: str) -> None:
        if self.board.rank == self.board.nodes[self.board.rank]:
            say(f"warning: {text}")


def _stacks_on_request() -> signal.Signals | None:
    """Let SIGQUIT write all stacks, from C, also while Python is held; None if it has another handler."""
    if signal.getsignal(signal.SIGQUIT) not in (signal.SIG_DFL, signal.SIG_IGN):
        return None
    try:
        faulthandler.register(signal.SIGQUIT, file=sys.__stderr__, all_threads=True, chain=False)
    except (OSError, ValueError, AttributeError):  # no stderr, as in some notebooks
        return None
    return signal.SIGQUIT
