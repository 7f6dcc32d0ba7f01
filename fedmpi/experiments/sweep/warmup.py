"""Runs that share a warm-up do it once, into a file of its own, and fork from its checkpoint.

The warm-up is plain FedAvg, so it depends neither on the method nor on its rates. Invariant: a run that
forked has the bits and the rows of the same run alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fedmpi.cli.progress import Progress
from fedmpi.cli.run import ResumePlan, plan_resume, prepare, record_anew, signature, take_up
from fedmpi.config import Config
from fedmpi.errors import UserError
from fedmpi.experiments.recorder import Recorder
from fedmpi.experiments.sweep.points import Point, experiment
from fedmpi.mpi import Comm
from fedmpi.simulation.loop import Simulation
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.checkpoint import Checkpoint
from fedmpi.storage.files import write_contended, write_whole
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.writer import RunWriter

# Of [algorithm], what the warm-up uses too. Of [run], what decides which rows and models are stored.
_USED = ("local_steps", "batch_size", "engine", "clip_norm")
_CADENCES = ("eval_every", "eval_train_every", "record_params_every")


def shared_warmups(points: list[Point]) -> dict[int, str]:
    """Name of the warm-up for each run, by index, that shares it with another run."""
    names = {point.index: _name(point.config) for point in points if _is_shareable(point.config)}
    counts = Counter(names.values())
    return {index: name for index, name in names.items() if counts[name] > 1}


def _is_shareable(config: Config) -> bool:
    return 0 < config.warmup_rounds < config.run.num_rounds


def _name(config: Config) -> str:
    used = {
        key: value
        for key, value in experiment(config).items()
        if not key.startswith("algorithm.") or key.partition(".")[2] in _USED
    }
    used |= {key: getattr(config.run, key) for key in _CADENCES}
    used |= {"schedule": config.participation.schedule, "trace": config.participation.trace}
    digest = hashlib.sha256(repr(sorted(used.items(), key=lambda item: item[0])).encode()).hexdigest()
    return f"warmup-{digest[:16]}"


class _StopAfter(StopRequest):
    """Stops after so many rounds, or when the job has to."""

    def __init__(self, outer: StopRequest, rounds: int) -> None:
        super().__init__()
        self._outer, self._left = outer, rounds

    def round_done(self) -> None:
        self._outer.round_done()
        self._left -= 1

    @property
    def code(self) -> int:
        return self._outer.code or int(self._left <= 1)


def is_ready(folder: Path, name: str) -> bool:
    """Whether the warm-up was done, with or without success."""
    return (folder / f"{name}.json").exists()


def do_warmup(
    group: Comm, folder: Path, name: str, config: Config, stop: StopRequest, progress: Progress
) -> None:
    """Collective. The rounds of a warm-up that are left; notes how many there are when it is over."""
    path, rounds = folder / f"{name}.h5", config.warmup_rounds
    plain = replace(config.plain(), run=replace(config.run, name=name, tensorboard=False))
    with contextlib.ExitStack() as held:
        group.where(group.is_root, lambda: held.enter_context(writer_lock(path)))
        if group.on_root(path.exists):
            plan = group.on_root(lambda: plan_resume(path, [], trust=True))
            # Of the file only the decided engine is taken: code is named by our own config alone.
            plan = replace(plan, config=plain.with_engine(plan.config.algorithm.engine))
            simulation, _ = take_up(group, plan, path, stop)
        else:
            simulation, attributes = prepare(group, plain, path, stop)
            group.where(group.is_root, lambda: record_anew(path, attributes, simulation))
        is_diverged = False
        if simulation.completed < rounds:
            simulation.stop = _StopAfter(stop, rounds - simulation.completed)
            is_diverged = simulation.run(progress) == "diverged"
        if group.is_root and (is_diverged or simulation.completed == rounds):
            write_contended(folder / f"{name}.json", json.dumps({"rounds": simulation.completed}).encode())


def plan_fork(folder: Path, name: str, config: Config) -> ResumePlan | None:
    """Rank 0: the warm-up to start from; None if it cannot be used, then the run does it by itself."""
    try:
        plan = plan_resume(folder / f"{name}.h5", [], trust=True)
    except UserError:
        return None
    return plan if plan.completed == config.warmup_rounds else None


def fork(
    group: Comm, plan: ResumePlan, source: Path, config: Config, path: Path, stop: StopRequest
) -> Simulation | None:
    """Collective. A new run that begins where the warm-up ended; None if it does not fit after all."""
    simulation, attributes = prepare(group, config, path, stop)
    checkpoint = plan.checkpoint
    if group.on_root(lambda: simulation.digests() != checkpoint.digests):
        return None
    own = replace(checkpoint, run_id=simulation.run_id, method=dict(simulation.state.extras), parts=0)
    simulation.restore(own)
    group.where(group.is_root, lambda: _record(simulation, attributes, source, path, own))
    return simulation


def _record(
    simulation: Simulation, attributes: dict, source: Path, path: Path, checkpoint: Checkpoint
) -> None:
    """Rank 0: the rows of the warm-up under this run's name."""
    (leg,) = json.loads(attributes["legs"])
    digests = {f"{name}_digest": value for name, value in simulation.digests().items()}
    changed = (
        attributes
        | digests
        | {
            "legs": json.dumps([leg | {"round": checkpoint.completed}]),
            "signature": signature(simulation.config, attributes["run_id"]),
        }
    )
    write_whole(path, source.read_bytes())
    writer = RunWriter.reopen(path, checkpoint.rows, changed)
    simulation.recorder = Recorder(writer, simulation.config.run, simulation.clock)
