"""One client after another by autograd: works for any model, and is best for those that fill the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedmpi.models.flat import FlatModel
from fedmpi.models.losses import sample_losses


class OneByOne:
    """Gradients of one client, at the model's own parameters."""

    group_size = 1

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._local_params = model.values.unsqueeze(0)

    def local_params(self, count: int) -> Tensor:
        """The model's parameters."""
        return self._local_params

    def adder(self, target: Tensor) -> Callable[[Tensor, Tensor, float], None]:
        """Adds scale * gradient to `target`."""
        model, parts = self._model, self._model.trainable_views(target[0])

        def add(inputs: Tensor, labels: Tensor, scale: float) -> None:
            loss = sample_losses(model.forward(inputs[0]), labels[0]).mean()
            torch._foreach_add_(parts, model.gradient(loss), alpha=scale)

        return add
