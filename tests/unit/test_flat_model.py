"""A model as one flat vector: what its gradient promises with any version of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.models.flat import FlatModel

CPU = torch.device("cpu")


class HalfUsed(nn.Module):
    """Has a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 4), nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.used(inputs)


@pytest.fixture
def old_torch(monkeypatch):
    """torch 2.4 gives zeros that require gradients for parameters that the loss does not use."""
    grad = torch.autograd.grad

    def old_grad(loss, parameters, *, materialize_grads, **options):
        assert materialize_grads
        parts = grad(loss, parameters, **options)
        return tuple(
            torch.zeros_like(p, requires_grad=True) if g is None else g
            for g, p in zip(parts, parameters, strict=True)
        )

    monkeypatch.setattr(torch.autograd, "grad", old_grad)


@pytest.mark.usefixtures("old_torch")
def test_gradients_can_be_added_in_place():
    """Also the zeros of unused parameters, with the oldest torch that pyproject.toml allows."""
    model = FlatModel(HalfUsed(), torch.float32, CPU)
    row = torch.zeros(model.num_params)
    loss = model.module(torch.ones(1, 3)).sum()
    torch._foreach_add_(model.trainable_views(row), model.gradient(loss))
    assert row.tolist() == [1.0] * 16 + [0.0] * 6
    again = model.gradient(model.module(torch.ones(1, 3)).square().sum(), create_graph=True)
    assert again[0].requires_grad  # asked for, to differentiate once more
