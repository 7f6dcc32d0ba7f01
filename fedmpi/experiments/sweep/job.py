"""A sweep from start to end on all ranks of a job; nothing here prints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedmpi.experiments.sweep.packing import AUTO
from fedmpi.experiments.sweep.points import Point
from fedmpi.experiments.sweep.store import FAILED, Outcome, Store
from fedmpi.experiments.sweep.warmup import shared_warmups
from fedmpi.experiments.sweep.work import Job, work
from fedmpi.experiments.tensorboard import require_tensorboard
from fedmpi.mpi import Comm
from fedmpi.simulation.stopping import StopRequest


class Screen(Protocol):
    """Shows a sweep while it runs; on rank 0."""

    def redraw(self) -> None:
        """Called repeatedly."""

    def close(self) -> None:
        """All runs are over, or it is time to stop."""


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """The state of a sweep's runs when a job leaves it."""

    outcomes: dict[str, Outcome | None]  # by name of the run; None: never begun
    states: dict[str, str]  # "done", "diverged", "failed", "running" (in another job), "waiting", ...
    left: list[str]  # runs that are not over
    was_stopped: bool  # by a signal or a time limit

    @property
    def failures(self) -> dict[str, str]:
        """What went wrong, by name of the run."""
        return {name: self.outcomes[name].message for name, s in self.states.items() if s == FAILED}


@contextlib.contextmanager
def groups(world: Comm, width: int) -> Iterator[Comm]:
    """Collective. Groups of `width` ranks, each of which does one run at a time; gives this rank's."""
    group = world.split(world.rank // width)
    try:
        yield group
    except Exception as error:
        if getattr(error, "agreed", False):  # else the others may be elsewhere, and the job ends
            group.free()
        raise
    group.free()


def do_sweep(
    world: Comm,
    group: Comm,
    points: list[Point],
    plan: list[Point],
    folder: str | Path,
    stop: StopRequest,
    screen: Screen | None = None,
    *,
    pack: int | str = AUTO,
) -> SweepOutcome:
    """Collective. Do `points` of `plan`. The groups work independently; all wait for the last one.

    `pack`: how many runs a group does in lockstep.
    """
    wants_events = any(point.config.run.tensorboard for point in points)
    world.try_on_root(require_tensorboard if wants_events else lambda: None)
    store = Store(folder)
    world.try_on_root(lambda: store.create(plan))
    world.try_on_root(store.write_index)
    began = world.on_root(time.time)
    stop.limit(points[0].config.run.max_minutes)
    order = world.on_root(lambda: _order(store, points))
    by_index = {point.index: point for point in points}
    job = Job(
        store, [by_index[index] for index in order], began, stop, shared_warmups(points),
        pack, num_groups=world.size // group.size,
    )  # fmt: skip

    was_stopped = work(job, group, screen.redraw if screen else None)
    world.wait_asleep(screen.redraw if screen else lambda: None)
    was_stopped = any(world.gather_on_all(was_stopped))
    if screen:
        screen.close()
    return world.on_root(lambda: _conclude(job, was_stopped))


def _order(store: Store, points: list[Point]) -> list[int]:
    """Longest first, so that no long run starts at the end; runs that failed before come last."""
    failed = {p.index for p in points if (o := store.outcome(p.name)) and o.status == FAILED}
    return [p.index for p in sorted(points, key=lambda p: (p.index in failed, -p.work, p.index))]


def _conclude(job: Job, was_stopped: bool) -> SweepOutcome:
    """Rank 0: update the index, and collect the state of all runs."""
    store = job.store
    store.write_index()
    outcomes = {point.name: store.outcome(point.name) for point in job.points}
    return SweepOutcome(
        outcomes=outcomes,
        states={name: store.status(name, outcome) for name, outcome in outcomes.items()},
        left=[p.name for p in job.points if not store.is_final(p, outcomes[p.name], job.began)],
        was_stopped=was_stopped,
    )
