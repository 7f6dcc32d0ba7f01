"""What a client does in a round: I steps of SGD from x_t (Algorithm 1, lines 4 to 7).

The update itself is accumulated, y = x + update, instead of stepping y in place: at gamma = 1e-5 a step
often falls below half an ulp of y and would be lost in float32. Invariant: an update is a pure function
of x_t, gamma and the client's minibatches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedmpi import rng
from fedmpi.data.shard import ClientData
from fedmpi.errors import ClientError
from fedmpi.models import sample_losses
from fedmpi.params import FlatModel


class LocalTrainer:
    """Trains clients one after another on one model's buffers."""

    def __init__(self, model: FlatModel, data: ClientData, *, reseed: bool) -> None:
        self.model = model
        self.data = data
        self.reseed = reseed  # a user's model may draw random numbers, in dropout for example
        self.start = torch.empty_like(model.values)  # x_t in working precision

    def train(
        self,
        update: Tensor,
        client: int,
        t: int,
        drawn: int,
        local_steps: int,
        local_lr: float,
        samples: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Write the client's update of round t into `update`. `self.start` holds x_t.

        `samples` are those of the minibatches, where the client is another rank's.
        """
        try:
            if self.reseed:
                torch.manual_seed(rng.integer(self.data.seed, "model", client, drawn))
            self._train(update, client, drawn, local_steps, local_lr, samples)
        except Exception as error:
            raise ClientError(f"round {t}, client {client}: {type(error).__name__}: {error}") from error

    def _train(
        self,
        update: Tensor,
        client: int,
        drawn: int,
        local_steps: int,
        local_lr: float,
        samples: tuple[Tensor, Tensor] | None,
    ) -> None:
        update.zero_()
        if self.data.size(client) == 0:
            return  # a client without samples has a zero gradient
        parts = self.model.trainable_views(update)
        for inputs, labels in self.data.minibatches(client, drawn, local_steps, samples):
            # y = x + update; then update -= gamma * gradient at y.
            torch.add(self.start, update, out=self.model.values)
            loss = sample_losses(self.model.module(inputs), labels).mean()
            gradient = torch.autograd.grad(
                loss, self.model.parameters, allow_unused=True, materialize_grads=True
            )
            torch._foreach_add_(parts, gradient, alpha=-local_lr)
