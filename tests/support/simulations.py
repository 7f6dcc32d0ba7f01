"""Runs of the simulator inside a test, on whatever number of ranks it has."""

from __future__ import annotations

import atexit
from pathlib import Path

import numpy as np
import torch

from fedmpi.config import Config, validate
from fedmpi.data.loading import load_shards
from fedmpi.data.shard import ClientData, DataInfo, Work
from fedmpi.experiments.lifecycle import start
from fedmpi.mpi import Comm
from fedmpi.simulation.loop import Simulation
from fedmpi.storage.reader import Run, load_run


def simulate(comm: Comm, text: str, overrides: tuple[str, ...] = ()) -> tuple[Simulation, list[np.ndarray]]:
    """Run a config; x_0, x_1, ..., x_T."""
    config = validate.parse(text, "test.toml", overrides)
    simulation = Simulation(comm, config, torch.device("cpu"))
    trajectory = [simulation.state.global_params.copy()]
    for t in range(config.run.num_rounds):
        simulation.run_round(t)
        trajectory.append(simulation.state.global_params.copy())
    return simulation, trajectory


def write_schedule(comm: Comm, path: Path, q: np.ndarray) -> None:
    """Q as a file, for all ranks."""
    if comm.is_root:
        rows = [f"{t},{n},{float(q[t, n])!r}" for t, n in zip(*np.nonzero(q), strict=True)]
        path.write_text("\n".join(["round,client,weight", *rows]) + "\n")
    comm.barrier()  # the others wait for the file


def random_q(seed: int, rounds: int, clients: int) -> np.ndarray:
    """Any weights at all: sparse, not summing to one, some rounds without anybody."""
    draws = np.random.default_rng(seed)
    q = draws.random((rounds, clients)) * (draws.random((rounds, clients)) < 0.3)
    q[draws.random(rounds) < 0.2] = 0
    return q


def single_rank() -> Comm:
    """This process by itself, whatever started it."""
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init()
        atexit.register(MPI.Finalize)
    return Comm(MPI.COMM_SELF)


def run_to_file(config: Config, path: Path) -> Run:
    """The results of a whole run on one rank, read from its file."""
    prepared = start(single_rank(), config, path)
    prepared.simulation.run(prepared.file)
    return load_run(path)


def shard_of(config: Config) -> tuple[ClientData, DataInfo]:
    """The clients' data on one rank."""
    shards = load_shards(single_rank(), config, torch.device("cpu"))
    return shards.clients, shards.info


def minibatches(data: ClientData, client: int, drawn: int, count: int, samples=None) -> list:
    """The (inputs, labels) of each local step of one client, as tensors of their own."""
    steps = data.minibatches([Work(data, client, drawn, samples)], count)
    return [(inputs[0].clone(), labels[0].clone()) for inputs, labels in steps]
