"""What one rank evaluates: fixed blocks of samples, assigned to ranks by stride; how inputs are normalised.

Invariant: a block has the same samples for any number of ranks, so evaluation gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmpi.data import rng
from fedmpi.data.room import Room

EVAL_BLOCK = 384  # samples of an evaluation block: from 192 on MKL multiplies MLPs three times as fast
GPU_EVAL_BLOCK = 1024  # fewer launches


@dataclass(frozen=True)
class Normaliser:
    """uint8 samples to (value / 255 - mean) / std per channel; float samples and token ids as they are."""

    scale: Tensor | None
    shift: Tensor | None
    dtype: torch.dtype  # that models take: training precision, int64 for token ids

    @classmethod
    def of(cls, dataset: Any, dtype: torch.dtype, device: torch.device) -> Normaliser:
        """The normaliser of a data set, or of its header."""
        if dataset.num_tokens:
            return cls(None, None, torch.int64)
        if dataset.input_dtype != np.uint8:
            return cls(None, None, dtype)
        mean = torch.tensor(dataset.mean, dtype=torch.float64)
        std = torch.tensor(dataset.std, dtype=torch.float64)
        shape = (1, -1, *[1] * (len(dataset.shape) - 1)) if len(dataset.shape) == 3 else (1,)
        scale, shift = 1 / (255 * std), -mean / std
        return cls(*(v.to(dtype).reshape(shape).to(device) for v in (scale, shift)), dtype)

    def into(self, room: Room, inputs: Tensor) -> Tensor:
        """The values in the type that models take, in memory that is used again where they are not."""
        if self.scale is None and inputs.dtype == self.dtype:
            return inputs
        return self(inputs, room("values", inputs.shape, inputs, self.dtype))

    def fold(self, weight: Tensor, bias: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """A dense layer on samples of this shape that takes values before they are normalised."""
        if self.scale is None:
            return weight, bias
        scale, shift = (part.expand(1, *shape).reshape(-1) for part in (self.scale, self.shift))
        return weight * scale, bias + (weight @ shift)[:, None]

    def __call__(self, inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """The values in the type that models take, in `out` or in a fresh tensor."""
        values = inputs.to(self.dtype, copy=True) if out is None else out.copy_(inputs)
        return values if self.scale is None else values.mul_(self.scale).add_(self.shift)


@dataclass(frozen=True, kw_only=True)
class EvalData:
    """The evaluation blocks of one rank, out of `num_blocks` in total."""

    block_ids: np.ndarray
    num_blocks: int
    block: int  # samples of a block
    num_samples: int  # of the whole set
    inputs: Tensor
    labels: Tensor
    normalise: Normaliser
    room: Room = field(default_factory=Room)
    _pieces: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def blocks(self, at_once: int = 1) -> list[tuple[Tensor, Tensor]]:
        """(blocks, samples, ...) inputs as they are stored, and (blocks, samples) labels.

        Of this rank's blocks; up to `at_once` blocks of equal size together.
        """
        if at_once not in self._pieces:
            self._pieces[at_once] = list(self._cut(at_once))
        return self._pieces[at_once]

    def _cut(self, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
        whole = len(self.inputs) // self.block
        firsts = [*range(0, whole, at_once), *([whole] if whole * self.block < len(self.inputs) else [])]
        for first in firsts:
            count = max(min(at_once, whole - first), 1)
            rows = slice(first * self.block, min((first + count) * self.block, len(self.inputs)))
            yield tuple(part[rows].unflatten(0, (count, -1)) for part in (self.inputs, self.labels))


def eval_block(device: torch.device) -> int:
    """Samples of an evaluation block; the same on all ranks of a kind of device."""
    return GPU_EVAL_BLOCK if device.type == "cuda" else EVAL_BLOCK


def eval_rows(num_samples: int, rank: int, size: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """A rank's evaluation blocks, and their samples."""
    blocks = np.arange(rank, math.ceil(num_samples / block), size)
    return blocks, rows_of_blocks(blocks, block, num_samples)


def rows_of_blocks(blocks: np.ndarray, block: int, num_samples: int) -> np.ndarray:
    """The samples of some blocks."""
    rows = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    return rows[rows < num_samples]


def stratified(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """`count` samples drawn at random, each label in proportion, in ascending order."""
    if count >= len(labels):
        return np.arange(len(labels))
    # A random order within each label, labels one after another; then every len/count-th sample.
    shuffled = rng.stream(seed, "evaluation-subset").permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.sort(by_label[np.arange(count) * len(labels) // count])
