"""How a watch speaks, and how it ends a job, whatever the main thread does."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys

from fedmpi.mpi.comm import Comm
from fedmpi.mpi.watch.launcher_gone import end_launcher_later

LAST_SECONDS = 10  # for MPI to end the job, before this process is killed


def leave(comm: Comm, code: int, launcher_seconds: float) -> None:
    """End the whole job from any thread, whatever the main thread does.

    A launcher that has lost a host waits for it for ever: it is killed after so many seconds.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    if comm.size > 1:
        end_launcher_later(launcher_seconds)
    signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)  # kills this process if MPI cannot end the job
    if comm.size > 1:
        comm.abort(code)
    os._exit(code)


def say(text: str) -> None:
    """One line, past whatever else holds Python's own streams."""
    with contextlib.suppress(OSError):
        os.write(2, f"fedmpi: {text}\n".encode())


def say_stacks(rank: int, size: int) -> None:
    """What all threads of this rank are doing."""
    say(f"stack of rank {rank} of {size}:")
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
