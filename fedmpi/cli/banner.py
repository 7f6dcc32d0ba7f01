"""What `fedmpi run` and `fedmpi resume` print at the start and at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmpi.config.compositions import names_text
from fedmpi.experiments.notes import notes_on
from fedmpi.mpi import placement
from fedmpi.mpi.launcher import login_node_note
from fedmpi.results.costs import cost_line, hint
from fedmpi.results.text import bytes_text, duration
from fedmpi.storage.columns import DEVICE_MEMORY, EVALUATION, IDLE, IN_ALL, MEMORY, PHASES, THEORY
from fedmpi.storage.reader import load_run

if TYPE_CHECKING:
    from fedmpi.config import Config
    from fedmpi.simulation.loop import Simulation


def _steps_text(config: Config) -> str:
    """I: a number, or the least and the most."""
    steps = config.algorithm.local_steps
    return str(steps) if isinstance(steps, int) else f"{min(steps)} to {max(steps)}"


def banner(simulation: Simulation, attributes: dict[str, Any]) -> str:
    """What is about to run, where, and how large it is."""
    config, data = simulation.config, simulation.data
    places = placement.from_json(attributes["placement"])
    hosts = len({place.host for place in places})
    eta, interval = config.algorithm.amplification, config.algorithm.amplify_every
    lines = [
        f"fedmpi  {config.run.name}  (seed {config.run.seed})",
        f"  ranks    {len(places)} on {hosts} host{'s' * (hosts > 1)}",
        *(f"           {line}" for line in placement.table(places)),
        f"  data     {data.name}: {data.num_train:,} train, {data.num_test:,} test samples; "
        f"{data.partition.num_clients:,} clients, {config.data.partition}",
        f"  model    {config.model.name}: {simulation.model.num_params:,} parameters "
        f"({bytes_text(8 * simulation.model.num_params)} a reduction)",
        f"  who      {names_text(config.participation.availability)} / {config.participation.selection}",
        f"  method   {config.algorithm.name}: gamma {config.algorithm.local_lr:g}, "
        f"I {_steps_text(config)}, eta {eta:g}, P {interval}"
        + (f"; warm-up {config.warmup.num_rounds:,} rounds" if config.warmup else ""),
    ]
    engine = simulation.engine
    lines.append(f"  engine   {engine.name}: {engine.reason}")
    if simulation.speed_up:
        lines.append(f"           {simulation.speed_up}")
    if simulation.completed:
        lines.append(f"  from     round {simulation.completed:,} of {config.run.num_rounds:,}")
    notes = notes_on(config) + placement.notes(places) + list(filter(None, [login_node_note()]))
    return "\n".join(lines + [f"  note     {note}" for note in notes])


def summary(path: Path, phases: list[dict[str, float]]) -> str:
    """How it went, where the time went on the average rank, and what was written."""
    results = load_run(path)
    total = float(np.mean([p[IN_ALL] for p in phases]))
    seconds = {name: float(np.mean([p.get(name, 0.0) for p in phases])) for name in PHASES}
    if not seconds[THEORY]:  # few runs record it
        del seconds[THEORY]
    seconds["other"] = total - sum(seconds.values())
    rounds = len(results.train)
    here = rounds - json.loads(results.attributes["legs"])[-1]["round"]
    lines = [
        f"{results.status}: {here:,} rounds in {duration(total)} "
        f"({here / max(total - seconds[EVALUATION], 1e-9):.1f} rounds/s without evaluation)",
        "  time     " + ", ".join(f"{name} {s / max(total, 1e-9):.0%}" for name, s in seconds.items()),
    ]
    if len(phases) > 1:
        idle = [p.get(IDLE, 0.0) / max(p[IN_ALL], 1e-9) for p in phases]
        shown = ", ".join(f"{share:.0%}" for share in idle[:16]) + (", ..." if len(idle) > 16 else "")
        lines.append(f"  idle     by rank {shown}; most {max(idle):.0%} on rank {int(np.argmax(idle))}")
    on_gpu = max(p.get(DEVICE_MEMORY, 0.0) for p in phases)
    lines.append(
        f"  memory   {max(p[MEMORY] for p in phases):,.0f} MB at most on a rank"
        + (f", {on_gpu:,.0f} MB on its GPU" if on_gpu else "")
    )
    lines.append(f"  cost     {cost_line(results)}")
    last = results.eval.tail(1)
    if len(last):
        lines.append(f"  loss     train {last.train_loss.item():.4f}, test {last.test_loss.item():.4f}")
    for name, metric in results.metrics.items():
        values = results.eval[name]
        if name.startswith("test_") and name != "test_loss" and values.notna().any():
            at = values.idxmax() if metric.better == "higher" else values.idxmin()
            lines.append(
                f"  {name.removeprefix('test_').replace('_', ' '):8} test {last[name].item():.4f}, "
                f"best {values[at]:.4f} at round {results.eval['round'][at]:.0f}"
            )
    lines.append(f"  file     {path} ({bytes_text(path.stat().st_size)})")
    lines += [f"  hint     {text}" for text in filter(None, [hint(results)])]
    return "\n".join(lines)
