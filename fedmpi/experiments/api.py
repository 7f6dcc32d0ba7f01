"""fedmpi from Python: `run`, `resume`, `sweep`, `check` and `advise`, in one process or under mpirun.

Under `mpirun -n R python script.py` all R processes call these functions with the same arguments, and all
get the same result. Errors are exceptions with the words of the command line; nothing here exits.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.config.user_code import passed_objects
from fedmpi.errors import UserError
from fedmpi.experiments.callbacks import Callbacks, SweepProgress
from fedmpi.experiments.lifecycle import Prepared, go_on, nothing_to_do, plan_resume, start
from fedmpi.experiments.progress import progress_bar
from fedmpi.experiments.python_input import (
    GIVEN_BY,
    ConfigSource,
    Settings,
    known_objects,
    load_config,
    override_texts,
    points_of,
)
from fedmpi.mpi import Comm, attached
from fedmpi.simulation.outcome import Listener, Outcome
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.reader import Run, load_run, read_attributes
from fedmpi.storage.runs import load_runs
from fedmpi.storage.writer import check_target

if TYPE_CHECKING:
    import pandas

    from fedmpi.experiments.preview import Preview


def run(
    config: ConfigSource,
    overrides: Settings = None,
    out: str | Path | None = None,
    *,
    force: bool = False,
    on_evaluation: Callable[[dict[str, float]], Any] | None = None,
    on_round: Callable[[int], Any] | None = None,
    progress: bool = True,
    **objects: Any,
) -> Run:
    """Collective. Simulate a config; the results, as `fedmpi.load_run` gives them, on all ranks.

    config         a TOML file, or a dict {"run": {"num_rounds": 10}, ...}
    overrides      keys that differ from it: {"algorithm.local_lr": 0.1}
    out            result file; without one nothing is left on disk. `force` overwrites an earlier run
    on_evaluation  called with each row of `Run.eval` as a dict, on rank 0; a true answer stops the run
    on_round       called with the number of rounds done, on rank 0; a true answer stops the run. Stopping
                   is agreed upon with the next round's reduction: the run ends with that round
    progress       a progress bar on stderr or in the notebook
    model, participation, method, partition, dataset
                   Python objects in place of the names in the config:
                   model(input_shape, num_classes, **model.options) -> torch module, or a module;
                   participation(t, num_clients, seed) -> ids of the available clients;
                   method, a class derived from fedmpi.methods.Method;
                   partition(labels, num_clients, seed) -> the client of each sample;
                   dataset() -> fedmpi.data.prepared.Dataset, or such a data set.
                   Functions may leave out arguments that they do not need. A string is a name, as in
                   the config.

    An object that another process can import (not from a notebook, not from the script itself) stands in
    the result file by its name, as if the config named it. Any other stands there with its source; such a
    run goes on by `fedmpi.resume` with the same object only. Values that a function takes from outside its
    own text are not part of that record.

    A run that diverges is no error: its status says so, and a warning. Ctrl-C ends it with a checkpoint and
    raises KeyboardInterrupt.
    """
    given = known_objects(objects)
    with passed_objects(given) as named, _session() as comm, StopRequest().listening() as stop:
        chosen = comm.on_root(lambda: load_config(config, overrides, named))
        with _output_file(comm, out, force=force) as path:
            prepared = start(comm, chosen, path, stop, with_checkpoints=out is not None)
            outcome = _carry_out(prepared, on_evaluation, on_round, progress=progress)
            result = comm.on_root(lambda: load_run(path))
    return _concluded(result, outcome, out)


def resume(
    path: str | Path,
    overrides: Settings = None,
    *,
    trust: bool = False,
    on_evaluation: Callable[[dict[str, float]], Any] | None = None,
    on_round: Callable[[int], Any] | None = None,
    progress: bool = True,
    **objects: Any,
) -> Run:
    """Collective. Go on with a run from its newest good checkpoint, on any number of ranks.

    `overrides` may lengthen it: {"run.num_rounds": 2000}. A run that is over is returned as it is. `trust`
    allows code that another user's file names, and objects whose source changed. The rest is as in `run`.
    """
    path, settings = Path(path), override_texts(overrides)
    with passed_objects(known_objects(objects)), _session() as comm, contextlib.ExitStack() as held:
        stop = held.enter_context(StopRequest().listening())
        comm.try_on_root(lambda: read_attributes(path))  # before a lock file is made
        comm.try_on_root(lambda: held.enter_context(writer_lock(path)))
        plan = comm.on_root(lambda: plan_resume(path, settings, trust=trust, given_by=GIVEN_BY))
        for note in plan.notes if comm.is_root else ():
            warnings.warn(note, stacklevel=2)
        if plan.is_over:
            if comm.is_root and overrides:
                warnings.warn(nothing_to_do(path, plan), stacklevel=2)
            return comm.on_root(lambda: load_run(path))
        outcome = _carry_out(go_on(comm, plan, path, stop), on_evaluation, on_round, progress=progress)
        result = comm.on_root(lambda: load_run(path))
    return _concluded(result, outcome, path)


def sweep(
    sweep: ConfigSource,
    out: str | Path | None = None,
    *,
    ranks_per_run: int = 1,
    progress: bool = True,
    **objects: Any,
) -> pandas.DataFrame:
    """Collective. All runs of a sweep that are left; the table that `fedmpi.load_runs(out)` gives.

    sweep          a TOML file, or a dict {"base": a config, "seeds": [1, 2], "grid": {"algorithm.local_lr":
                   [0.1, 0.01]}, "cases": [{"name": "fedavg", ...}]}
    out            folder of the result files; without one, on one node only, nothing is left on disk
    ranks_per_run  runs are done beside each other by groups of so many ranks
    objects        as in `run`, for all runs

    Runs that fail are an error once all others are done; their results and those of the others are kept.
    """
    given = known_objects(objects)
    with passed_objects(given) as named, _session() as world, StopRequest().listening() as stop:
        from fedmpi.experiments.sweep import job

        if not 1 <= ranks_per_run <= world.size:
            raise UserError.on_all_ranks(
                f"ranks_per_run = {ranks_per_run}: MPI has {world.size} ranks; expected 1 to {world.size}"
            )
        if out is None and world.node_size < world.size:
            raise UserError.on_all_ranks(
                f"sweep on {world.size} ranks of several nodes: needs out=FOLDER on a file system that all "
                "of them see"
            )
        points = world.on_root(lambda: points_of(sweep, named))
        with _output_folder(world, out) as folder:
            screen = progress_bar("runs") if progress and world.is_root else None
            watched = SweepProgress(screen, folder, points) if screen else None
            group = job.split(world, ranks_per_run)
            outcome = job.do_sweep(world, group, points, points, folder, stop, watched)
            group.free()
            if outcome.failures:
                told = "\n  ".join(f"{name}: {message}" for name, message in outcome.failures.items())
                raise UserError.on_all_ranks(f"{len(outcome.failures)} runs failed:\n  {told}", 1)
            table = world.on_root(lambda: load_runs(folder))
    if outcome.was_stopped and stop.is_interrupt:
        raise KeyboardInterrupt(f"stopped with {len(outcome.left)} runs left")
    return table


def check(config: ConfigSource, overrides: Settings = None, *, ranks: int = 1, **objects: Any) -> Preview:
    """Validate a config and say what it would do and cost on so many ranks, without training.

    The answer has the resolved config, notes on keys without effect, the sizes of clients and model, and a
    survey of who takes part; printed, it reads as `fedmpi check`.
    """
    from fedmpi.experiments.preview import preview

    with passed_objects(known_objects(objects)) as named:
        return preview(load_config(config, overrides, named), ranks)


def advise(
    config: ConfigSource,
    overrides: Settings = None,
    *,
    at: str | Path | None = None,
    measure: bool = False,
    progress: bool = True,
    **objects: Any,
) -> dict[str, Any]:
    """What the paper's theory says of a config, as `fedmpi advise --json`.

    With `at` (a result file) or `measure` (the initial model) it is collective: the constants of the
    problem are measured over all ranks.
    """
    from fedmpi.experiments import advising

    with passed_objects(known_objects(objects)) as named:
        if at is None and not measure:
            return advising.adviser_of(load_config(config, overrides, named)).report()
        with _session() as comm:
            chosen = comm.on_root(lambda: load_config(config, overrides, named))
            listener = progress_bar("clients") if progress and comm.is_root else None
            known = advising.measure(comm, chosen, str(at) if at else None, listener)
            return comm.on_root(lambda: advising.adviser_of(chosen, known).report())


@contextlib.contextmanager
def _session() -> Iterator[Comm]:
    """MPI, and torch's global settings as the caller had them once it is over."""
    import torch

    threads, is_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with attached() as comm:
        try:
            yield comm
        finally:
            torch.set_num_threads(threads)
            torch.set_flush_denormal(False)
            torch.use_deterministic_algorithms(is_deterministic)


@contextlib.contextmanager
def _output_file(comm: Comm, out: str | Path | None, *, force: bool) -> Iterator[Path]:
    """Collective. The result file, locked by rank 0; without `out` one that is removed again."""
    with contextlib.ExitStack() as held:
        if out is None:
            folder = comm.on_root(lambda: held.enter_context(tempfile.TemporaryDirectory(prefix="fedmpi-")))
            path = Path(folder) / "run.h5"
        else:
            path = Path(out)
            comm.try_on_root(lambda: held.enter_context(writer_lock(path)))
        comm.try_on_root(lambda: check_target(path, force=force))
        yield path


@contextlib.contextmanager
def _output_folder(comm: Comm, out: str | Path | None) -> Iterator[Path]:
    with contextlib.ExitStack() as held:
        if out is not None:
            yield Path(out)
            return
        folder = comm.on_root(lambda: held.enter_context(tempfile.TemporaryDirectory(prefix="fedmpi-")))
        yield Path(folder)
        comm.barrier()  # nobody looks into it any more


def _carry_out(
    prepared: Prepared,
    on_evaluation: Callable[[dict[str, float]], Any] | None,
    on_round: Callable[[int], Any] | None,
    *,
    progress: bool,
) -> Outcome:
    """Collective. The rounds that are left; what a callback raised is raised on all ranks."""
    simulation = prepared.simulation
    comm = simulation.comm
    simulation.stop.limit(simulation.config.run.max_minutes)
    listener = None
    if comm.is_root:
        bar = progress_bar() if progress else Listener()
        listener = Callbacks(bar, on_evaluation, on_round, simulation.stop)
    outcome = simulation.run(prepared.file, listener)
    error = listener.error if listener else None
    told = comm.on_root(lambda: f"{type(error).__name__}: {error}" if error else "")
    if not told:
        return outcome
    if error is None:
        raise UserError.on_all_ranks(f"a callback raised {told} on rank 0", 1)
    error.agreed = True  # all ranks leave this call
    raise error


def _concluded(result: Run, outcome: Outcome, out: str | Path | None) -> Run:
    """The result; with a warning, or as a KeyboardInterrupt, where the run did not end as planned."""
    if outcome.divergence:
        warnings.warn(f"{outcome.divergence.sentence}; {outcome.divergence.remedy}", stacklevel=3)
    if outcome.is_interrupt:
        left = f"; go on with fedmpi.resume({str(out)!r})" if out else ""
        raise KeyboardInterrupt(f"stopped after round {outcome.completed:,}{left}")
    return result
