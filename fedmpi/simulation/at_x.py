"""Loss and gradient of a whole client, F_n and grad F_n, at the parameters that the model has.

Invariant: the model computes as in an evaluation, without dropout, so that no random number is drawn; and
the samples of a client are taken in the same parts on any rank, so that the bits are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedmpi.data.shard import ClientData
from fedmpi.models.flat import FlatModel


def client_loss(model: FlatModel, data: ClientData, client: int) -> Tensor:
    """F_n of an owned client, a float64 number that may lie on a GPU; 0 without samples."""
    model.module.eval()
    loss = model.values.new_zeros((), dtype=torch.float64)
    for inputs, labels in data.all_samples(client):
        loss += model.task.losses(model.module(inputs), labels).double().sum()
    model.module.train()
    return loss / max(data.size(client), 1)


def add_client_gradient(model: FlatModel, data: ClientData, client: int, row: Tensor) -> Tensor:
    """Adds grad F_n of an owned client to a row, and returns F_n; without samples both are 0."""
    model.module.eval()
    loss_sum, parts = model.values.new_zeros((), dtype=torch.float64), model.trainable_views(row)
    for inputs, labels in data.all_samples(client):
        loss = model.task.losses(model.module(inputs), labels).sum() / data.size(client)
        torch._foreach_add_(parts, model.gradient(loss))
        loss_sum += loss.detach()
    model.module.train()
    return loss_sum
