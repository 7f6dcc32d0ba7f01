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

_AT_ONCE = 1 << 19  # numbers that are normalised at once: 2 MB of float32


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

    data: ClientData  # of the client's run
    client: int
    drawn: int  # minibatches drawn before
    samples: tuple[Tensor, Tensor] | None = None

    @property
    def how_it_draws(self) -> tuple[int, bool]:
        """Samples in a minibatch, and whether these are all that the client has."""
        return self.data.how_it_draws(self.client)

    def positions(self, count: int) -> np.ndarray:
        """Where the samples of the next `count` minibatches are in `data.inputs`."""
        return self.data.positions(self.client, self.drawn, count)


class Room:
    """Memory for minibatches, reused while the shape stays the same; the runs of a pack share one."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._kept = torch.empty(0, dtype=dtype, device=device)

    def __call__(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape; what it held is lost."""
        if self._kept.shape != shape:
            self._kept = self._kept.new_empty(shape)
        return self._kept


class ClientData:
    """The samples of a rank's own clients, one contiguous tensor on its device, and their minibatches."""

    def __init__(
        self,
        config: Config,
        partition: Partition,
        ranks: tuple[int, int],
        inputs: Tensor,
        labels: Tensor,
        normalise: Normaliser,
        *,
        order: np.ndarray | None = None,
        room: Room | None = None,
    ) -> None:
        """`inputs` and `labels` are those of the rank's clients, client by client; with `order` they are in
        any order, which it tells. `room` is shared with other runs.
        """
        # Settings that minibatches depend on.
        self.seed = config.run.seed
        self.batch_size = config.algorithm.batch_size
        self.augment = config.data.augment
        self.noise_std = config.data.noise_std if config.data.dataset == "quadratic" else 0.0

        # The samples, and where each client's begin.
        self.inputs, self.labels, self.normalise = inputs, labels, normalise
        self._order = order
        rank, self._num_ranks = ranks
        self._sizes = partition.sizes
        owned = self._sizes[owned_by(rank, self._num_ranks, partition.num_clients)]
        self._starts = np.cumsum(owned) - owned

        # Whether samples are used as they are stored.
        self._is_plain = (
            normalise.scale is None
            and normalise.dtype == self.inputs.dtype
            and not (self.augment or self.noise_std)
            and order is None
        )

        # Caches: a minibatch's memory, and the last shuffle.
        self._room = room or Room(normalise.dtype, inputs.device)
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
            rows = np.arange(start, min(start + most, first + self.size(client)))
            inputs, labels = self._take(self._where(rows))
            yield self.normalise(inputs), labels

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
        rows = np.arange(size) if batch == size else self._rows(client, size, batch, drawn, count)
        return self._where(rows + self._starts[place_of(client, self._num_ranks)])

    def _where(self, rows: np.ndarray) -> np.ndarray:
        """Where samples are in `inputs`, given their numbers client by client."""
        return rows if self._order is None else self._order[rows]

    def _take(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(positions).to(self.inputs.device)
        return self.inputs.index_select(0, index), self.labels.index_select(0, index)

    def _draw_group(self, group: Sequence[Work], count: int) -> tuple[Tensor, Tensor]:
        """(clients, samples, ...) and (clients, samples): what `draw` gives for each of the group."""
        # Borrowed clients bring their samples along.
        own = [work for work in group if work.samples is None]
        parts = [work.samples for work in group if work.samples is not None]

        # Own clients, which come first, are read in one pass; runs of a pack may share their samples.
        if own and all(work.data.inputs is self.inputs for work in own):
            taken = self._take(np.concatenate([work.positions(count) for work in own]))
            if not parts:
                return tuple(part.unflatten(0, (len(own), -1)) for part in taken)
            parts = [*zip(*(part.chunk(len(own)) for part in taken), strict=True), *parts]
        elif own:
            parts = [*(w.data.draw(w.client, w.drawn, count) for w in own), *parts]
        return tuple(torch.stack(part) for part in zip(*parts, strict=True))

    def minibatches(self, group: Sequence[Work], count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs (clients, batch, ...) and labels (clients, batch) of each local step of a group.

        All clients of the group draw alike (`how_it_draws`); they may be of several runs. Inputs are valid
        until the next step.
        """
        # All samples of a single client that need no change are used as they are.
        batch, is_full = group[0].how_it_draws
        if is_full and len(group) == 1 and self._is_plain and group[0].samples is None:
            first = int(self._starts[place_of(group[0].client, self._num_ranks)])
            part = self.inputs[None, first : first + batch], self.labels[None, first : first + batch]
            yield from itertools.repeat(part, count)
            return

        # All samples of the group for all steps.
        raw, labels = self._draw_group(group, count)
        if is_full:
            inputs = self.normalise(raw, self._room(raw.shape))
            for step in range(count):
                yield self._perturb(inputs, group, step), labels
            return

        # Step after step in memory; normalised at once if a cache holds them, else into the same buffer.
        by_step = raw.unflatten(1, (count, batch)).transpose(0, 1)
        at_once = raw.numel() <= _AT_ONCE
        if at_once:
            by_step = self.normalise(by_step, self._room(by_step.shape))
        for step, inputs in enumerate(by_step):
            if not at_once:
                inputs = self.normalise(inputs, self._room(inputs.shape))
            yield self._perturb(inputs, group, step), labels[:, step * batch : (step + 1) * batch]

    def _perturb(self, inputs: Tensor, group: Sequence[Work], step: int) -> Tensor:
        """Gradient noise and augmentation of each client's minibatch number drawn + step."""
        if not self.noise_std and not self.augment:
            return inputs
        return torch.stack(
            [w.data._perturb_one(i, w.client, w.drawn + step) for i, w in zip(inputs, group, strict=True)]
        )

    def _perturb_one(self, inputs: Tensor, client: int, number: int) -> Tensor:
        if self.noise_std:
            noise = rng.stream(self.seed, "noise", client, number).standard_normal(inputs.shape)
            inputs = inputs + self.noise_std * torch.from_numpy(noise).to(inputs)
        if self.augment:
            inputs = random_crop_flip(inputs, rng.stream(self.seed, "augment", client, number))
        return inputs

    def _rows(self, client: int, size: int, batch: int, drawn: int, count: int) -> np.ndarray:
        """Positions of minibatches among the client's samples; those of an epoch are neighbours."""
        rows, per_epoch, end = [], size // batch, drawn + count
        while drawn < end:
            epoch, position = divmod(drawn, per_epoch)
            some = min(per_epoch - position, end - drawn)
            order = self._epoch_order(client, size, epoch)
            rows.append(order[position * batch : (position + some) * batch])
            drawn += some
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

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
