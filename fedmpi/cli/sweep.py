"""`fedmpi sweep`: all runs of a sweep file, and `fedmpi sweep best`: which settings were best."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path

from fedmpi import mpi
from fedmpi.errors import EXIT_DIVERGED, EXIT_DONE, EXIT_FAILURE, EXIT_STOPPED, UserError
from fedmpi.experiments.sweep.points import Point, load_sweep
from fedmpi.experiments.sweep.store import FAILED, RUNNING, Store, listing
from fedmpi.experiments.tensorboard import require_tensorboard
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.columns import DIVERGED


def sweep(args: argparse.Namespace) -> int:
    """Collective. Do all runs that are left; returns the exit status, the same on all ranks."""
    if args.list:
        if mpi.launched_rank() == 0:
            print(listing(Store(args.out), _choose(load_sweep(args.sweep), args.index)))
        return EXIT_DONE
    stop = StopRequest().listen()
    with mpi.session() as world:
        points = world.on_root(lambda: _choose(load_sweep(args.sweep), args.index))
        width = args.ranks_per_run or (1 if args.index is None else world.size)
        if width > world.size:
            raise UserError.on_all_ranks(
                f"--ranks-per-run {width}: MPI has {world.size} ranks; launch with mpirun -n {width}"
            )
        group = world.split(world.rank // width)
        if args.dry_run:
            from fedmpi.experiments.sweep.trial import dry_run

            return dry_run(world, group, points, math.ceil(world.size / width))
        # The whole plan is noted, also by a job that does one run of it.
        plan = world.on_root(lambda: load_sweep(args.sweep))
        return do_sweep(world, group, points, plan, args.out, args.sweep, stop)


def _choose(points: list[Point], index: int | None) -> list[Point]:
    if index is not None and index >= len(points):
        raise UserError(f"--index {index}: the sweep has {len(points)} runs, 0 to {len(points) - 1}")
    return points if index is None else [points[index]]


def do_sweep(
    world: mpi.Comm,
    group: mpi.Comm,
    points: list[Point],
    plan: list[Point],
    folder: str | Path,
    name: str,
    stop: StopRequest,
) -> int:
    """Collective. Do `points` of `plan`. The groups work on their own; all meet when the last is done."""
    from fedmpi.experiments.sweep.screen import Screen
    from fedmpi.experiments.sweep.warmup import shared_warmups
    from fedmpi.experiments.sweep.work import Job, work  # here, since torch takes seconds to load

    wants_events = any(point.config.run.tensorboard for point in points)
    world.try_on_root(require_tensorboard if wants_events else lambda: None)
    store = Store(folder)
    world.try_on_root(lambda: store.create(plan))
    world.try_on_root(store.write_index)
    began = world.on_root(time.time)
    stop.limit(points[0].config.run.max_minutes)
    order = world.on_root(lambda: _order(store, points))
    by_index = {point.index: point for point in points}
    warmups = shared_warmups(points)
    job = Job(store, [by_index[index] for index in order], began, stop, warmups)

    screen = Screen(store, points) if world.is_root else None
    if screen:
        print(
            f"fedmpi sweep {name}: {len(points)} runs, {world.size} rank{'s' * (world.size > 1)}, "
            f"{math.ceil(world.size / group.size)} at a time, into {store.folder}",
            flush=True,
        )
    was_stopped = work(job, group, screen.redraw if screen else None)
    world.wait_asleep(screen.redraw if screen else lambda: None)
    was_stopped = any(world.gather_on_all(was_stopped))
    if screen:
        screen.close()
    return world.on_root(lambda: _conclude(job, was_stopped))


def _order(store: Store, points: list[Point]) -> list[int]:
    """Longest first, so that none is left over at the end; what failed before comes last."""
    failed = {p.index for p in points if (o := store.outcome(p.name)) and o.status == FAILED}
    return [p.index for p in sorted(points, key=lambda p: (p.index in failed, -p.work, p.index))]


def _conclude(job: object, was_stopped: bool) -> int:
    """Rank 0: renew the index, name what did not work, choose the exit status."""
    store = job.store
    store.write_index()
    outcomes = {point.name: store.outcome(point.name) for point in job.points}
    states = {name: store.status(name, outcome) for name, outcome in outcomes.items()}
    counts = Counter(states.values())
    for name, state in states.items():
        if state == FAILED:
            print(f"failed: {name}: {outcomes[name].message}")
    if counts[RUNNING]:
        print(f"{counts[RUNNING]} runs are being done by other jobs")
    print(f"index: {store.folder / 'index.csv'}", flush=True)
    left = [p for p in job.points if not store.is_final(p, outcomes[p.name], job.began)]
    if was_stopped and left:
        print(f"stopped with {len(left)} runs left; the same command goes on", flush=True)
        return EXIT_STOPPED
    if counts[FAILED]:
        return EXIT_FAILURE
    return EXIT_DIVERGED if counts[DIVERGED] else EXIT_DONE
