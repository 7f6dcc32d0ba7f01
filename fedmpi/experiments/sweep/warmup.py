"""Runs that share a warm-up do it once, in a separate file, and fork from its checkpoint.

The warm-up is plain FedAvg, so it depends neither on the method nor on its rates. Invariant: a forked run
has the same bits and rows as the same run without a fork.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fedmpi.config import Config
from fedmpi.errors import UserError
from fedmpi.experiments.lifecycle import Beginning, ResumePlan, plan_resume
from fedmpi.experiments.sweep.points import Point, experiment
from fedmpi.mpi import Comm
from fedmpi.simulation.outcome import Listener, Outcome
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.columns import DIVERGED
from fedmpi.storage.files import write_contended
from fedmpi.storage.lock import writer_lock

# Of [algorithm], what the warm-up uses too. Of [run], what decides which rows and models are stored.
_USED = ("local_steps", "local_steps_law", "batch_size", "engine", "clip_norm")
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
    """Stops after a number of rounds, or when the job has to stop."""

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


class Warmup:
    """The remaining rounds of a warm-up, as a member of a pack."""

    def __init__(
        self, group: Comm, folder: Path, name: str, config: Config, stop: StopRequest, listener: Listener
    ) -> None:
        self._group, self._folder, self._name, self._stop = group, folder, name, stop
        self._path, self._rounds = folder / f"{name}.h5", config.warmup_rounds
        self._plain = replace(config.plain(), run=replace(config.run, name=name, tensorboard=False))
        self.listener = listener

    def begin(self, held: contextlib.ExitStack) -> Beginning | None:
        """Collective. Anew, or from its checkpoint."""
        group, path, rounds = self._group, self._path, self._rounds
        group.try_on_root(lambda: held.enter_context(writer_lock(path)))
        if not group.on_root(path.exists):
            return Beginning(config=self._plain, path=path, stop=_StopAfter(self._stop, rounds))
        plan = group.on_root(lambda: plan_resume(path, [], trust=True))
        if plan.completed >= rounds:
            self._note(plan.completed)
            return None
        # Only the engine chosen is taken from the file: code is named by our own config alone.
        config = self._plain.with_engine(plan.config.algorithm.engine)
        stop = _StopAfter(self._stop, rounds - plan.completed)
        return Beginning(config=config, path=path, stop=stop, plan=replace(plan, config=config))

    def ended(self, result: Outcome | Exception | None) -> None:
        """Record the number of rounds when it is over; after an error each run does its own warm-up."""
        if isinstance(result, Exception) or result is None:
            return
        if result.status == DIVERGED or result.completed == self._rounds:
            self._note(result.completed)

    def _note(self, completed: int) -> None:
        if self._group.is_root:
            text = json.dumps({"rounds": completed})
            write_contended(self._folder / f"{self._name}.json", text.encode())


def plan_fork(folder: Path, name: str, config: Config) -> ResumePlan | None:
    """Rank 0: the warm-up to start from; None if it cannot be used, then the run does its own."""
    try:
        plan = plan_resume(folder / f"{name}.h5", [], trust=True)
    except UserError:
        return None
    return plan if plan.completed == config.warmup_rounds else None
