"""`fedmpi run` and `fedmpi resume`: a simulation from config or checkpoint to result file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmpi import mpi
from fedmpi.cli.banner import banner, summary
from fedmpi.cli.progress import Progress
from fedmpi.config import MAY_CHANGE, Config, validate
from fedmpi.errors import EXIT_DIVERGED, EXIT_DONE, EXIT_STOPPED, UserError
from fedmpi.experiments.recorder import Recorder
from fedmpi.experiments.signature import named_functions, require_own, sign
from fedmpi.experiments.tensorboard import remove_events, require_tensorboard
from fedmpi.simulation.stopping import StopRequest, reason
from fedmpi.storage.checkpoint import Checkpoint, newest_checkpoint, remove_checkpoints
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.reader import read_attributes
from fedmpi.storage.schema import DIVERGED, DONE, STOPPED
from fedmpi.storage.writer import RunWriter, check_target

if TYPE_CHECKING:
    from fedmpi.simulation.loop import Simulation

_EXIT = {DONE: EXIT_DONE, DIVERGED: EXIT_DIVERGED, STOPPED: EXIT_STOPPED}


def run(config_path: str, out: str, overrides: Sequence[str], *, force: bool = False) -> int:
    """Collective. Simulate and write RUN.h5; returns the exit status, the same on all ranks."""
    path = Path(out)
    stop = StopRequest().listen()
    with mpi.session() as comm, contextlib.ExitStack() as held:
        # Rank 0 alone touches the config and the output; its findings and errors reach all ranks.
        config = comm.on_root(lambda: validate.load(config_path, overrides))
        comm.where(comm.is_root, lambda: held.enter_context(writer_lock(path)))
        comm.where(comm.is_root, lambda: check_target(path, force=force))

        simulation, attributes = prepare(comm, config, path, stop)
        comm.where(comm.is_root, lambda: record_anew(path, attributes, simulation))
        status = carry_out(simulation, attributes, path)
    return _EXIT[status]


def resume(run_path: str, overrides: Sequence[str], *, trust: bool = False) -> int:
    """Collective. Go on from the newest good checkpoint, on any number of ranks.

    `trust` allows functions that the file's config names, if somebody else wrote it.
    """
    path = Path(run_path)
    stop = StopRequest().listen()
    with mpi.session() as comm, contextlib.ExitStack() as held:
        comm.where(comm.is_root, lambda: read_attributes(path))  # before a lock file is made
        comm.where(comm.is_root, lambda: held.enter_context(writer_lock(path)))
        plan = comm.on_root(lambda: plan_resume(path, overrides, trust=trust))
        if comm.is_root:
            print("".join(f"note: {note}\n" for note in plan.notes), end="")
        if plan.is_over:
            if comm.is_root:
                print(_nothing_to_do(path, plan.stored["status"], plan.completed))
            return EXIT_DIVERGED if plan.stored["status"] == DIVERGED else EXIT_DONE
        simulation, attributes = take_up(comm, plan, path, stop)
        status = carry_out(simulation, attributes, path)
    return _EXIT[status]


@dataclass(frozen=True)
class ResumePlan:
    """How an earlier run goes on."""

    config: Config
    checkpoint: Checkpoint | None  # None: from round 0
    stored: dict[str, Any]  # attributes of the result file
    notes: list[str]

    @property
    def completed(self) -> int:
        """Rounds that need not be done again."""
        return self.checkpoint.completed if self.checkpoint else 0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stored["status"] == DIVERGED or self.completed >= self.config.run.num_rounds


def take_up(
    comm: mpi.Comm, plan: ResumePlan, path: Path, stop: StopRequest | None = None
) -> tuple[Simulation, dict[str, Any]]:
    """Collective. The simulation as its checkpoint left it, with its file open."""
    simulation, attributes = prepare(comm, plan.config, path, stop)
    stored, checkpoint = plan.stored, plan.checkpoint
    simulation.run_id = stored["run_id"]
    comm.where(comm.is_root, lambda: _check_digests(simulation, checkpoint, stored))
    if checkpoint:
        simulation.restore(checkpoint)
    comm.where(comm.is_root, lambda: _record_on(path, attributes, stored, simulation, checkpoint))
    return simulation, attributes


def prepare(
    comm: mpi.Comm, config: Config, path: Path | None = None, stop: StopRequest | None = None
) -> tuple[Simulation, dict[str, Any]]:
    """Collective. Each rank loads its shard of the data and builds the model; and who they all are."""
    from fedmpi.experiments.provenance import describe_job
    from fedmpi.mpi.device import choose_device  # here, since torch takes seconds to load
    from fedmpi.simulation.loop import Simulation

    wants_events = path is not None and config.run.tensorboard
    comm.where(comm.is_root and wants_events, require_tensorboard)
    run = config.run
    device = comm.where(True, lambda: choose_device(run.device, comm.device_rank, run.threads))
    simulation = Simulation(comm, config, device, stop)
    attributes = describe_job(comm, simulation.config, device)
    simulation.path, simulation.run_id = path, attributes["run_id"]
    return simulation, attributes


def carry_out(simulation: Simulation, attributes: dict[str, Any], path: Path) -> str:
    """Collective. All rounds that are left, with what a person wants to see; returns the status."""
    comm, config = simulation.comm, simulation.config
    if comm.is_root:
        print(banner(simulation, attributes), flush=True)
    simulation.stop.limit(config.run.max_minutes)
    progress = Progress(config.run.num_rounds, enabled=comm.is_root, done=simulation.completed)
    status = simulation.run(progress)
    if comm.is_root:
        print(summary(path, simulation.phases), flush=True)
        if status == STOPPED:
            print(
                f"stopped after round {simulation.completed:,} ({reason(simulation.stop_code)}); "
                f"go on with: fedmpi resume {path}",
                flush=True,
            )
    return status


def record_anew(path: Path, attributes: dict[str, Any], simulation: Simulation) -> None:
    """Rank 0: create the file with all that is known before the first round."""
    data, model = simulation.data, simulation.model
    digests = {f"{name}_digest": value for name, value in simulation.digests().items()}
    attributes = attributes | digests | {"signature": signature(simulation.config, attributes["run_id"])}
    remove_checkpoints(path)
    remove_events(path)
    writer = RunWriter.create(path, attributes, model.describe(), simulation.state.global_params)
    clients = np.arange(data.partition.num_clients)
    owners = clients % simulation.comm.size
    writer.add("clients", clients, data.partition.sizes, data.majority_labels, owners)
    writer.flush(simulation.state.global_params)
    simulation.recorder = Recorder(writer, simulation.config.run, simulation.clock)


def _record_on(
    path: Path,
    attributes: dict[str, Any],
    stored: dict[str, Any],
    simulation: Simulation,
    checkpoint: Checkpoint | None,
) -> None:
    """Rank 0: open the file again, cut back to what the checkpoint names."""
    rows = checkpoint.rows if checkpoint else {"clients": simulation.data.partition.num_clients}
    run_id = stored["run_id"]
    leg = json.loads(attributes["legs"])[0] | {"round": simulation.completed}
    changed = attributes | {
        "run_id": run_id,
        "created_utc": stored["created_utc"],
        "legs": json.dumps([*json.loads(stored["legs"]), leg]),
        "signature": signature(simulation.config, run_id),
    }
    if not simulation.config.run.tensorboard:
        remove_events(path)  # they may tell of rounds that are cut back
    writer = RunWriter.reopen(path, rows, changed)
    simulation.recorder = Recorder(writer, simulation.config.run, simulation.clock)


def signature(config: Config, run_id: str) -> str:
    """Only a config that names code needs one."""
    return sign(config.to_toml(), run_id) if named_functions(config) else ""


def plan_resume(path: Path, overrides: Sequence[str], *, trust: bool = False) -> ResumePlan:
    """Rank 0: the config to go on with, the checkpoint to start from, the file's attributes, notes."""
    stored = read_attributes(path)
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in MAY_CHANGE:
            raise UserError(
                f"--set {override}: cannot change when a run goes on, the results would mix two "
                f"experiments; start a new run, or change one of {', '.join(MAY_CHANGE)}"
            )
    config = validate.parse(stored["config"], f"{path} (its config)", overrides)
    if not trust:
        require_own(config, stored, path)
    checkpoint, notes = newest_checkpoint(path, stored["run_id"])
    if checkpoint is None and stored["status"] != DIVERGED:
        notes.append(f"{path} has no usable checkpoint: starting again from round 0")
    return ResumePlan(config, checkpoint, stored, notes)


def _nothing_to_do(path: Path, status: str, completed: int) -> str:
    if status == DIVERGED:
        return f"{path}: diverged, there is nothing to go on with; start a new run with a smaller local_lr"
    return f"{path}: done with {completed:,} rounds; extend it with --set run.num_rounds=..."


def _check_digests(simulation: Simulation, checkpoint: Checkpoint | None, stored: dict[str, Any]) -> None:
    """Rank 0: refuse to go on with other data, another model or another schedule."""
    names = {"data": "data split", "model": "initial model", "participation": "schedule or trace"}
    for name, seen in simulation.digests().items():
        expected = checkpoint.digests[name] if checkpoint else stored[f"{name}_digest"]
        if seen != expected:
            raise UserError(
                f"the run was made with {names[name]} {expected[:8]}..., now it is {seen[:8]}...: "
                "the files or the software behind it changed; start a new run"
            )
