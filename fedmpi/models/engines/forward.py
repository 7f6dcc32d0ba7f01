"""Outputs of a model for blocks of samples: for evaluations, which change no parameter.

Invariant: the outputs of a block have the same bits whatever other blocks and models are computed with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedmpi.models.engines.dense import dense_layers
from fedmpi.models.flat import FlatModel

# (blocks, samples, ...) -> (blocks, classes, samples), or (blocks, samples) if the model returns losses.
Forward = Callable[[Tensor], Tensor]


def make_forward(model: FlatModel) -> Forward:
    """The outputs at the model's present parameters, in evaluation mode."""
    if dense_layers(model.module) and model.forward is model.module:
        return _dense(model)

    def forward(inputs: Tensor) -> Tensor:
        outputs = torch.stack([model.forward(block) for block in inputs])
        return outputs.transpose(1, 2).contiguous() if outputs.dim() == 3 else outputs

    return forward


def may_take_many(model: FlatModel) -> bool:
    """Whether blocks are so quickly computed that several at once save time."""
    return dense_layers(model.module) is not None or model.num_params < 1000


def _dense(model: FlatModel) -> Forward:
    """Dense layers: samples are columns, which makes W the left factor, as in local steps."""
    at = model.views(model.values)
    weights, biases = at[::2], [bias.unsqueeze(1) for bias in at[1::2]]
    last = len(weights) - 1

    def forward(inputs: Tensor) -> Tensor:
        columns = inputs.flatten(2).transpose(1, 2)
        for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            columns = torch.bmm(weight.expand(len(inputs), -1, -1), columns).add_(bias)
            if k < last:
                columns.relu_()
        return columns

    return forward
