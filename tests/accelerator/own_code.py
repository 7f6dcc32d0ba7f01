"""Models and a method as users write them."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedmpi.methods import Method


def dropout(input_shape, num_classes):
    """Draws random numbers."""
    size = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 20), nn.Dropout(0.3), nn.Linear(20, num_classes))


def frozen(input_shape, num_classes):
    """Has parameters that are not trained, and some that are not used."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, num_classes))
    model[1].bias.requires_grad_(False)
    model.spare = nn.Parameter(model[1].bias.detach().clone())
    model.forward = lambda inputs: nn.Sequential.forward(nn.Sequential(*list(model)[:4]), inputs)
    return model


def large(input_shape, num_classes):
    """Fills a GPU by itself."""
    size = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 2300), nn.Tanh(), nn.Linear(2300, 2300), nn.Tanh(),
                         nn.Linear(2300, num_classes))  # fmt: skip


class Heavy(Method):
    """Heavy-ball steps, written for numbers and numpy."""

    scratch = ("speed",)
    steps_by_itself = True

    def step(self, local, gradient, local_lr):
        """speed <- 0.9 speed + g; update <- update - gamma speed."""
        local["speed"].mul_(0.9).add_(gradient)
        local["update"].add_(local["speed"], alpha=-local_lr)

    def direction(self, state, current):
        """Clipped by numpy."""
        return np.clip(current.sums["weighted_sum"], -0.01, 0.01), {}


def who(t, num_clients):
    """Every third client, in turn; nobody in round 2."""
    return [] if t == 2 else range(t % 3, num_clients, 3)
