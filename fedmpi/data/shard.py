"""The data that one rank holds: the samples of its clients, and its part of the evaluation sets.

Invariant: a minibatch is a pure function of (seed, client, number of minibatches the client drew before),
for any number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.config import Config
from fedmpi.data import rng
from fedmpi.data.evaluation import Normaliser
from fedmpi.data.ownership import owned_by, place_of
from fedmpi.data.partition import ClientLabels, Partition


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """What all ranks know about the data."""

    name: str
    shape: tuple[int, ...]
    num_classes: int
    num_train: int
    num_test: int
    partition: Partition
    labels: ClientLabels
    majority_labels: np.ndarray
    digest: str  # of the data set and of the partition

    def costs(self, clients: np.ndarray, batch_size: int) -> np.ndarray:
        """What a local step of each client costs: the samples of its minibatch."""
        sizes = self.partition.sizes[clients]
        return np.minimum(sizes, batch_size) if batch_size else sizes


@dataclass(frozen=True)
class Work:
    """A client's part in a round: which minibatches come next, and their samples if it was lent."""

    client: int
    drawn: int  # minibatches drawn before
    samples: tuple[Tensor, Tensor] | None = None


class ClientData:
    """The samples of a rank's own clients, one contiguous tensor on its device, and their minibatches."""

    def __init__(
        self,
        config: Config,
        partition: Partition,
        ranks: tuple[int, int],
        inputs: np.ndarray,
        labels: np.ndarray,
        normalise: Normaliser,
        device: torch.device,
    ) -> None:
        # Settings that minibatches depend on.
        self.seed = config.run.seed
        self.batch_size = config.algorithm.batch_size
        self.augment = config.data.augment
        self.noise_std = config.data.noise_std if config.data.dataset == "quadratic" else 0.0

        # The samples, client by client, and where each client's begin.
        self.inputs = torch.from_numpy(inputs).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        self.normalise = normalise
        rank, self._num_ranks = ranks
        self._sizes = partition.sizes
        owned = self._sizes[owned_by(rank, self._num_ranks, partition.num_clients)]
        self._starts = np.cumsum(owned) - owned

        # Whether samples are used as they are stored.
        self._is_plain = (
            normalise.scale is None
            and normalise.dtype == self.inputs.dtype
            and not (self.augment or self.noise_std)
        )

        # Caches: a minibatch's memory, and the last shuffle.
        self._kept: Tensor | None = None
        self._last_epoch: tuple[tuple[int, int], np.ndarray] | None = None

    def size(self, client: int) -> int:
        """Samples of a client, owned or not."""
        return int(self._sizes[client])

    def batch(self, client: int) -> int:
        """Samples in a minibatch: all of the client's samples, if it has no more than batch_size."""
        size = self.size(client)
        return self.batch_size if 0 < self.batch_size < size else size

    def how_it_draws(self, client: int) -> tuple[int, bool]:
        """Samples in a minibatch, and whether these are all that the client has: the same at every step."""
        batch = self.batch(client)
        return batch, batch == self.size(client)

    def all_samples(self, client: int, most: int = 1024) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, labels) of an owned client, without augmentation or noise, in parts of up to `most`."""
        first = int(self._starts[place_of(client, self._num_ranks)])
        for start in range(first, first + self.size(client), most):
            part = slice(start, min(start + most, first + self.size(client)))
            yield self.normalise(self.inputs[part]), self.labels[part]

    def num_drawn(self, client: int, count: int) -> int:
        """Samples that `draw` gives; full batches are the same samples at every step."""
        batch, is_full = self.how_it_draws(client)
        return batch if is_full else batch * count

    def draw(self, client: int, drawn: int, count: int) -> tuple[Tensor, Tensor]:
        """Raw samples of the next `count` minibatches of an owned client that drew `drawn` before.

        The client shuffles its data, walks through it, drops a last short batch and reshuffles.
        """
        return self._take(self.positions(client, drawn, count))

    def positions(self, client: int, drawn: int, count: int) -> np.ndarray:
        """Where the samples of `draw` are in `inputs`."""
        size, batch = self.size(client), self.batch(client)
        if batch == size:
            rows = np.arange(size)
        else:
            numbers = range(drawn, drawn + count)
            rows = np.concatenate([self._rows(client, size, batch, k) for k in numbers])
        return rows + self._starts[place_of(client, self._num_ranks)]

    def _take(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(positions).to(self.inputs.device)
        return self.inputs.index_select(0, index), self.labels.index_select(0, index)

    def _draw_group(self, group: Sequence[Work], count: int) -> tuple[Tensor, Tensor]:
        """(clients, samples, ...) and (clients, samples): what `draw` gives for each of the group."""
        # Borrowed clients bring their samples along.
        own = [work for work in group if work.samples is None]
        parts = [work.samples for work in group if work.samples is not None]

        # Own clients, which come first, are read in one pass.
        if own:
            positions = np.concatenate([self.positions(w.client, w.drawn, count) for w in own])
            taken = self._take(positions)
            if not parts:
                return tuple(part.unflatten(0, (len(own), -1)) for part in taken)
            parts = [*zip(*(part.chunk(len(own)) for part in taken), strict=True), *parts]
        return tuple(torch.stack(part) for part in zip(*parts, strict=True))

    def minibatches(self, group: Sequence[Work], count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs (clients, batch, ...) and labels (clients, batch) of each local step of a group.

        All clients of the group draw alike (`how_it_draws`). Inputs are valid until the next step.
        """
        # All samples of a single client that need no change are used as they are.
        batch, is_full = self.how_it_draws(group[0].client)
        if is_full and len(group) == 1 and self._is_plain and group[0].samples is None:
            first = int(self._starts[place_of(group[0].client, self._num_ranks)])
            part = self.inputs[None, first : first + batch], self.labels[None, first : first + batch]
            yield from itertools.repeat(part, count)
            return

        # All samples of the group for all steps.
        raw, labels = self._draw_group(group, count)
        buffer = self._buffer((len(group), batch, *raw.shape[2:]))
        if is_full:
            self.normalise(raw, buffer)

        # Step by step, normalised into the same buffer.
        for step in range(count):
            rows = slice(0, batch) if is_full else slice(step * batch, (step + 1) * batch)
            inputs = buffer if is_full else self.normalise(raw[:, rows], buffer)
            yield self._perturb(inputs, group, step), labels[:, rows]

    def _buffer(self, shape: tuple[int, ...]) -> Tensor:
        """Memory for a minibatch, reused while the shape stays the same."""
        if self._kept is None or self._kept.shape != shape:
            self._kept = torch.empty(shape, dtype=self.normalise.dtype, device=self.inputs.device)
        return self._kept

    def _perturb(self, inputs: Tensor, group: Sequence[Work], step: int) -> Tensor:
        """Gradient noise and augmentation of each client's minibatch number drawn + step."""
        if not self.noise_std and not self.augment:
            return inputs
        return torch.stack(
            [self._perturb_one(i, w.client, w.drawn + step) for i, w in zip(inputs, group, strict=True)]
        )

    def _perturb_one(self, inputs: Tensor, client: int, number: int) -> Tensor:
        if self.noise_std:
            noise = rng.stream(self.seed, "noise", client, number).standard_normal(inputs.shape)
            inputs = inputs + self.noise_std * torch.from_numpy(noise).to(inputs)
        if self.augment:
            inputs = random_crop_flip(inputs, rng.stream(self.seed, "augment", client, number))
        return inputs

    def _rows(self, client: int, size: int, batch: int, number: int) -> np.ndarray:
        """Positions of a minibatch among the client's samples."""
        epoch, position = divmod(number, size // batch)
        order = self._epoch_order(client, size, epoch)
        return order[position * batch : (position + 1) * batch]

    def _epoch_order(self, client: int, size: int, epoch: int) -> np.ndarray:
        """The client's shuffle of an epoch; the last one is cached, since the next steps need it again."""
        if self._last_epoch is None or self._last_epoch[0] != (client, epoch):
            order = rng.permutation(self.seed, "minibatch", client, epoch, size)
            self._last_epoch = ((client, epoch), order)
        return self._last_epoch[1]


def random_crop_flip(inputs: Tensor, draws: np.random.Generator) -> Tensor:
    """One crop (padding 4) and one horizontal flip for the whole minibatch, as the paper's code does."""
    top, left, flip = draws.integers(9), draws.integers(9), draws.integers(2)
    height, width = inputs.shape[-2:]
    padded = torch.nn.functional.pad(inputs, (4, 4, 4, 4))
    crop = padded[..., top : top + height, left : left + width]
    return crop.flip(-1) if flip else crop.contiguous()
