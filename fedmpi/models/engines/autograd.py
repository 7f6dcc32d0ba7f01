"""One client after another by autograd: works for any model, and is best for those that fill the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedmpi.models.flat import FlatModel

Scale = float | Tensor  # a number for all; or (clients, 1), which recorded programs read again

Adder = Callable[..., None]  # inputs, labels, scale


class OneByOne:
    """Gradients of one client, at the model's own parameters."""

    group_size = 1
    by_inference = False
    takes_rates = False
    sets_first = False

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._local_params = model.values.unsqueeze(0)
        self._gradient: Tensor | None = None  # the whole gradient in one piece, where that saves launches

    def local_params(self, count: int) -> Tensor:
        """The model's parameters."""
        return self._local_params

    def memory(self) -> object:
        """The parameters and the gradient."""
        return self._local_params, self._gradient

    def adder(self, target: Tensor) -> Adder:
        """Adds scale * gradient to `target`."""
        model, parts = self._model, self._model.trainable_views(target[0])
        losses = model.task.losses

        def add(inputs: Tensor, labels: Tensor, scale: Scale) -> None:
            loss = losses(model.forward(inputs[0]), labels[0]).mean()
            if isinstance(scale, Tensor):
                target.addcmul_(self._in_one_piece(model.gradient(loss))[None], scale.to(target.dtype))
            else:
                torch._foreach_add_(parts, model.gradient(loss), alpha=scale)

        return add

    def _in_one_piece(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """Two launches with the addition, instead of one for each parameter; frozen ones stay at zero."""
        if self._gradient is None:
            self._gradient = torch.zeros_like(self._model.values)
        torch._foreach_copy_(self._model.trainable_views(self._gradient), gradients)
        return self._gradient
