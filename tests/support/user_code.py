"""Models and availabilities that misbehave on request, for the launch tests."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn

from fedmpi.methods import Method
from fedmpi.storage import rows, segments


def on_chosen_rank() -> bool:
    """True on the rank that FEDMPI_TEST_RANK names."""
    from mpi4py import MPI

    return str(MPI.COMM_WORLD.rank) == os.environ.get("FEDMPI_TEST_RANK")


def note_fault() -> None:
    """Leave a file that tells a test when the fault began."""
    Path("fault").touch()


class Faulty(nn.Module):
    """Logistic regression that fails in training in the way FEDMPI_TEST_FAULT names.

    It does so on one rank, after three calls, or FEDMPI_TEST_CALLS.
    """

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, num_classes)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        if (
            self.training
            and self.calls > int(os.environ.get("FEDMPI_TEST_CALLS", "3"))
            and on_chosen_rank()
        ):
            fault = os.environ["FEDMPI_TEST_FAULT"]
            note_fault()
            if fault == "raise":
                raise RuntimeError("the dog ate the minibatch")
            if fault == "exit":
                os._exit(9)
            if fault == "disk":
                os.fsync = lambda descriptor: time.sleep(3600)
            if fault == "nan":
                return self.layer(inputs.flatten(1)) * float("nan")
        return self.layer(inputs.flatten(1))


def faulty_model(input_shape, num_classes):
    """For model.name."""
    return Faulty(int(torch.tensor(input_shape).prod()), num_classes)


def model_that_fails_on_one_rank(input_shape, num_classes):
    """Raises while the model is built, on one rank only."""
    if on_chosen_rank():
        note_fault()
        raise FileNotFoundError("weights.pt")
    return faulty_model(input_shape, num_classes)


class Slow(Faulty):
    """Logistic regression that sleeps FEDMPI_TEST_SLEEP seconds a step, and as long as `hold` exists."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(float(os.environ.get("FEDMPI_TEST_SLEEP", "0")))
            while Path("hold").exists():
                Path("held").touch()
                time.sleep(0.02)
        return self.layer(inputs.flatten(1))


def slow_model(input_shape, num_classes):
    """For model.name: a run that can be killed in time; with FEDMPI_TEST_SEGMENTS, in short segments."""
    if "FEDMPI_TEST_SEGMENTS" in os.environ:
        rows._CHUNK_ROWS, segments._MOST_BYTES = 4, 300
    return Slow(int(torch.tensor(input_shape).prod()), num_classes)


class Different(Slow):
    """Logistic regression that depends on how many ranks there are, from client 4 on in round 2."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        from mpi4py import MPI

        self.calls += self.training
        outputs = self.layer(inputs.flatten(1))
        return outputs * (1 + 1e-6 * MPI.COMM_WORLD.rank) if self.training and self.calls > 6 else outputs


def rank_dependent_model(input_shape, num_classes):
    """For model.name: what verify must find."""
    return Different(int(torch.tensor(input_shape).prod()), num_classes)


def dropout_model(input_shape, num_classes):
    """Draws random numbers in training."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Dropout(0.5), nn.Linear(20, num_classes))


def even_rounds(t, num_clients, seed):
    """Availability: everybody in even rounds, nobody in odd ones."""
    return range(num_clients) if t % 2 == 0 else []


def differs_by_rank(t, num_clients, seed):
    """Availability that is not a pure function: rank 1 sees fewer clients."""
    if not on_chosen_rank():
        return range(num_clients)
    note_fault()
    return range(num_clients - 1)


def growing_model(input_shape, num_classes):
    """Has more parameters whenever it is built again."""
    growing_model.size += 1
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, growing_model.size), nn.Linear(growing_model.size, num_classes)
    )


growing_model.size = 1


class FailsInStep(Method):
    """Raises in the seventh local step that this process takes for it."""

    steps_by_itself = True
    calls = 0

    def step(self, local, gradient, local_lr):
        self.calls += 1
        if self.calls == 7:
            raise ZeroDivisionError("in a step")
        local["update"].add_(gradient, alpha=-local_lr)


class FailsAtTheEnd(Method):
    """Raises after the last local step of round 2."""

    def finish_clients(self, local, current):
        if current.t == 2:
            raise ZeroDivisionError("in finish_clients")
