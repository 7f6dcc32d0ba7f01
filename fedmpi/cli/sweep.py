"""`fedmpi sweep`: all runs of a sweep file, and `fedmpi sweep best`: which settings were best."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi import mpi
from fedmpi.cli.screen import Screen
from fedmpi.errors import EXIT_DIVERGED, EXIT_DONE, EXIT_FAILURE, EXIT_STOPPED, UserError
from fedmpi.experiments.sweep.best import best_lines, collect
from fedmpi.experiments.sweep.choosing import only, write_configs
from fedmpi.experiments.sweep.packing import notes_on_packs, pack_size, uses_gpu
from fedmpi.experiments.sweep.points import Point, load_sweep
from fedmpi.experiments.sweep.store import FAILED, RUNNING, Store, listing
from fedmpi.mpi.launcher import login_node_note
from fedmpi.mpi.watch.beginning import beginning
from fedmpi.mpi.watch.watchdog import watching
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.columns import DIVERGED

if TYPE_CHECKING:
    from fedmpi.experiments.sweep.job import SweepOutcome


def sweep(args: argparse.Namespace) -> int:
    """Collective. Do all remaining runs; returns the exit status, the same on all ranks."""
    if args.list or args.write_configs:
        if mpi.launched_rank() == 0:
            points = _choose(load_sweep(args.sweep, quick=args.quick), args.index, args.only)
            look_or_write(points, args.sweep, args.out, args.write_configs)
        return EXIT_DONE
    if not args.out:
        raise UserError.on_all_ranks("--out: missing; fedmpi sweep needs a folder for its runs, --out DIR")
    stop, pack = StopRequest().listen(), pack_size(args.pack)
    # A dry run has no limit: it tries a few rounds of each kind.
    watch = contextlib.nullcontext if args.dry_run else beginning
    with mpi.session(simulates=not args.dry_run) as world, watch(world):
        plan = world.on_root(lambda: load_sweep(args.sweep, quick=args.quick))
        points = world.on_root(lambda: _choose(plan, args.index, args.only))
        width = args.ranks_per_run or (1 if args.index is None else world.size)
        if width > world.size:
            raise UserError.on_all_ranks(
                f"--ranks-per-run {width}: MPI has {world.size} ranks; launch with mpirun -n {width}"
            )
        group = world.split(world.rank // width)
        if args.dry_run:
            from fedmpi.experiments.sweep.trial import dry_run

            lines = dry_run(world, group, points, math.ceil(world.size / width))
            if world.is_root:
                print("\n".join(lines), flush=True)
            return EXIT_DONE
        # The whole plan is stored, even by a job that does one run of it.
        return do_sweep(world, group, points, plan, args.out, args.sweep, stop, pack)


def look_or_write(points: list[Point], source: str, folder: str | None, configs: str | None) -> None:
    """Rank 0: list the runs with their states in a folder, or write their configs."""
    if configs:
        print("\n".join(map(str, write_configs(points, configs, source))))
    else:
        print(listing(Store(folder or ""), points))


def _choose(points: list[Point], index: int | None, patterns: list[str] | None) -> list[Point]:
    points = only(points, patterns)
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
    pack: int | str,
) -> int:
    """Collective. Do `points` of `plan`, and show progress and results; returns the exit status."""
    from fedmpi.experiments.sweep import job  # here, since torch takes seconds to load

    store = Store(folder)
    screen = Screen(store, points) if world.is_root else None
    if screen:
        print(
            f"fedmpi sweep {name}: {len(points)} runs, {world.size} rank{'s' * (world.size > 1)}, "
            f"{math.ceil(world.size / group.size)} at a time, into {store.folder}",
            flush=True,
        )
        configs = [point.config for point in points]
        notes = notes_on_packs(configs, on_gpu=uses_gpu(configs[0])) if pack != 1 else []
        for note in filter(None, [*notes, login_node_note()]):
            print(f"note: {note}", flush=True)
    with watching(world, points[0].config.run.stall_minutes, store.folder / "sweep", is_sweep=True):
        outcome = job.do_sweep(world, group, points, plan, folder, stop, screen, pack=pack)
    if world.is_root:
        _print_outcome(outcome, store)
    counts = Counter(outcome.states.values())
    if outcome.was_stopped and outcome.left:
        return EXIT_STOPPED
    if counts[FAILED]:
        return EXIT_FAILURE
    return EXIT_DIVERGED if counts[DIVERGED] else EXIT_DONE


def _print_outcome(outcome: SweepOutcome, store: Store) -> None:
    """Rank 0: name what did not work, and where the table is."""
    for name, message in outcome.failures.items():
        print(f"failed: {name}: {message}")
    elsewhere = Counter(outcome.states.values())[RUNNING]
    if elsewhere:
        print(f"{elsewhere} runs are being done by other jobs")
    print(f"index: {store.folder / 'index.csv'}", flush=True)
    if outcome.was_stopped and outcome.left:
        print(f"stopped with {len(outcome.left)} runs left; the same command continues them", flush=True)


def best(folder: str, metric: str, last: int, *, everything: bool = False) -> int:
    """Print the best settings of each method by a metric: lowest loss, highest accuracy."""
    print("\n".join(best_lines(collect(Store(folder), metric, last), metric, everything=everything)))
    return EXIT_DONE
