"""The watch before the watch: a config, lock or result file that does not answer must hang no job either.

The limit of a run stands in its config, and ranks can look at each other only once they have agreed on it.
Until then each looks at itself. Invariant: this needs nothing but its own process, and is over as soon as
`watching` begins.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from fedmpi.errors import EXIT_STOPPED
from fedmpi.mpi.comm import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.mpi.watch.ending import leave, say, say_stacks

_LIMIT = float(os.environ.get("FEDMPI_START_TIMEOUT", "600"))  # seconds
_OTHERS_SECONDS = 20.0  # later, who only waits speaks
_PERIOD = 1.0
_LAST_SECONDS = 10.0  # for the launcher to end

_active: list[_Beginning] = []


@contextlib.contextmanager
def beginning(comm: Comm) -> Iterator[None]:
    """No rank may be silent for long until `watching` begins, or this ends."""
    watch = _Beginning(comm)
    _active.append(watch)
    watch.start()
    try:
        yield
    finally:
        over()


def over() -> None:
    """The limit of the run is known."""
    while _active:
        _active.pop().ended.set()


class _Beginning(threading.Thread):
    """Looks at the pulse of this process."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(name="fedmpi beginning", daemon=True)
        self._comm = comm
        self.ended = threading.Event()

    def run(self) -> None:
        """Until it is over, or the job."""
        progress, silent, last = -1, 0.0, time.monotonic()
        while not self.ended.wait(min(_PERIOD, _LIMIT / 10)):
            # Time in which this process did not run counts as one look.
            now, slot = time.monotonic(), pulse.here.slot
            silent += min(now - last, 2 * _PERIOD)
            last = now
            if slot[pulse.PROGRESS] != progress:
                progress, silent = slot[pulse.PROGRESS], 0.0
            if silent > _LIMIT + (_OTHERS_SECONDS if slot[pulse.WAITS] else 0.0):
                self._end_job(silent, waits=bool(slot[pulse.WAITS]))

    def _end_job(self, silent: float, *, waits: bool) -> None:
        """Where this rank is, and the end of all."""
        does = "it waits for the others" if waits else "a file or a file system does not answer"
        rank = f"rank {self._comm.rank} of {self._comm.size} (process {os.getpid()} on {self._comm.host})"
        say(
            f"stalled: {rank} has made no progress for {silent:.0f} s, before the config was known and the "
            f"result file open; {does}"
        )
        say_stacks(self._comm.rank, self._comm.size)
        say(f"nothing was changed; the job ends with status {EXIT_STOPPED}")
        leave(self._comm, EXIT_STOPPED, launcher_seconds=_LAST_SECONDS)
