"""A case on the device and on the CPU."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch

from fedmpi.config import validate
from fedmpi.models import engines
from fedmpi.models.engines import forward
from fedmpi.mpi import Comm
from fedmpi.mpi.device import choose_device, settings_restored
from fedmpi.simulation import loop
from fedmpi.simulation.evaluate import Look, look_all
from fedmpi.simulation.loop import Simulation
from tests.accelerator import simulated_gpu
from tests.accelerator.cases import BASE


@dataclass
class Ran:
    """What came out of a run."""

    simulation: Simulation
    trajectory: list[np.ndarray]  # x_0 ... x_T
    evaluated: tuple[float, float]
    counts: list[Counter]  # of each round


def simulate(
    comm: Comm, device: torch.device, overrides: tuple[str, ...], rounds: int | None = None
) -> Ran:
    """Rounds without a file."""
    config = validate.parse(BASE, "base.toml", overrides)
    with as_in_a_run(device):
        simulation = Simulation(comm, config, device)
        trajectory, counts = [np.array(simulation.global_params)], []
        for t in range(rounds or config.run.num_rounds):
            simulated_gpu.reset()
            simulation.run_round(t)
            counts.append(Counter(simulated_gpu.counts))
            trajectory.append(np.array(simulation.global_params))
        evaluated = look_at_test(simulation)
    return Ran(simulation, trajectory, evaluated, counts)


def look_at_test(simulation: Simulation) -> tuple[float, float]:
    """Collective. Loss and accuracy of x on the test set."""
    evaluator = simulation.observer.on_test
    look_all(simulation.comm, [Look(simulation.state.global_params, [evaluator])])
    return evaluator.found


@contextmanager
def as_in_a_run(device: torch.device):
    """torch's settings as a run has them."""
    with settings_restored():
        choose_device(device.type, 0)
        yield


@contextmanager
def plain_layouts():
    """The CPU's own memory layouts and machine code round differently: without them."""
    with (
        mock.patch.object(loop, "speed_up", return_value=""),
        mock.patch.object(engines, "may_compile", return_value=False),
        mock.patch.object(forward, "may_compute_outputs", return_value=False),
    ):
        yield
