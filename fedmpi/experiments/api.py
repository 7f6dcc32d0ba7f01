"""fedmpi from Python: `run`, `resume`, `sweep`, `check` and `advise`, in one process or under mpirun.

Under `mpirun -n R python script.py` all R processes call these functions with the same arguments, and all
get the same result. Mistakes are exceptions with the words of the command line. One call at a time: those
of several threads would mix, and a callback, which runs on rank 0 alone, cannot call for all ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.errors import UserError
from fedmpi.experiments.call import Call, begin, begin_alone
from fedmpi.experiments.callbacks import Callbacks, SweepProgress
from fedmpi.experiments.lifecycle import Prepared, go_on, nothing_to_do, plan_resume, start
from fedmpi.experiments.progress import progress_bar
from fedmpi.experiments.python_input import (
    GIVEN_BY,
    ConfigSource,
    Settings,
    load_config,
    override_texts,
    points_of,
)
from fedmpi.results.many_runs import load_runs
from fedmpi.simulation.outcome import Listener, Outcome
from fedmpi.storage.reader import Run, load_run, read_attributes

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
    model, participation, method, partition, dataset, task
                   Python objects in place of the names in the config:
                   model(input_shape, num_classes, **model.options) -> torch module, or a module;
                   participation(t, num_clients, seed) -> ids of the available clients;
                   method, a class derived from fedmpi.methods.Method;
                   partition(labels, num_clients, seed) -> the client of each sample;
                   dataset() -> fedmpi.data.prepared.Dataset, or such a data set;
                   task, a class derived from fedmpi.tasks.Task, or an instance of one.
                   Functions may leave out arguments that they do not need. A string is a name, as in
                   the config.

    An object that another process can import (not from a notebook, not from the script itself) stands in
    the result file by its name, as if the config named it. Any other stands there with its source; such a
    run goes on by `fedmpi.resume` with the same object only. Values that a function takes from outside its
    own text are not part of that record.

    A run that diverges, or that a time limit stops, is no error: its status says so, and a warning. Ctrl-C
    ends it with a checkpoint and raises KeyboardInterrupt; a second Ctrl-C does not wait for that. The
    signals TERM, USR1 and USR2 end it with a checkpoint too, and then the program, with exit status 75.
    """
    with begin("run", objects) as call:
        chosen = call.comm.on_root(lambda: load_config(config, overrides, call.named))
        path = call.output_file(out, force=force)
        call.watch(chosen.run.stall_minutes, path)
        prepared = start(call.comm, chosen, path, call.stop, with_checkpoints=out is not None)
        outcome = _carry_out(prepared, on_evaluation, on_round, progress=progress)
        result = call.comm.on_root(lambda: load_run(path))
        _conclude(call, outcome, out)
    return result


def resume(
    path: str | Path,
    overrides: Settings = None,
    *,
    trust: bool = False,
    wait: float = 0.0,
    force_lock: bool = False,
    on_evaluation: Callable[[dict[str, float]], Any] | None = None,
    on_round: Callable[[int], Any] | None = None,
    progress: bool = True,
    **objects: Any,
) -> Run:
    """Collective. Go on with a run from its newest good checkpoint, on any number of ranks.

    `overrides` may lengthen it: {"run.num_rounds": 2000}. A run that is over is returned as it is. `trust`
    allows code that another user's file names, and objects whose source changed. A file that
    another job writes is waited for, `wait` seconds; `force_lock` takes it over from a process on another
    host that gives no sign of life. The rest is as in `run`.
    """
    with begin("resume", objects) as call:
        comm, path = call.comm, call.input_file(path)
        settings = comm.on_root(lambda: override_texts(overrides))
        comm.try_on_root(lambda: read_attributes(path))  # before a lock file is made
        call.lock(path, wait=wait, force=force_lock, tell=lambda text: warnings.warn(text, stacklevel=2))
        plan = comm.on_root(
            lambda: plan_resume(path, settings, trust=trust, given_by=GIVEN_BY, named=call.named)
        )
        notes = plan.notes + ([nothing_to_do(path, plan)] if plan.is_over and overrides else [])
        for note in notes if comm.is_root else ():
            warnings.warn(note, stacklevel=2)
        if not plan.is_over:
            call.watch(plan.config.run.stall_minutes, path)
            outcome = _carry_out(
                go_on(comm, plan, path, call.stop), on_evaluation, on_round, progress=progress
            )
            _conclude(call, outcome, path)
        return comm.on_root(lambda: load_run(path))


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
    out            folder of the result files; without one, on one node only, nothing is left on disk. Runs
                   that it holds already are not done again; other settings or objects are refused
    ranks_per_run  runs are done beside each other by groups of so many ranks
    objects        as in `run`, for all runs

    Runs that fail are an error once all others are done; results of the others are kept if there is `out`.
    Signals are as in `run`.
    """
    with begin("sweep", objects) as call:
        from fedmpi.experiments.sweep import job

        world = call.comm
        if not isinstance(ranks_per_run, int) or not 1 <= ranks_per_run <= world.size:
            raise UserError.on_all_ranks(
                f"ranks_per_run = {ranks_per_run}: MPI has {world.size} ranks; expected 1 to {world.size}"
            )
        points = world.on_root(lambda: points_of(sweep, call.named))
        folder = call.output_folder(out)
        screen = progress_bar("runs") if progress and world.is_root else None
        watched = SweepProgress(screen, folder, points) if screen else None
        call.watch(points[0].config.run.stall_minutes, folder / "sweep", is_sweep=True)
        with job.groups(world, ranks_per_run) as group:
            outcome = job.do_sweep(world, group, points, points, folder, call.stop, watched)
        if outcome.failures:
            told = "\n  ".join(f"{name}: {message}" for name, message in outcome.failures.items())
            raise UserError.on_all_ranks(f"{len(outcome.failures)} runs failed:\n  {told}", 1)
        table = world.on_root(lambda: load_runs(folder))
        left = f"stopped with {len(outcome.left)} of {len(points)} runs left"
        call.obey_signals(left)
        if outcome.was_stopped and world.is_root:
            warnings.warn(f"{left}: the time limit is near", stacklevel=2)
    return table


def check(config: ConfigSource, overrides: Settings = None, *, ranks: int = 1, **objects: Any) -> Preview:
    """Validate a config and say what it would do and cost on so many ranks, without training.

    The answer has the resolved config, notes on keys without effect, the sizes of clients and model, and a
    survey of who takes part; printed, it reads as `fedmpi check`.
    """
    from fedmpi.experiments.preview import preview

    if not isinstance(ranks, int) or ranks < 1:
        raise UserError(f"ranks = {ranks!r}: expected an integer >= 1")
    with begin_alone("check", objects) as named:
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

    if at is None and not measure:
        with begin_alone("advise", objects) as named:
            return advising.adviser_of(load_config(config, overrides, named)).report()
    with begin("advise", objects, listens=False) as call:
        comm = call.comm
        chosen = comm.on_root(lambda: load_config(config, overrides, call.named))
        listener = progress_bar("clients") if progress and comm.is_root else None
        known = advising.measure(comm, chosen, str(at) if at else None, listener)
        return comm.on_root(lambda: advising.adviser_of(chosen, known).report())


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


def _conclude(call: Call, outcome: Outcome, out: str | Path | None) -> None:
    """Collective. Raises what a signal asks for; warns where the run did not end as planned."""
    goes_on = f"; go on with fedmpi.resume({str(out)!r})" if out and outcome.status == "stopped" else ""
    where = f"stopped after round {outcome.completed:,}"
    call.obey_signals(where + goes_on)
    if outcome.divergence:
        found = outcome.divergence
        replay = f"; `{found.replay(out)}` does it again" if out else ""
        call.warn(f"{found.sentence}; {found.remedy}{replay}")
    elif outcome.status == "stopped" and not outcome.is_callback:
        call.warn(f"{where}: {outcome.stop_reason}{goes_on}")
