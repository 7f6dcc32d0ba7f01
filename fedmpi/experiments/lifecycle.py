"""The life of a run, for all that start one: the command line, sweeps, Python scripts and notebooks.

prepare -> start or go_on -> Simulation.run; or `begin` for several runs in lockstep, some of which may fork
from another run. Nothing here prints; notes for people are returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.config import Config, may_change, validate
from fedmpi.config.user_code import require_same_objects, require_stored_names
from fedmpi.errors import UserError
from fedmpi.errors.wording import setting
from fedmpi.experiments.signature import require_own
from fedmpi.experiments.tensorboard import require_tensorboard
from fedmpi.mpi import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.storage.checkpoint import Checkpoint, newest_checkpoint, read_part
from fedmpi.storage.columns import DIVERGED
from fedmpi.storage.reader import read_attributes

if TYPE_CHECKING:
    import torch

    from fedmpi.config.keys import RunConfig
    from fedmpi.experiments.result_file import ResultFile
    from fedmpi.simulation.loop import Simulation
    from fedmpi.simulation.stopping import StopRequest


@dataclass(frozen=True, kw_only=True)
class ResumePlan:
    """How to continue an earlier run."""

    config: Config
    checkpoint: Checkpoint | None  # None: from round 0
    stored: dict[str, Any]  # attributes of the result file
    notes: list[str]

    @property
    def completed(self) -> int:
        """Rounds that need not be repeated."""
        return self.checkpoint.completed if self.checkpoint else 0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stored["status"] == DIVERGED or self.completed >= self.config.run.num_rounds


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A simulation with the file that its results go to."""

    simulation: Simulation
    attributes: dict[str, Any]  # provenance
    file: ResultFile


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """How one run of a pack begins: anew; or from a checkpoint of its own file, or of another one."""

    config: Config
    path: Path
    stop: StopRequest | None = None
    plan: ResumePlan | None = None
    source: Path | None = None  # the file that the plan is of, if it is another run's


def prepare(
    comm: Comm, config: Config, stop: StopRequest | None = None
) -> tuple[Simulation, dict[str, Any]]:
    """Collective. Each rank loads its data and builds the model; returns the job's attributes too."""
    return prepare_pack(comm, [config], [stop])[0]


def prepare_pack(
    comm: Comm, configs: Sequence[Config], stops: Sequence[StopRequest | None]
) -> list[tuple[Simulation, dict[str, Any]]]:
    """Collective. As `prepare`, for runs that go on in lockstep; PackError if they cannot."""
    from fedmpi.experiments.provenance import describe_job  # here, since torch takes seconds to load
    from fedmpi.simulation.pack import make_pack

    device = comm.try_on_all(lambda: device_of(comm, configs[0].run))
    return [
        (simulation, describe_job(comm, simulation.config, device, len(configs)))
        for simulation in make_pack(comm, configs, device, stops)
    ]


def begin(comm: Comm, beginnings: Sequence[Beginning], *, with_checkpoints: bool = True) -> list[Prepared]:
    """Collective. Runs of a pack, each with its file, which exists when this returns."""
    pulse.here.starts()
    wants_events = any(beginning.config.run.tensorboard for beginning in beginnings)
    comm.try_on_root(require_tensorboard if wants_events else lambda: None)
    made = prepare_pack(comm, [b.config for b in beginnings], [b.stop for b in beginnings])
    return [
        _with_file(comm, beginning, simulation, attributes, with_checkpoints=with_checkpoints)
        for beginning, (simulation, attributes) in zip(beginnings, made, strict=True)
    ]


def start(
    comm: Comm,
    config: Config,
    path: Path,
    stop: StopRequest | None = None,
    *,
    with_checkpoints: bool = True,
) -> Prepared:
    """Collective. A new run; its file exists when this returns."""
    beginning = Beginning(config=config, path=path, stop=stop)
    return begin(comm, [beginning], with_checkpoints=with_checkpoints)[0]


def go_on(comm: Comm, plan: ResumePlan, path: Path, stop: StopRequest | None = None) -> Prepared:
    """Collective. An earlier run, restored from its checkpoint, with its file reopened."""
    return begin(comm, [Beginning(config=plan.config, path=path, stop=stop, plan=plan)])[0]


def _with_file(
    comm: Comm,
    beginning: Beginning,
    simulation: Simulation,
    attributes: dict[str, Any],
    *,
    with_checkpoints: bool,
) -> Prepared:
    """Collective. Restore what the run begins with, and make or reopen its file."""
    from fedmpi.experiments.result_file import ResultFile

    path, plan = beginning.path, beginning.plan
    is_fork = beginning.source is not None
    if is_fork and comm.on_root(lambda: simulation.digests() != plan.checkpoint.digests):
        is_fork, plan = False, None  # another run's data or model: begin anew

    if plan is None:
        file = ResultFile.create(simulation, path, attributes, with_checkpoints=with_checkpoints)
    elif is_fork:
        # The other run's state under this run's id. The method's state starts afresh, at this x: the rounds
        # before the fork are plain FedAvg.
        own = replace(plan.checkpoint, run_id=attributes["run_id"], method=simulation.extras, parts=0)
        simulation.restore(own, lambda rank: [])
        simulation.state = simulation.method.begin(simulation.state)
        own = replace(own, method=simulation.extras)
        file = ResultFile.fork(simulation, path, attributes, beginning.source, own)
    else:
        # The same data, model and participation as before; then its state.
        checkpoint, stored = plan.checkpoint, plan.stored
        comm.try_on_root(lambda: check_digests(simulation, checkpoint, stored))
        if checkpoint:
            simulation.restore(checkpoint, lambda rank: read_part(path, checkpoint, rank))
        file = ResultFile.reopen(simulation, path, attributes, stored, checkpoint)
    return Prepared(simulation=simulation, attributes=attributes, file=file)


def plan_resume(
    path: Path,
    overrides: Sequence[str],
    *,
    trust: bool = False,
    given_by: str = "--set",
    named: Mapping[str, str] | None = None,
) -> ResumePlan:
    """Rank 0: the config to continue with, the checkpoint to start from, the file's attributes, notes.

    `given_by` is where messages say that overrides stand; `named` are the objects passed for this run.
    """
    # Only settings that leave the results alone may change.
    stored = read_attributes(path)
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in may_change():
            raise UserError(
                f"{given_by} {override}: cannot change in a resumed run, the results would mix two "
                f"experiments; start a new run, or change one of {', '.join(may_change())}"
            )

    # Code that the file names is run only if the user wrote the file, or trusts it.
    config = validate.parse(stored["config"], f"{path} (its config)", overrides, given_by)
    require_stored_names(config, named or {}, path)
    if not trust:
        require_own(config, stored, path)
        require_same_objects(stored, path)

    # Without a checkpoint the run starts again.
    checkpoint, notes = newest_checkpoint(path, stored["run_id"])
    if checkpoint is None and stored["status"] != DIVERGED:
        notes.append(f"{path} has no usable checkpoint: starting again from round 0")
    return ResumePlan(config=config, checkpoint=checkpoint, stored=stored, notes=notes)


def nothing_to_do(path: Path, plan: ResumePlan) -> str:
    """The message about a run that is over."""
    if plan.stored["status"] == DIVERGED:
        return f"{path}: diverged, it cannot be continued; start a new run with a smaller local_lr"
    return f"{path}: done with {plan.completed:,} rounds; extend it with " + setting("run.num_rounds=...")


def device_of(comm: Comm, run: RunConfig) -> torch.device:
    """Where this rank computes; refused if it is not there, or if MPI cannot send from it."""
    from fedmpi.mpi.cuda_aware import require_cuda_aware
    from fedmpi.mpi.device import choose_device

    device = choose_device(
        run.device, comm.device_rank, run.threads, deterministic=run.deterministic, tf32=run.tf32
    )
    require_cuda_aware(device, run.cuda_aware and comm.size > 1)
    return device


def check_digests(simulation: Simulation, checkpoint: Checkpoint | None, stored: dict[str, Any]) -> None:
    """Rank 0: refuse to continue with different data, a different model or a different schedule."""
    names = {"data": "data split", "model": "initial model", "participation": "schedule or trace"}
    for name, now in simulation.digests().items():
        expected = checkpoint.digests[name] if checkpoint else stored[f"{name}_digest"]
        if now != expected:
            raise UserError(
                f"the run was made with {names[name]} {expected[:8]}..., now it is {now[:8]}...: "
                "the files or the software behind it changed; start a new run"
            )
