"""Doing the runs of a sweep: groups of ranks take one after another until none is left.

Groups communicate only through files (claims.py, store.py), so that any number of jobs may work on one
folder. Invariant: a run that fails or diverges is recorded, and the group continues with the next one.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedmpi.config import Config, may_change
from fedmpi.config.toml import toml_value
from fedmpi.errors import UserError
from fedmpi.experiments.lifecycle import fork, go_on, plan_resume, start
from fedmpi.experiments.sweep.claims import Claim, is_held, take
from fedmpi.experiments.sweep.points import Point, different_keys
from fedmpi.experiments.sweep.store import FAILED, Outcome, Store, outcome_of, stored_config
from fedmpi.experiments.sweep.warmup import do_warmup, is_ready, plan_fork
from fedmpi.mpi import Comm
from fedmpi.simulation.outcome import Listener
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.columns import STOPPED
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.writer import check_target


@dataclass(frozen=True)
class Job:
    """What all groups of this job know."""

    store: Store
    points: list[Point]  # in the order in which they are taken
    began: float  # by the wall clock; what failed since then is not tried again
    stop: StopRequest
    warmups: dict[int, str]  # runs that share a warm-up, by index, and its name


class Watcher(Listener):
    """Redraws the screen of the whole sweep, and notes the progress of its run in a file."""

    def __init__(self, note: Path | None, redraw: Callable[[], None] | None) -> None:
        self._total = 1
        self._note_path, self._redraw, self._next_note = note, redraw, 0.0

    def expects(self, total: int, completed: int = 0) -> None:
        """Rounds of the run."""
        self._total = total

    def round_done(self, completed: int) -> None:
        """After each round."""
        now = time.monotonic()
        if self._note_path and now >= self._next_note:
            self._next_note = now + 5
            with contextlib.suppress(OSError):
                self._note_path.write_text(f"{completed / self._total:.4f}")
        if self._redraw:
            self._redraw()


def work(job: Job, group: Comm, redraw: Callable[[], None] | None) -> bool:
    """Collective in the group. Do runs until none is left; returns whether it had to stop early."""
    while True:
        # The root claims a run and tells its group which.
        claimed = group.try_on_root(lambda: _next(job, redraw))
        held = [claim for claim in (claimed[1], claimed[3]) if claim] if claimed else []
        index = group.on_root(lambda claimed=claimed: claimed[0] if claimed else None)
        if index is None:
            return bool(group.on_root(lambda: job.stop.code))

        # Do it; claims are released whatever happens.
        point = next(p for p in job.points if p.index == index)
        warmup = group.on_root(lambda claimed=claimed: claimed[2])
        try:
            _do(job, group, point, warmup, redraw)
        finally:
            for claim in held:
                claim.release()


def _next(job: Job, redraw: Callable[[], None] | None) -> tuple[int, Claim, str, Claim | None] | None:
    """Root: claim the next run that is free, and its warm-up if that is still to be done.

    None if there is none, or if it is time to stop. Waits while all remaining runs need a warm-up that
    another group is doing.
    """
    while not job.stop.code:
        claimed, is_waiting = _look(job)
        if claimed or not is_waiting:
            return claimed
        if redraw:
            redraw()
        time.sleep(0.2)
    return None


def _look(job: Job) -> tuple[tuple[int, Claim, str, Claim | None] | None, bool]:
    """Root: what `_next` returns, and whether a run is left that waits for its warm-up."""
    is_waiting, notes = False, job.store.notes
    for point in job.points:
        if job.store.is_final(point, job.store.outcome(point.name), job.began):
            continue

        # Does it need a warm-up, and is another group doing that?
        warmup = job.warmups.get(point.index, "")
        if job.store.run_path(point.name).exists():
            warmup = ""  # begun before, continues from its own checkpoint
        is_new = bool(warmup) and not is_ready(notes, warmup)
        if is_new and is_held(notes, warmup):
            is_waiting = True
            continue

        # Claim the run, and its warm-up if that is new.
        claim = take(notes, point.name)
        if claim is None:
            continue
        # Another group may have finished it before our claim.
        if not job.store.is_final(point, job.store.outcome(point.name), job.began):
            warmup_claim = take(notes, warmup) if is_new else None
            if warmup_claim or not is_new:
                return (point.index, claim, warmup, warmup_claim), False
            is_waiting = True
        claim.release()
    return None, is_waiting


def _do(job: Job, group: Comm, point: Point, warmup: str, redraw: Callable[[], None] | None) -> None:
    """Collective in the group. One run, from its start or its checkpoint, and how it ended."""
    path = job.store.run_path(point.name)
    watcher = Watcher(
        job.store.notes / f"{point.name}.progress" if group.is_root else None,
        redraw,
    )
    try:
        status, message = run_point(job, group, point, warmup, watcher)
        outcome = outcome_of(path, point, status, message) if group.is_root else None
        if status == STOPPED and not path.exists():  # in the warm-up
            return
    # The user's mistake: recorded, and the sweep continues.
    except UserError as error:
        outcome = _failure(point, str(error))
        if group.size > 1 and not error.agreed:
            job.store.note(point.name, outcome)
            raise
    # Anything else: recorded with its traceback.
    except Exception as error:
        agreed = getattr(error, "agreed", False)  # one rank's error, raised by all of the group
        rank = error.rank if agreed else group.rank
        place = f" on rank {rank} of its {group.size}" if group.size > 1 else ""
        outcome = _failure(point, f"{type(error).__name__}{place}: {error}")
        if rank == group.rank:
            (job.store.notes / f"{point.name}.traceback").write_text(traceback.format_exc())
        if group.size > 1 and not agreed:  # the others wait in a collective: only ending the job frees them
            job.store.note(point.name, outcome)
            raise
    if group.is_root:
        job.store.note(point.name, outcome)


def _failure(point: Point, message: str) -> Outcome:
    return Outcome(FAILED, point.digest, message=message, time=time.time())


def run_point(job: Job, group: Comm, point: Point, warmup: str, watcher: Listener) -> tuple[str, str]:
    """Collective in the group. The run's status after all rounds that are left; and how it diverged."""
    # The shared warm-up first, if nobody has done it.
    path, stop, notes = job.store.run_path(point.name), job.stop, job.store.notes
    if warmup and not group.on_root(lambda: is_ready(notes, warmup)):
        do_warmup(group, notes, warmup, point.config, stop, watcher)
        if group.on_root(lambda: stop.code):
            return STOPPED, ""

    with contextlib.ExitStack() as held:
        group.try_on_root(lambda: held.enter_context(writer_lock(path)))

        # Continue a run that was begun.
        if group.on_root(path.exists):
            overrides = group.on_root(lambda: _changes(path, point))
            plan = group.on_root(lambda: plan_resume(path, overrides))
            if plan.is_over:
                return plan.stored["status"], ""
            prepared = go_on(group, plan, path, stop)

        # Begin it, from the warm-up's checkpoint where that can be used.
        else:
            group.try_on_root(lambda: check_target(path, force=False))
            plan = group.on_root(lambda: plan_fork(notes, warmup, point.config) if warmup else None)
            prepared = None
            if plan:
                prepared = fork(group, plan, notes / f"{warmup}.h5", point.config, path, stop)
            prepared = prepared or start(group, point.config, path, stop)

        outcome = prepared.simulation.run(prepared.file, watcher)
    return outcome.status, outcome.divergence.sentence if outcome.divergence else ""


def _changes(path: Path, point: Point) -> list[str]:
    """What changed in the sweep since the file was created, as overrides; refuses another experiment."""
    stored = stored_config(path)
    different = different_keys(stored, point.config)
    if different:
        raise UserError(
            f"{path}: holds a run with different settings ({', '.join(different)}); remove it, or "
            "choose another folder"
        )
    return [
        f"{key}={toml_value(_get(point.config, key))}"
        for key in may_change()
        if _get(point.config, key) not in (None, _get(stored, key))
    ]


def _get(config: Config, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
