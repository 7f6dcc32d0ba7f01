"""The net tests itself: faults planted into fedmpi are caught by the simulated device."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

from fedmpi.data import shard
from fedmpi.errors import ClientError
from fedmpi.models.engines.autograd import OneByOne
from fedmpi.mpi import pinned
from fedmpi.simulation import gpu_client, gpu_program
from fedmpi.simulation.gpu_aggregate import GpuWeightedSum
from tests.accelerator.cases import LOOP
from tests.accelerator.runs import plain_layouts, simulate

CPU = torch.device("cpu")
ROUNDS = 5  # enough to record and replay


def same_bits(comm, device, overrides) -> bool:
    """Whether the device still computes what the CPU does."""
    there = simulate(comm, device, overrides, ROUNDS)
    with plain_layouts():
        here = simulate(
            comm, CPU, (*overrides, f'algorithm.engine="{there.simulation.engine.name}"'), ROUNDS
        )
    return all(np.array_equal(x, y) for x, y in zip(there.trajectory, here.trajectory, strict=True))


def test_without_a_fault_all_is_well(comm, simulated):
    """What follows fails because of the fault."""
    assert same_bits(comm, simulated, ())
    assert same_bits(comm, simulated, (LOOP,))


def test_labels_left_on_the_cpu(comm, simulated):
    """Device mixing."""
    whole = shard.ClientData.__init__

    def faulty(self, *args, **kwargs):
        whole(self, *args, **kwargs)
        self.labels = self.labels.cpu()

    with (
        mock.patch.object(shard.ClientData, "__init__", faulty),
        pytest.raises((ClientError, RuntimeError), match="same device"),
    ):
        simulate(comm, simulated, ())


def test_numpy_without_waiting(comm, simulated):
    """A device tensor is not host memory."""
    with (
        mock.patch.object(GpuWeightedSum, "magnitudes", lambda self, rows: [rows[0].numpy()]),
        pytest.raises(TypeError, match="can't convert cuda:0"),
    ):
        simulate(comm, simulated, ())


def test_a_wait_inside_a_recording(comm, simulated):
    """Then nothing is recorded, the run says why, and the bits are right all the same."""
    whole = gpu_client._make_step

    def faulty(*args, **kwargs):
        step, update = whole(*args, **kwargs), args[2]["update"]
        return lambda *given: (step(*given), float(update[0, 0]))

    with mock.patch.object(gpu_client, "_make_step", faulty):
        ran = simulate(comm, simulated, (LOOP,), ROUNDS)
        assert (
            "not permitted when stream is capturing" in ran.simulation.training.trainer.recordings.why_not
        )
        assert sum(count["graph_launches"] for count in ran.counts) == 0
        assert same_bits(comm, simulated, (LOOP,))


def test_memory_freed_after_recording(comm, simulated):
    """A recording keeps addresses, not memory."""
    whole = gpu_program.Program.record

    def faulty(self, *args):
        whole(self, *args)
        self._first = None  # nobody else holds it

    with (
        mock.patch.object(gpu_program.Program, "record", faulty),
        pytest.raises(ClientError, match="freed since"),
    ):
        simulate(comm, simulated, (), ROUNDS)


def test_a_step_size_that_is_not_read_again(comm, simulated):
    """With a schedule the bits differ."""
    whole = gpu_client._make_step

    def faulty(gradients, *args):
        step = whole(gradients, *args)
        return lambda inputs, labels, *rates: step(inputs, labels, 0.1, -0.1)

    overrides = ('algorithm.lr_schedule="inverse"', LOOP)
    assert same_bits(comm, simulated, overrides)
    with mock.patch.object(gpu_client, "_make_step", faulty):
        assert not same_bits(comm, simulated, overrides)


def test_a_recording_that_leaves_a_trace(comm, simulated):
    """Steps of the warm-up that are not undone."""
    whole = gpu_program.Program.fill

    def faulty(self, group, draws):
        before = self._memory["update"].clone()
        whole(self, group, draws)
        self._memory["update"].copy_(before)

    with mock.patch.object(gpu_program.Program, "fill", faulty):
        assert not same_bits(comm, simulated, (LOOP,))


def test_streams_that_share_memory(comm, simulated):
    """Two clients side by side with the parameters of one model."""
    first = []

    def faulty(engine, model):
        first.append(OneByOne(model))
        return first[0]

    with (
        mock.patch.object(gpu_client, "make_gradients", faulty),
        pytest.raises(ClientError, match="touch the same memory"),
    ):
        simulate(comm, simulated, (LOOP,), ROUNDS)


@pytest.mark.parametrize("forgotten", ["fork", "join"])
def test_streams_that_do_not_wait(comm, simulated, forgotten):
    """Work beside a recording, or that nobody waits for."""
    whole = torch.cuda.Stream.wait_stream

    def faulty(self, other):
        is_fork = self in lanes
        if (forgotten == "fork") != is_fork:
            whole(self, other)

    ran = simulate(comm, simulated, (LOOP,), 1)
    trainer = ran.simulation.training.trainer
    lanes = [lane.stream for lane in trainer._lanes]
    with mock.patch.object(torch.cuda.Stream, "wait_stream", faulty):
        caught = ""
        try:
            for t in range(1, ROUNDS):
                ran.simulation.run_round(t)
        except ClientError as error:
            caught = str(error)
    assert "touch the same memory" in caught or "recording" in trainer.recordings.why_not


def test_a_copy_that_nobody_waited_for(comm, simulated):
    """Sums read from pinned memory too early are garbage."""
    with mock.patch.object(GpuWeightedSum, "_on_host", _without_waiting):
        simulation = simulate(comm, simulated, (), 1).simulation
        with mock.patch.object(simulation.training.weighted_sum, "_stays", False):
            x = simulation.training.weighted_sum.total(
                torch.ones(2, simulation.model.num_params, device=simulated), np.arange(2), np.arange(2)
            )
    assert not np.array_equal(x, np.full_like(x, 2.0))


def _without_waiting(self, totals):
    host = torch.empty(totals.shape, dtype=totals.dtype, pin_memory=True)
    host.copy_(totals, non_blocking=True)
    return host


def test_pinned_memory_written_too_early(simulated):
    """A second message before the first has left."""
    upload = pinned.Upload(torch.int64, simulated)
    upload.put(np.arange(5))
    upload._sent = None  # forget that a copy is under way
    upload.put(np.arange(5, 10))
    with pytest.raises(RuntimeError, match="pinned memory changed"):
        torch.cuda.synchronize()
