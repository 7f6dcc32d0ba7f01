"""Outputs of models for blocks of samples: for evaluations, which change no parameter.

Invariant: the outputs of a block have the same bits whatever other blocks and models are computed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedmpi.data.evaluation import EvalData
from fedmpi.models.engines.compiled import CompiledOutputs, may_compute_outputs
from fedmpi.models.flat import FlatModel

Layers = list[tuple[Tensor, Tensor]]  # weights, and biases as columns

_NARROW = 128  # samples that are computed at once where more cost page faults, or a slower product
_FEW_OUTPUTS = 16


class Forward(Protocol):
    """Several models of one kind, in evaluation mode."""

    def load(self) -> None:
        """Take over their present parameters."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """(blocks, models, ..., samples): classes before samples, positions before them, or losses alone.

        Takes (blocks, samples, ...) as they are stored; valid until the next call.
        """


def make_forward(models: Sequence[FlatModel], data: EvalData) -> Forward:
    """The quickest way for these models."""
    if not _is_dense(models[0]):
        return ByModule(models, data)
    if may_compute_outputs(models[0], data):
        return CompiledOutputs(models, data)
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
    """Any model, a part of a block after another; each block is normalised once for all models."""

    def __init__(self, models: Sequence[FlatModel], data: EvalData) -> None:
        self._models, self._data = models, data
        on_gpu = models[0].values.device.type == "cuda"
        self._width = data.block if on_gpu or may_take_many(models[0]) else _NARROW

    def load(self) -> None:
        """They are used where they are."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        found = []
        for block in inputs.unbind():
            parts = self._data.normalise.into(self._data.room, block).split(self._width)
            found.append(
                torch.stack([torch.cat([model.forward(part) for part in parts]) for model in self._models])
            )
        outputs = torch.stack(found)
        if outputs.dim() > 4:  # of sequences: their tasks look at the samples one by one
            return outputs.movedim(2, -1)
        return outputs.transpose(2, 3).contiguous() if outputs.dim() == 4 else outputs


class DenseBlocks:
    """Dense layers on a CPU: samples are converted once for all models and stay in the cache.

    Samples are columns, which makes W the left factor, as in local steps. The first layer takes the numbers
    as they are stored: W (scale v + shift) + b = (W scale) v + (W shift + b).
    """

    def __init__(self, models: Sequence[FlatModel], data: EvalData) -> None:
        self._like, self._data = models[0].values, data
        self._stored = [_layers(model) for model in models]
        self._layers = self._stored
        self._last_biases = self._like
        # A few outputs are multiplied quickest by a few samples, more by more.
        self._width = _NARROW if len(self._layers[0][0][0]) < _FEW_OUTPUTS else data.block
        self._places: dict[tuple[int, int], tuple[Tensor, list[list[Tensor]], Tensor]] = {}

    def load(self) -> None:
        """Fold the normalisation into the first layers."""
        fold, shape = self._data.normalise.fold, self._data.inputs.shape[1:]
        self._layers = [[fold(*first, shape), *rest] for first, *rest in self._stored]
        self._last_biases = torch.stack([own[-1][1] for own in self._layers])

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        outputs, places, room = self._room(*inputs.shape[:2])
        parts = [part for block in inputs.flatten(2).unbind() for part in block.split(self._width)]
        for stored, mine in zip(parts, places, strict=True):
            samples = room if len(stored) == len(room) else room[: len(stored)]
            samples.copy_(stored)
            for own, out in zip(self._layers, mine, strict=True):
                values = samples.t()
                for weight, bias in own[:-1]:
                    values = torch.mm(weight, values).add_(bias).relu_()
                torch.mm(own[-1][0], values, out=out)
        return outputs.add_(self._last_biases)

    @torch.inference_mode(mode=False)
    def _room(self, count: int, samples: int) -> tuple[Tensor, list[list[Tensor]], Tensor]:
        """Where outputs go, as a whole and part by part; and where samples are converted. Kept."""
        if (count, samples) not in self._places:
            classes, width = len(self._last_biases[0]), self._layers[0][0][0].shape[1]
            outputs = self._like.new_empty((count, len(self._layers), classes, samples))
            parts = [part for block in outputs.unbind() for part in block.split(self._width, dim=2)]
            room = self._data.room("block", (self._width, width), self._like, self._like.dtype)
            self._places[count, samples] = outputs, [list(part.unbind()) for part in parts], room
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
