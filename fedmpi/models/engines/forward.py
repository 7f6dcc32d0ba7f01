"""Outputs of models for blocks of samples: for evaluations, which change no parameter.

Invariant: the outputs of a block have the same bits whatever other blocks and models are computed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedmpi.models.engines.dense import dense_layers
from fedmpi.models.flat import FlatModel

# (blocks, samples, ...) -> (blocks, models, classes, samples), or (blocks, models, samples) of losses.
Forward = Callable[[Tensor], Tensor]


def make_forward(models: Sequence[FlatModel]) -> Forward:
    """The outputs of models of one kind at their present parameters, in evaluation mode."""
    if dense_layers(models[0].module) and models[0].forward is models[0].module:
        return _dense(models)

    def forward(inputs: Tensor) -> Tensor:
        outputs = torch.stack([torch.stack([model.forward(block) for model in models]) for block in inputs])
        return outputs.transpose(2, 3).contiguous() if outputs.dim() == 4 else outputs

    return forward


def may_take_many(model: FlatModel) -> bool:
    """Whether blocks are so quickly computed that several at once save time."""
    return dense_layers(model.module) is not None or model.num_params < 1000


def _dense(models: Sequence[FlatModel]) -> Forward:
    """Dense layers: samples are columns, which makes W the left factor, as in local steps."""
    layers = []
    for model in models:
        at = model.views(model.values)
        layers.append(list(zip(at[::2], [bias.unsqueeze(1) for bias in at[1::2]], strict=True)))
    last, classes = len(layers[0]) - 1, len(layers[0][-1][0])

    def forward(inputs: Tensor) -> Tensor:
        samples = inputs.flatten(2).transpose(1, 2)
        outputs = inputs.new_empty((len(inputs), len(models), classes, inputs.shape[1]))
        for place, own in enumerate(layers):
            columns = samples
            for k, (weight, bias) in enumerate(own):
                columns = torch.bmm(weight.expand(len(inputs), -1, -1), columns).add_(bias)
                if k < last:
                    columns.relu_()
            outputs[:, place] = columns
        return outputs

    return forward
