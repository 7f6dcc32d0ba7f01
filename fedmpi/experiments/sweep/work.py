"""Doing the runs of a sweep: groups of ranks take one after another until none is left.

Groups communicate only through files (claims.py, store.py), so that any number of jobs may work on one
folder. Invariant: a run that fails or diverges is recorded, and the group continues with the next one.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedmpi.config import Config, may_change
from fedmpi.config.toml import toml_value
from fedmpi.errors import UserError
from fedmpi.experiments.lifecycle import Beginning, plan_resume
from fedmpi.experiments.sweep.claims import Claim, is_held, take
from fedmpi.experiments.sweep.packing import Packer, may_join, pack_key
from fedmpi.experiments.sweep.points import Point, different_keys
from fedmpi.experiments.sweep.store import FAILED, Outcome, Store, outcome_of, stored_config
from fedmpi.experiments.sweep.together import ApartError, Member, is_shared, run_together
from fedmpi.experiments.sweep.warmup import Warmup, is_ready, plan_fork
from fedmpi.mpi import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.simulation.outcome import Listener
from fedmpi.simulation.outcome import Outcome as SimulationOutcome
from fedmpi.simulation.stopping import StopRequest
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
    pack: int | str  # runs that go on in lockstep, or "auto"
    num_groups: int


@dataclass
class Taken:
    """A run that a group has taken; the claims are on its root."""

    index: int
    warmup: str  # to begin with; empty for none
    is_new: bool  # the warm-up is still to be done
    claims: list[Claim] = field(default_factory=list)

    def release(self) -> None:
        """Release it for others."""
        for claim in self.claims:
            claim.release()


class Watcher(Listener):
    """Redraws the screen of the whole sweep, and notes the progress of its run in a file."""

    def __init__(self, note: Path | None, redraw: Callable[[], None] | None, num_packed: int) -> None:
        self._total, self._num_packed = 1, num_packed
        self._note_path, self._redraw, self._next_note = note, redraw, 0.0
        self._note(0.0)

    def expects(self, total: int, completed: int = 0) -> None:
        """Rounds of the run."""
        self._total = total

    def round_done(self, completed: int) -> None:
        """After each round."""
        now = time.monotonic()
        if now >= self._next_note:
            self._next_note = now + 5
            self._note(completed / self._total)
        if self._redraw:
            self._redraw()

    def _note(self, share: float) -> None:
        if self._note_path:
            with contextlib.suppress(OSError):
                self._note_path.write_text(f"{share:.4f} {self._num_packed}")


def work(job: Job, group: Comm, redraw: Callable[[], None] | None) -> bool:
    """Collective in the group. Do runs until none is left; returns whether it had to stop early."""
    packer = Packer(job.pack, job.num_groups, group)
    while True:
        # The root claims runs and tells its group which.
        taken = group.try_on_root(lambda: _next(job, packer, redraw)) or []
        known = group.on_root(lambda taken=taken: [(t.index, t.warmup, t.is_new) for t in taken])
        if not known:
            return bool(group.on_root(lambda: job.stop.code))

        # Do them; claims are released whatever happens.
        try:
            _do(job, group, taken or [Taken(*values) for values in known], redraw)
        finally:
            for one in taken:
                one.release()


def _next(job: Job, packer: Packer, redraw: Callable[[], None] | None) -> list[Taken]:
    """Root: claim the next runs that are free, a pack of them, and their warm-ups that are to be done.

    Empty if there is none, or if it is time to stop. Waits while all remaining runs need a warm-up that
    another group is doing.
    """
    while not job.stop.code:
        taken, is_waiting = _look(job, packer)
        if taken or not is_waiting:
            return taken
        if redraw:
            redraw()
        pulse.here.tick()  # that other group has a watchdog of its own; to wait for it is no stall
        time.sleep(0.2)
    return []


def _look(job: Job, packer: Packer) -> tuple[list[Taken], bool]:
    """Root: what `_next` returns, and whether a run is left that waits for its warm-up."""
    taken, is_waiting, size, key = [], False, 1, None
    left = [p for p in job.points if not job.store.is_final(p, job.store.outcome(p.name), job.began)]
    # Runs that were finished by `fedmpi resume` have only to be noted: they come last, and fill no pack.
    left.sort(key=job.store.has_all_rounds)
    for point in left:
        if taken and pack_key(point.config) != key:
            continue
        one, waits = _claim(job, point, {t.warmup for t in taken if t.is_new})
        is_waiting = is_waiting or waits
        if one is None:
            continue

        # The first one decides how many others it may have beside it.
        taken.append(one)
        if len(taken) == 1:
            key = pack_key(point.config)
            free = [p for p in left if may_join(p.config, key) and not is_held(job.store.notes, p.name)]
            size = packer.size(point.config, 1 + len(free))
        if len(taken) >= size:
            break
    return taken, is_waiting


def _claim(job: Job, point: Point, own_warmups: set[str]) -> tuple[Taken | None, bool]:
    """Root: a run that is free, claimed; and whether it waits for a warm-up that another group is doing.

    `own_warmups`: those that this group has just claimed.
    """
    # Does it need a warm-up, and is another group doing that?
    notes, warmup = job.store.notes, job.warmups.get(point.index, "")
    if job.store.run_path(point.name).exists():
        warmup = ""  # begun before, continues from its own checkpoint
    is_new = bool(warmup) and not is_ready(notes, warmup)
    if is_new and warmup not in own_warmups and is_held(notes, warmup):
        return None, True

    # Claim the run, and its warm-up if that is new.
    claim = take(notes, point.name)
    if claim is None:
        return None, False
    # Another group may have finished it before our claim.
    if not job.store.is_final(point, job.store.outcome(point.name), job.began):
        if not is_new or warmup in own_warmups:
            return Taken(point.index, warmup, is_new, [claim]), False
        if warmup_claim := take(notes, warmup):
            return Taken(point.index, warmup, is_new, [claim, warmup_claim]), False
        claim.release()
        return None, True
    claim.release()
    return None, False


def _do(job: Job, group: Comm, taken: list[Taken], redraw: Callable[[], None] | None) -> None:
    """Collective in the group. Runs from their start or checkpoint, in lockstep; their warm-ups first.

    Those that cannot be prepared together are done one after another.
    """
    # Each warm-up once.
    by_index, notes = {point.index: point for point in job.points}, job.store.notes
    new = {one.warmup: by_index[one.index] for one in taken if one.is_new}
    warmups = [
        Warmup(group, notes, name, point.config, job.stop, _watcher(job, group, point, redraw, len(new)))
        for name, point in new.items()
    ]
    _together_or_apart(warmups, group)
    if group.on_root(lambda: job.stop.code):
        return

    # Then the runs.
    runs = [
        SweepRun(
            job,
            group,
            by_index[one.index],
            one,
            _watcher(job, group, by_index[one.index], redraw, len(taken)),
        )
        for one in taken
    ]
    _together_or_apart(runs, group)


def _together_or_apart(members: Sequence[Member], group: Comm) -> None:
    try:
        run_together(members, group)
    except ApartError:
        for member in members:
            run_together([member], group)


def _watcher(
    job: Job, group: Comm, point: Point, redraw: Callable[[], None] | None, num_packed: int
) -> Watcher:
    note = job.store.notes / f"{point.name}.progress" if group.is_root else None
    return Watcher(note, redraw, num_packed)


class SweepRun:
    """One run of the sweep, as a member of a pack."""

    def __init__(self, job: Job, group: Comm, point: Point, taken: Taken, listener: Listener) -> None:
        self._job, self._group, self._point, self._taken = job, group, point, taken
        self._path = job.store.run_path(point.name)
        self._over: str | None = None  # the status of a run that was over before
        self.listener = listener

    def begin(self, held: contextlib.ExitStack) -> Beginning | None:
        """Collective. From its own checkpoint, or the warm-up's, or anew."""
        group, path, point, stop = self._group, self._path, self._point, self._job.stop
        group.try_on_root(lambda: held.enter_context(writer_lock(path)))

        # Continue a run that was begun.
        if group.on_root(path.exists):
            overrides = group.on_root(lambda: _changes(path, point))
            plan = group.on_root(lambda: plan_resume(path, overrides))
            if plan.is_over:
                self._over = plan.stored["status"]
                return None
            return Beginning(config=plan.config, path=path, stop=stop, plan=plan)

        # Begin it, from the warm-up's checkpoint where that can be used.
        group.try_on_root(lambda: check_target(path, force=False))
        warmup, notes = self._taken.warmup, self._job.store.notes
        plan = group.on_root(lambda: plan_fork(notes, warmup, point.config) if warmup else None)
        source = notes / f"{warmup}.h5" if plan else None
        return Beginning(config=point.config, path=path, stop=stop, plan=plan, source=source)

    def ended(self, result: SimulationOutcome | Exception | None) -> None:
        """Record how it ended; then it is free for others."""
        store, point = self._job.store, self._point
        is_ours = not isinstance(result, Exception) or is_shared(result, self._group)
        if self._group.is_root or not is_ours:
            store.note(point.name, self._outcome(result))
        is_met_here = getattr(result, "rank", self._group.rank) == self._group.rank or not is_ours
        if isinstance(result, Exception) and not isinstance(result, UserError) and is_met_here:
            lines = traceback.format_exception(result)
            (store.notes / f"{point.name}.traceback").write_text("".join(lines))
        self._taken.release()

    def _outcome(self, result: SimulationOutcome | Exception | None) -> Outcome:
        point, group = self._point, self._group
        if isinstance(result, UserError):  # the user's mistake
            return Outcome(FAILED, point.digest, message=str(result), time=time.time())
        if isinstance(result, Exception):
            rank = getattr(result, "rank", group.rank)
            place = f" on rank {rank} of its {group.size}" if group.size > 1 else ""
            message = f"{type(result).__name__}{place}: {result}"
            return Outcome(FAILED, point.digest, message=message, time=time.time())
        status = result.status if result else self._over
        diverged = result.divergence if result else None
        message = f"{diverged.sentence} ({diverged.replay(self._path)})" if diverged else ""
        return outcome_of(self._path, point, status, message)


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
