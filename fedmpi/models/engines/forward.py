"""Outputs of models for blocks of samples: for evaluations, which change no parameter.

Invariant: the outputs of a block have the same bits whatever other blocks and models are computed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedmpi.data.evaluation import EvalData
from fedmpi.models.engines.dense import dense_layers
from fedmpi.models.flat import FlatModel

# (blocks, samples, ...) as they are stored -> (blocks, models, classes, samples), or (blocks, models,
# samples) of losses.
Forward = Callable[[Tensor], Tensor]


def make_forward(models: Sequence[FlatModel], data: EvalData) -> Forward:
    """The outputs of models of one kind at their present parameters, in evaluation mode."""
    if not _is_dense(models[0]):
        return _by_module(models, data)
    if models[0].values.device.type == "cpu":
        return _dense(models, data)
    return _dense_many(models, data)


def may_take_many(model: FlatModel) -> bool:
    """Whether blocks are so quickly computed that several at once save time."""
    return _is_dense(model) or model.num_params < 1000


def _is_dense(model: FlatModel) -> bool:
    return dense_layers(model.module) is not None and model.forward is model.module


def _by_module(models: Sequence[FlatModel], data: EvalData) -> Forward:
    """Any model, block by block; each block is normalised once for all models."""

    def forward(inputs: Tensor) -> Tensor:
        found = []
        for block in inputs:
            values = data.normalise.into(data.room, block)
            found.append(torch.stack([model.forward(values) for model in models]))
        outputs = torch.stack(found)
        return outputs.transpose(2, 3).contiguous() if outputs.dim() == 4 else outputs

    return forward


def _dense(models: Sequence[FlatModel], data: EvalData) -> Forward:
    """Dense layers on a CPU: a block is converted once for all models and stays in the cache.

    Samples are columns, which makes W the left factor, as in local steps. The first layer takes the numbers
    as they are stored: W (scale v + shift) + b = (W scale) v + (W shift + b).
    """
    layers, like = [_layers(model) for model in models], models[0].values
    for own in layers:
        own[0] = data.normalise.fold(*own[0], data.inputs.shape[1:])
    last_biases = torch.stack([own[-1][1] for own in layers])
    classes, places = last_biases.shape[1], {}

    def places_of(count: int, samples: int) -> tuple[Tensor, list[Sequence[Tensor]], Tensor, Tensor]:
        """Where outputs go, as a whole and one by one; and where a block is converted."""
        outputs = data.room("outputs", (count, len(models), classes, samples), like, like.dtype)
        block = data.room("block", (samples, layers[0][0][0].shape[1]), like, like.dtype)
        return outputs, [some.unbind() for some in outputs.unbind()], block, block.T

    def forward(inputs: Tensor) -> Tensor:
        count, samples = inputs.shape[:2]
        if (count, samples) not in places:
            places[count, samples] = places_of(count, samples)
        outputs, each, block, columns = places[count, samples]
        for stored, mine in zip(inputs.flatten(2).unbind(), each, strict=True):
            block.copy_(stored)
            for own, out in zip(layers, mine, strict=True):
                values = columns
                for weight, bias in own[:-1]:
                    values = torch.mm(weight, values).add_(bias).relu_()
                torch.mm(own[-1][0], values, out=out)
        return outputs.add_(last_biases)

    return forward


def _dense_many(models: Sequence[FlatModel], data: EvalData) -> Forward:
    """Dense layers on a GPU: few launches for many blocks."""
    layers = [_layers(model) for model in models]

    def forward(inputs: Tensor) -> Tensor:
        values = data.normalise.into(data.room, inputs.flatten(0, 1))
        samples = values.unflatten(0, inputs.shape[:2])
        samples, found = samples.flatten(2).transpose(1, 2), []
        for own in layers:
            columns = samples
            for k, (weight, bias) in enumerate(own):
                columns = torch.bmm(weight.expand(len(inputs), -1, -1), columns).add_(bias)
                if k < len(own) - 1:
                    columns.relu_()
            found.append(columns)
        return torch.stack(found, dim=1)

    return forward


def _layers(model: FlatModel) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases, as columns."""
    at = model.views(model.values)
    return list(zip(at[::2], [bias.unsqueeze(1) for bias in at[1::2]], strict=True))
