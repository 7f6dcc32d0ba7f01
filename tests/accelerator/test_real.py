"""What only a real GPU can show: memory over many rounds, and speed. `bash jobs/test.sh --device cuda`."""

from __future__ import annotations

import time
from unittest import mock

import numpy as np
import pytest
import torch

from fedmpi.simulation import gpu_client
from tests.accelerator.cases import DIRICHLET, LOOP
from tests.accelerator.conftest import IS_REAL
from tests.accelerator.runs import as_in_a_run, simulate
from tests.accelerator.test_budgets import PAPER

pytestmark = pytest.mark.skipif(not IS_REAL, reason="needs a real GPU: bash jobs/test.sh --device cuda")


@pytest.mark.parametrize("model", [(), PAPER], ids=["logistic", "CNN"])
def test_memory_over_200_rounds(comm, device, model):
    """Clients of many sizes: what 200 rounds hold is what 50 rounds held."""
    simulation = simulate(comm, device, (*model, *DIRICHLET), 50).simulation
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    with as_in_a_run(device):
        for t in range(50, 250):
            simulation.run_round(t)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= 1.2 * before + (64 << 20)


@pytest.mark.parametrize("model", [(), PAPER], ids=["logistic", "CNN"])
def test_steps_are_recorded(comm, device, model):
    """Otherwise every kernel is launched from Python; the reason is in the message."""
    trainer = simulate(comm, device, model, 8).simulation.training.trainer
    assert trainer.recordings.why_not == ""
    assert len(trainer.recordings) >= 1


def test_speed_of_the_papers_round(comm, device, capsys):
    """S = 10, I = 5, batch 16, without evaluation: told, not judged."""
    simulation = simulate(comm, device, PAPER, 10).simulation
    torch.cuda.synchronize()
    begin, rounds = time.perf_counter(), 100
    with as_in_a_run(device):
        for t in range(10, 10 + rounds):
            simulation.run_round(t)
        torch.cuda.synchronize()
    rate = rounds / (time.perf_counter() - begin)
    with capsys.disabled():
        print(
            f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}: "
            f"{rate:.1f} rounds/s of the paper's job on {comm.size} ranks; "
            f"{torch.cuda.max_memory_allocated() / 1e6:.0f} MB"
        )


def test_a_recording_that_fails_leaves_nothing_behind(comm, device):
    """A step that waits for the device: the run goes on unrecorded, and the next one is recorded."""
    whole = gpu_client.make_step

    def faulty(*args, **kwargs):
        step, update = whole(*args, **kwargs), args[2]["update"]
        return lambda *given: (step(*given), update[0, 0].item())

    with mock.patch.object(gpu_client, "make_step", faulty):
        ran = simulate(comm, device, (LOOP,), 8)
    assert ran.simulation.training.trainer.recordings.why_not
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    again = simulate(comm, device, (LOOP,), 8)
    assert again.simulation.training.trainer.recordings.why_not == ""
    assert np.array_equal(ran.trajectory[-1], again.trajectory[-1])
