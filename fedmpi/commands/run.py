"""`fedmpi run`: one simulation from config to result file, told in one function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmpi import mpi, validate
from fedmpi.conflicts import unused_keys
from fedmpi.errors import EXIT_DIVERGED, EXIT_DONE
from fedmpi.storage.reader import load_run
from fedmpi.storage.schema import DONE
from fedmpi.storage.writer import RunWriter, check_target
from fedmpi.terminal import Progress, bytes_text, duration

if TYPE_CHECKING:
    from fedmpi.simulation import Simulation


def run(config_path: str, out: str, overrides: Sequence[str], *, force: bool = False) -> int:
    """Collective. Simulate and write RUN.h5; returns the exit status, the same on all ranks."""
    path = Path(out)
    with mpi.session() as comm:
        # Rank 0 alone touches the config and the output; its findings and errors reach all ranks.
        config = comm.on_root(lambda: validate.load(config_path, overrides))
        comm.where(comm.is_root, lambda: check_target(path, force=force))

        from fedmpi.device import choose_device  # here, since torch takes seconds to load
        from fedmpi.provenance import describe_job
        from fedmpi.simulation import Simulation

        # Each rank loads its shard of the data and builds the model.
        device = comm.where(True, lambda: choose_device(config.run.device, comm.node_rank))
        attributes = describe_job(comm, config, device)
        simulation = Simulation(comm, config, device)
        if comm.is_root:
            print(_banner(simulation, attributes, unused_keys(config)), flush=True)
        simulation.writer = comm.where(
            comm.is_root, lambda: _create_result_file(path, attributes, simulation)
        )

        # All rounds, then where the time went.
        status = simulation.run(Progress(config.run.num_rounds, enabled=comm.is_root))
        phases = comm.gather({**simulation.clock.seconds, "in all": simulation.clock.elapsed})
        if comm.is_root:
            print(_summary(path, phases), flush=True)
    return EXIT_DONE if status == DONE else EXIT_DIVERGED


def _create_result_file(path: Path, attributes: dict[str, Any], simulation: Simulation) -> RunWriter:
    """The file with all that is known before the first round."""
    data, model = simulation.data, simulation.model
    attributes |= {"data_digest": data.digest, "model_digest": model.digest()}
    writer = RunWriter(path, attributes, model.describe(), simulation.state.global_params)
    clients = np.arange(data.partition.num_clients)
    writer.add(
        "clients",
        clients,
        data.partition.sizes,
        data.majority_labels,
        clients % simulation.comm.size,
    )
    writer.flush(simulation.state.global_params)
    return writer


def _banner(simulation: Simulation, attributes: dict[str, Any], notes: list[str]) -> str:
    """What is about to run, where, and how large it is."""
    config, data = simulation.config, simulation.data
    devices = attributes["device_names"]
    hosts = len(set(attributes["host_names"]))
    eta, interval = config.algorithm.amplification, config.algorithm.amplify_every
    lines = [
        f"fedmpi  {config.run.name}  (seed {config.run.seed})",
        f"  ranks    {len(devices)} on {hosts} host{'s' * (hosts > 1)}: "
        + ", ".join(f"{devices.count(name)} x {name}" for name in sorted(set(devices))),
        f"  data     {data.name}: {data.num_train:,} train, {data.num_test:,} test samples; "
        f"{data.partition.num_clients:,} clients, {config.data.partition}",
        f"  model    {config.model.name}: {simulation.model.num_params:,} parameters "
        f"({bytes_text(8 * simulation.model.num_params)} a reduction)",
        f"  who      {config.participation.availability} / {config.participation.selection}",
        f"  method   {config.algorithm.name}: gamma {config.algorithm.local_lr:g}, "
        f"I {config.algorithm.local_steps}, eta {eta:g}, P {interval}"
        + (f"; warm-up {config.warmup.num_rounds:,} rounds" if config.warmup else ""),
    ]
    return "\n".join(lines + [f"  note     {note}" for note in notes])


def _summary(path: Path, phases: list[dict[str, float]]) -> str:
    """How it went, where the time went on the average rank, and what was made."""
    results = load_run(path)
    total = float(np.mean([p["in all"] for p in phases]))
    known = ("local SGD", "lending", "reduction", "idle", "evaluation", "output")
    seconds = {name: float(np.mean([p.get(name, 0.0) for p in phases])) for name in known}
    seconds["other"] = total - sum(seconds.values())
    rounds = len(results.train)
    lines = [
        f"{results.status}: {rounds:,} rounds in {duration(total)} "
        f"({rounds / max(total - seconds['evaluation'], 1e-9):.1f} rounds/s without evaluation)",
        "  time     " + ", ".join(f"{name} {s / max(total, 1e-9):.0%}" for name, s in seconds.items()),
    ]
    last = results.eval.tail(1)
    if len(last):
        lines.append(f"  loss     train {last.train_loss.item():.4f}, test {last.test_loss.item():.4f}")
    if results.eval.test_accuracy.notna().any():
        best = results.eval.loc[results.eval.test_accuracy.idxmax()]
        lines.append(
            f"  accuracy test {last.test_accuracy.item():.4f}, "
            f"best {best.test_accuracy:.4f} at round {best['round']:.0f}"
        )
    lines.append(f"  file     {path} ({bytes_text(path.stat().st_size)})")
    return "\n".join(lines)
