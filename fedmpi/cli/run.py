"""`fedmpi run` and `fedmpi resume`: a simulation from config or checkpoint to result file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from fedmpi import mpi
from fedmpi.cli.banner import banner, summary
from fedmpi.config import validate
from fedmpi.errors import EXIT_DIVERGED, EXIT_DONE, EXIT_STOPPED
from fedmpi.experiments.lifecycle import Prepared, go_on, nothing_to_do, plan_resume, start
from fedmpi.experiments.progress import Progress
from fedmpi.mpi.watch.beginning import beginning
from fedmpi.mpi.watch.watchdog import watching
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.columns import DIVERGED, DONE, STOPPED
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.reader import read_attributes
from fedmpi.storage.writer import check_target

_EXIT = {DONE: EXIT_DONE, DIVERGED: EXIT_DIVERGED, STOPPED: EXIT_STOPPED}


def run(config_path: str, out: str, overrides: Sequence[str], *, force: bool = False) -> int:
    """Collective. Simulate and write RUN.h5; returns the exit status, the same on all ranks."""
    path = Path(out)
    stop = StopRequest().listen()
    with mpi.session() as comm, beginning(comm), contextlib.ExitStack() as held:
        # Only rank 0 touches the config and the output; its results and errors reach all ranks.
        config = comm.on_root(lambda: validate.load(config_path, overrides))
        comm.try_on_root(lambda: held.enter_context(writer_lock(path)))
        comm.try_on_root(lambda: check_target(path, force=force))
        held.enter_context(watching(comm, config.run.stall_minutes, path))
        return _carry_out(start(comm, config, path, stop))


def resume(
    run_path: str,
    overrides: Sequence[str],
    *,
    trust: bool = False,
    wait: float = 0.0,
    force_lock: bool = False,
) -> int:
    """Collective. Continue from the newest good checkpoint, on any number of ranks.

    `trust` allows functions named in the file's config, if somebody else wrote the file. `wait`: seconds to
    wait for a job that writes the file; `force_lock`: take it over from one that counts as dead.
    """
    path = Path(run_path)
    stop = StopRequest().listen()
    with mpi.session() as comm, beginning(comm), contextlib.ExitStack() as held:
        comm.try_on_root(lambda: read_attributes(path))  # before a lock file is made
        lock = writer_lock(path, wait=wait, force=force_lock, tell=lambda text: print(text, flush=True))
        comm.try_on_root(lambda: held.enter_context(lock))
        plan = comm.on_root(lambda: plan_resume(path, overrides, trust=trust))
        if comm.is_root:
            print("".join(f"note: {note}\n" for note in plan.notes), end="")
        if plan.is_over:
            if comm.is_root:
                print(nothing_to_do(path, plan))
            return EXIT_DIVERGED if plan.stored["status"] == DIVERGED else EXIT_DONE
        held.enter_context(watching(comm, plan.config.run.stall_minutes, path))
        return _carry_out(go_on(comm, plan, path, stop))


def _carry_out(prepared: Prepared) -> int:
    """Collective. All remaining rounds, with banner, progress and summary; returns the exit status."""
    simulation, path = prepared.simulation, prepared.file.path
    is_root, config = simulation.comm.is_root, simulation.config
    if is_root:
        print(banner(simulation, prepared.attributes), flush=True)
    simulation.stop.limit(config.run.max_minutes)
    outcome = simulation.run(prepared.file, Progress() if is_root else None)
    if is_root:
        if outcome.divergence:
            print(f"\nfedmpi: {outcome.divergence.sentence}; {outcome.divergence.remedy}")
            print(f"look at that update with: {outcome.divergence.replay(path)}")
        print(summary(path, outcome.phases), flush=True)
        recorded = simulation.training.recorded
        if recorded.startswith("no"):
            print(f"  note     local steps were not recorded, but launched one by one ({recorded[4:]})")
        if outcome.status == STOPPED:
            print(
                f"stopped after round {outcome.completed:,} ({outcome.stop_reason}); "
                f"continue with: fedmpi resume {path}",
                flush=True,
            )
    return _EXIT[outcome.status]
