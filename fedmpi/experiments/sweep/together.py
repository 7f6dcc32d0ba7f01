"""Several runs of a sweep, or their warm-ups, from start to end in lockstep.

Invariant: a run that fails, diverges or stops ends by itself; the others go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from fedmpi.experiments.lifecycle import Beginning, begin
from fedmpi.mpi import Comm
from fedmpi.simulation.lockstep import in_lockstep
from fedmpi.simulation.outcome import Listener, Outcome


class ApartError(Exception):
    """These runs cannot be prepared together; raised on all ranks before any of them went on."""


class Member(Protocol):
    """One of the runs; all its functions are called on all ranks of the group."""

    listener: Listener

    def begin(self, held: contextlib.ExitStack) -> Beginning | None:
        """Collective. How it begins, its file locked in `held`; None if nothing is left to do."""

    def ended(self, result: Outcome | Exception | None) -> None:
        """How it ended, or the error that ended it; None if there was nothing to do."""


def is_shared(error: Exception, group: Comm) -> bool:
    """Whether all ranks of the group met the same error, so that they can go on together."""
    return group.size == 1 or bool(getattr(error, "agreed", False))


def run_together(members: Sequence[Member], group: Comm) -> None:
    """Collective in the group. All rounds that are left of these runs."""
    with contextlib.ExitStack() as everything:
        # Who has something to do, and how it begins.
        held = [everything.enter_context(contextlib.ExitStack()) for _ in members]
        beginnings: dict[int, Beginning] = {}
        for place, member in enumerate(members):
            try:
                if beginning := member.begin(held[place]):
                    beginnings[place] = beginning
                else:
                    _end(member, None, held[place])
            except Exception as error:
                _end(member, error, held[place])
                if not is_shared(error, group):
                    raise

        # Data, models and files.
        places = list(beginnings)
        if not places:
            return
        try:
            prepared = begin(group, list(beginnings.values()))
        except Exception as error:
            if len(places) > 1 and is_shared(error, group):
                raise ApartError from error
            for place in places:
                _end(members[place], error, held[place])
            if not is_shared(error, group):
                raise
            return

        # All rounds; each run ends by itself.
        first = prepared[0].simulation
        rounds = [
            one.simulation.rounds(one.file, members[place].listener)
            for place, one in zip(places, prepared, strict=True)
        ]
        in_lockstep(
            group, first.training, first.clock, rounds,
            lambda number, result: _end(members[places[number]], result, held[places[number]]),
        )  # fmt: skip


def _end(member: Member, result: Outcome | Exception | None, held: contextlib.ExitStack) -> None:
    """The file is free before others learn that the run is over."""
    held.close()
    member.ended(result)
