"""Small result files for tests, made without a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.config import validate
from fedmpi.storage.writer import RunWriter
from tests.support.configs import SMALL

PARAMETERS = '[["weight", [2, 2]], ["bias", [1]]]'
INITIAL = np.array([0.0, 1.0, 2.0, 3.0, 4.0])


def attributes(*overrides: str, name: str = "small.toml") -> dict[str, Any]:
    """What a run stores about itself, with the small experiment's config."""
    config = validate.parse(SMALL, name, overrides)
    return {
        "config": config.to_toml(),
        "creator": "fedmpi 9.9",
        "run_id": "0123456789abcdef",
        "created_utc": "2024-02-29T12:00:00+00:00",
        "seed": config.run.seed,
        "num_ranks": 3,
        "mpi_library": "Some MPI 4.2",
        "device_names": ["cpu", "cpu", "Some GPU"],
        "host_names": ["node1", "node1", "node2"],
        "versions": '{"python": "3.11.0", "torch": "2.4.0"}',
        "data_digest": "d" * 64,
        "model_digest": "e" * 64,
    }


def create_run(path: Path, *overrides: str, name: str = "small.toml") -> RunWriter:
    """A result file of seven clients before its first round."""
    writer = RunWriter.create(path, attributes(*overrides, name=name), PARAMETERS, INITIAL)
    clients = np.arange(7)
    writer.add("clients", clients, 60 + clients, clients[::-1], clients % 3)
    writer.flush(INITIAL)
    return writer


def add_rounds(writer: RunWriter, first: int, last: int) -> None:
    """Rounds first <= t < last; clients t % 7 and (t + 3) % 7 take part."""
    for t in range(first, last):
        writer.add("train", t, 2, 0.5 / (t + 1), t % 3 == 2, 0.25 * (t + 1), 0.125, 0.0625, 0.03125)
        writer.add("participation", t, np.array([t % 7, (t + 3) % 7]), np.array([0.25, 0.75]), 2.5)


def always_run(path: Path, selection: str, *overrides: str, losses: Sequence[float]) -> Path:
    """A finished run of 28 rounds with one of seven clients in each, in turn or drawn at random."""
    writer = create_run(path, f"participation.selection={selection}", *overrides)
    draws = np.random.default_rng(1).integers(7, size=28)
    for t in range(28):
        client = t % 7 if selection == "permutation" else draws[t]
        writer.add("train", t, 1, 0.5, False, 0.25 * (t + 1), 0.125, 0.0625, 0.03125)
        writer.add("participation", t, np.array([client]), np.array([1.0]), 2.5)
    for t, loss in zip(np.linspace(0, 28, len(losses)).astype(int), losses, strict=True):
        writer.add("eval", t, loss, 0.5, loss, 0.5, 0.25 * t)
    writer.flush(INITIAL, status="done")
    return path


def finished_run(
    path: Path,
    *overrides: str,
    losses: Sequence[float] = (2.0, 1.5, 1.25),
    accuracies: Sequence[float] = (0.125, 0.5, 0.75),
    name: str = "small.toml",
) -> Path:
    """A finished run of six rounds; the given losses and accuracies are evenly spread over them."""
    writer = create_run(path, *overrides, name=name)
    add_rounds(writer, 0, 6)
    rounds = np.linspace(0, 6, len(losses)).astype(int)
    for t, loss, accuracy in zip(rounds, losses, accuracies, strict=True):
        writer.add("eval", t, loss, accuracy + 0.125, loss + 0.5, accuracy, 0.25 * t)
    writer.flush(INITIAL + 10, status="done")
    return path
