"""Models and availabilities that misbehave on request, for the launch tests."""

from __future__ import annotations

import os

import torch
from torch import nn


def on_chosen_rank() -> bool:
    """True on the rank that FEDMPI_TEST_RANK names."""
    from mpi4py import MPI

    return str(MPI.COMM_WORLD.rank) == os.environ.get("FEDMPI_TEST_RANK")


class Faulty(nn.Module):
    """Logistic regression that fails in training after a few calls, in the way FEDMPI_TEST_FAULT names."""

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, num_classes)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        if self.training and self.calls > 3 and on_chosen_rank():
            fault = os.environ["FEDMPI_TEST_FAULT"]
            if fault == "raise":
                raise RuntimeError("the dog ate the minibatch")
            if fault == "exit":
                os._exit(9)
            if fault == "nan":
                return self.layer(inputs.flatten(1)) * float("nan")
        return self.layer(inputs.flatten(1))


def faulty_model(input_shape, num_classes):
    """For model.name."""
    return Faulty(int(torch.tensor(input_shape).prod()), num_classes)


def model_that_fails_on_one_rank(input_shape, num_classes):
    """Raises while the model is built, on one rank only."""
    if on_chosen_rank():
        raise FileNotFoundError("weights.pt")
    return faulty_model(input_shape, num_classes)


def dropout_model(input_shape, num_classes):
    """Draws random numbers in training."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Dropout(0.5), nn.Linear(20, num_classes))


def even_rounds(t, num_clients, seed):
    """Availability: everybody in even rounds, nobody in odd ones."""
    return range(num_clients) if t % 2 == 0 else []


def differs_by_rank(t, num_clients, seed):
    """Availability that is not a pure function: rank 1 sees fewer clients."""
    return range(num_clients - 1) if on_chosen_rank() else range(num_clients)
