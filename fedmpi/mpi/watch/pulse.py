"""What this rank is doing: a few integers, which its main thread writes and anybody may read.

They lie in memory that all ranks of a node share while a watch goes on (board.py), so that a rank that is
stopped, swapped out or stuck in a call tells the others where. Invariants: a process has one pulse; writing
it is a store of some integers, without a lock, a message or a call into the system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What a rank may be doing; "working" where nothing better is known.
PHASES = (
    "working", "starting", "local SGD", "lending", "reduction", "idle", "evaluation", "theory", "output",
    "writing a file", "in a callback",
)  # fmt: skip
CODES = {name: code for code, name in enumerate(PHASES)}

# The integers of a rank.
PROGRESS, PHASE, ROUND, WAITS, GROUP, IN_GROUP, IN_WORLD, BEATS, ALLOWED_MS, STATE, PID = range(11)
SLOT = 16  # two lines of a cache, so that ranks do not disturb each other
FOR_NOBODY, FOR_GROUP, FOR_WORLD = range(3)  # WAITS
ABSENT, STARTING, GOES_ON, LEFT = range(4)  # STATE

_BLOCKING = (
    "Allreduce", "Bcast", "Barrier", "Recv", "Send", "allgather", "allreduce", "bcast", "gather",
)  # fmt: skip
_IN_ORDER = frozenset(_BLOCKING) - {"Recv", "Send"}  # all ranks make these calls in the same order


class Pulse:
    """The pulse of this process; `here` is the only one."""

    def __init__(self) -> None:
        self.slot = memoryview(bytearray(8 * SLOT)).cast("q")
        self.is_watched = False  # whether a watch goes on in this process
        self._count = 0

    def move_to(self, slot: memoryview) -> None:
        """Go on in other memory."""
        slot[:PID] = self.slot[:PID]
        self.slot = slot

    def tick(self) -> None:
        """There is progress."""
        self._count = self.slot[PROGRESS] = self._count + 1

    def at(self, phase: int) -> None:
        """There is progress: a phase has begun, or ended with the code 0."""
        slot = self.slot
        slot[PHASE] = phase
        self._count = slot[PROGRESS] = self._count + 1

    def starts(self) -> None:
        """A run is being prepared."""
        self.slot[STATE], self.slot[PHASE] = STARTING, CODES["starting"]
        self.tick()

    def in_round(self, t: int) -> None:
        """Round t has begun."""
        self.slot[ROUND] = t
        self.slot[STATE] = GOES_ON
        self.tick()

    def in_group(self, group: int) -> None:
        """This rank works in a group of ranks from now on; 0 for all ranks."""
        self.slot[GROUP], self.slot[IN_GROUP] = group, 0

    def waiting(self, call: Callable[..., Any], scope: int, *, in_order: bool = True) -> Callable[..., Any]:
        """The same call, which others see as waiting for the ranks of a scope."""
        place = (IN_WORLD if scope == FOR_WORLD else IN_GROUP) if in_order else SLOT - 1

        def seen(*arguments: Any, **options: Any) -> Any:
            slot = self.slot
            slot[place] += 1
            slot[WAITS] = scope
            try:
                return call(*arguments, **options)
            finally:
                self.slot[WAITS] = FOR_NOBODY
                self.tick()

        return seen


here = Pulse()


class Watched:
    """A communicator of mpi4py whose blocking calls are seen as waiting."""

    def __init__(self, comm: Any, scope: int) -> None:
        self._comm = comm
        for name in _BLOCKING if comm.size > 1 else ():
            call = here.waiting(getattr(comm, name), scope, in_order=name in _IN_ORDER)
            setattr(self, name, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)
