"""Outputs of models for blocks of samples: for evaluations, which change no parameter.

Invariant: the outputs of a block have the same bits whatever other blocks and models are computed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedmpi.data.evaluation import EvalData
from fedmpi.models.flat import FlatModel

Layers = list[tuple[Tensor, Tensor]]  # weights, and biases as columns


class Forward(Protocol):
    """Several models of one kind, in evaluation mode."""

    def load(self) -> None:
        """Take over their present parameters."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """(blocks, models, classes, samples), or (blocks, models, samples) of losses.

        Takes (blocks, samples, ...) as they are stored; valid until the next call.
        """


def make_forward(models: Sequence[FlatModel], data: EvalData) -> Forward:
    """The quickest way for these models."""
    if not _is_dense(models[0]):
        return ByModule(models, data)
    return DenseBlocks(models, data) if models[0].values.device.type == "cpu" else DenseMany(models, data)


def may_take_many(model: FlatModel) -> bool:
    """Whether blocks are so quickly computed that several at once save time."""
    return _is_dense(model) or model.num_params < 1000


def _is_dense(model: FlatModel) -> bool:
    return model.dense_layers is not None and model.forward is model.module


def _layers(model: FlatModel) -> Layers:
    at = model.views(model.values)
    return list(zip(at[::2], [bias.unsqueeze(1) for bias in at[1::2]], strict=True))


class ByModule:
    """Any model, block by block; each block is normalised once for all models."""

    def __init__(self, models: Sequence[FlatModel], data: EvalData) -> None:
        self._models, self._data = models, data

    def load(self) -> None:
        """They are used where they are."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        found = []
        for block in inputs.unbind():
            values = self._data.normalise.into(self._data.room, block)
            found.append(torch.stack([model.forward(values) for model in self._models]))
        outputs = torch.stack(found)
        return outputs.transpose(2, 3).contiguous() if outputs.dim() == 4 else outputs


class DenseBlocks:
    """Dense layers on a CPU: a block is converted once for all models and stays in the cache.

    Samples are columns, which makes W the left factor, as in local steps. The first layer takes the numbers
    as they are stored: W (scale v + shift) + b = (W scale) v + (W shift + b).
    """

    def __init__(self, models: Sequence[FlatModel], data: EvalData) -> None:
        self._like, self._data = models[0].values, data
        self._stored = [_layers(model) for model in models]
        self._layers = self._stored
        self._last_biases = self._like
        self._places: dict[tuple[int, int], tuple[Tensor, list[list[Tensor]], Tensor, Tensor]] = {}

    def load(self) -> None:
        """Fold the normalisation into the first layers."""
        fold, shape = self._data.normalise.fold, self._data.inputs.shape[1:]
        self._layers = [[fold(*first, shape), *rest] for first, *rest in self._stored]
        self._last_biases = torch.stack([own[-1][1] for own in self._layers])

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        outputs, places, block, columns = self._room(*inputs.shape[:2])
        for stored, mine in zip(inputs.flatten(2).unbind(), places, strict=True):
            block.copy_(stored)
            for own, out in zip(self._layers, mine, strict=True):
                values = columns
                for weight, bias in own[:-1]:
                    values = torch.mm(weight, values).add_(bias).relu_()
                torch.mm(own[-1][0], values, out=out)
        return outputs.add_(self._last_biases)

    @torch.inference_mode(mode=False)
    def _room(self, count: int, samples: int) -> tuple[Tensor, list[list[Tensor]], Tensor, Tensor]:
        """Where outputs go, as a whole and one by one; and where a block is converted. Kept."""
        if (count, samples) not in self._places:
            classes, width = len(self._last_biases[0]), self._layers[0][0][0].shape[1]
            outputs = self._like.new_empty((count, len(self._layers), classes, samples))
            each = [list(some.unbind()) for some in outputs.unbind()]
            block = self._data.room("block", (samples, width), self._like, self._like.dtype)
            self._places[count, samples] = outputs, each, block, block.T
        return self._places[count, samples]


class DenseMany:
    """Dense layers on a GPU: few launches for many blocks."""

    def __init__(self, models: Sequence[FlatModel], data: EvalData) -> None:
        self._data, self._layers = data, [_layers(model) for model in models]

    def load(self) -> None:
        """They are used where they are."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        values = self._data.normalise.into(self._data.room, inputs.flatten(0, 1))
        samples, found = values.unflatten(0, inputs.shape[:2]).flatten(2).transpose(1, 2), []
        for own in self._layers:
            columns = samples
            for weight, bias in own[:-1]:
                columns = torch.bmm(weight.expand(len(inputs), -1, -1), columns).add_(bias).relu_()
            weight, bias = own[-1]
            found.append(torch.bmm(weight.expand(len(inputs), -1, -1), columns).add_(bias))
        return torch.stack(found, dim=1)
