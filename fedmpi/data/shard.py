"""The data that one rank holds: the samples of its clients, and its part of the evaluation sets.

Invariant: a minibatch is a pure function of (seed, client, number of minibatches the client drew before),
for any number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.config import Config
from fedmpi.data import rng
from fedmpi.data.evaluation import Normaliser
from fedmpi.data.ownership import owned_by, place_of
from fedmpi.data.partition import ClientLabels, Partition
from fedmpi.data.room import Room

_MOST_PLACES = 256
_MOST_KEPT = 1 << 20  # positions: 8 MB
_EPOCHS_AHEAD = 2


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """What all ranks know about the data."""

    name: str
    shape: tuple[int, ...]
    num_classes: int
    num_train: int
    num_test: int
    partition: Partition
    num_tokens: int  # of token ids; 0 for inputs that are numbers
    num_outputs: int  # of a model for a sample, or for each position of one
    label: np.ndarray  # of the first sample
    labels: ClientLabels
    majority_labels: np.ndarray
    digest: str  # of the data set and of the partition

    def costs(self, clients: np.ndarray, batch_size: int) -> np.ndarray:
        """What a local step of each client costs: the samples of its minibatch."""
        sizes = self.partition.sizes[clients]
        return np.minimum(sizes, batch_size) if batch_size else sizes


class Work:
    """A client's part in a round: which minibatches come next, and their samples if it was lent."""

    __slots__ = ("client", "data", "drawn", "how_it_draws", "samples", "steps")

    def __init__(
        self,
        data: ClientData,
        client: int,
        drawn: int,
        samples: tuple[Tensor, Tensor] | None = None,
        *,
        steps: int = 1,
    ) -> None:
        self.data = data  # of the client's run
        self.client = client
        self.drawn = drawn  # minibatches drawn before
        self.steps = steps  # local steps, a minibatch each
        self.samples = samples
        self.how_it_draws = data.how_it_draws(client)

    @property
    def how(self) -> tuple[int, bool, int]:
        """What clients have in common that are trained side by side: how they draw, and how often."""
        return *self.how_it_draws, self.steps

    @property
    def batch(self) -> int:
        """Samples in a minibatch."""
        return self.how_it_draws[0]

    @property
    def is_full(self) -> bool:
        """Whether these are all samples of the client."""
        return self.how_it_draws[1]

    def positions(self, count: int) -> np.ndarray:
        """Where the samples of the next `count` minibatches are in `data.inputs`."""
        return self.data.positions(self.client, self.drawn, count)

    def stored(self, count: int) -> tuple[Tensor, Tensor, np.ndarray]:
        """Inputs and labels as they are stored, and which of them are the next `count` minibatches."""
        if self.samples is None:
            return self.data.inputs, self.data.labels, self.positions(count)
        return *self.samples, np.arange(len(self.samples[1]))


class _Walk(NamedTuple):
    """Some minibatches of a client, one after another."""

    first: int  # number of the first
    end: int
    positions: np.ndarray  # of their samples


class ClientData:
    """The samples of a rank's own clients, one tensor on its device, and their minibatches."""

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

        # Whether samples need no change before they are trained on.
        self._is_ready = normalise.scale is None and normalise.dtype == inputs.dtype
        self.is_changed = bool(self.augment or self.noise_std)

        # Memory for a minibatch, and the shuffles of clients that took part lately.
        self._room = room or Room()
        self._walks: dict[tuple[int, int], _Walk] = {}  # by client and size of minibatch
        self._num_kept = 0  # positions in walks, those replaced meanwhile included
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def size(self, client: int) -> int:
        """Samples of a client, owned or not."""
        return int(self._sizes[client])

    def batch(self, client: int) -> int:
        """Samples in a minibatch: all of the client's samples, if it has no more than batch_size."""
        return self.how_it_draws(client)[0]

    def how_it_draws(self, client: int) -> tuple[int, bool]:
        """Samples in a minibatch, and whether these are all that the client has: the same at every step."""
        size, batch = int(self._sizes[client]), self.batch_size
        return (batch, False) if 0 < batch < size else (size, True)

    def all_samples(self, client: int, most: int = 1024) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, labels) of an owned client, without augmentation or noise, in parts of up to `most`."""
        first = int(self._starts[place_of(client, self._num_ranks)])
        for start in range(first, first + self.size(client), most):
            end = min(start + most, first + self.size(client))
            if self._order is None:  # where they are: nothing is sent to a GPU
                inputs, labels = self.inputs[start:end], self.labels[start:end]
            else:
                inputs, labels = self._take(self._where(np.arange(start, end)))
            yield self.normalise(inputs), labels

    def num_drawn(self, client: int, count: int) -> int:
        """Samples that `draw` gives; full batches are the same samples at every step."""
        batch, is_full = self.how_it_draws(client)
        return batch if is_full else batch * count

    def draw(self, client: int, drawn: int, count: int) -> tuple[Tensor, Tensor]:
        """Raw samples of the next `count` minibatches of an owned client that drew `drawn` before."""
        return self._take(self.positions(client, drawn, count))

    def positions(self, client: int, drawn: int, count: int) -> np.ndarray:
        """Where the samples of `draw` are in `inputs`."""
        batch, is_full = self.how_it_draws(client)
        if is_full:
            return self._where(np.arange(batch) + self._starts[place_of(client, self._num_ranks)])

        # A client's walk through its data, as far as it is known.
        walk = self._walks.get((client, batch))
        if walk is None or not walk.first <= drawn <= walk.end - count:
            walk = self._walk(client, batch, drawn, count)
        begin = (drawn - walk.first) * batch
        return walk.positions[begin : begin + count * batch]

    def _walk(self, client: int, batch: int, drawn: int, count: int) -> _Walk:
        """The epochs that hold `count` minibatches from number `drawn` on, and a few more; kept.

        The client shuffles its data, walks through it, drops a last short batch and reshuffles.
        """
        size = self.size(client)
        per_epoch = size // batch
        first = drawn // per_epoch
        last = max((drawn + count - 1) // per_epoch, first + _EPOCHS_AHEAD)
        rows = [
            rng.permutation(self.seed, "minibatch", client, epoch, size)[: per_epoch * batch]
            for epoch in range(first, last + 1)
        ]
        positions = self._where(np.concatenate(rows) + self._starts[place_of(client, self._num_ranks)])
        walk = _Walk(first * per_epoch, (last + 1) * per_epoch, positions)

        # Not too many.
        self._num_kept += len(positions)
        if self._num_kept > _MOST_KEPT:
            self._walks.clear()
            self._num_kept = len(positions)
        self._walks[client, batch] = walk
        return walk

    def _where(self, rows: np.ndarray) -> np.ndarray:
        """Where samples are in `inputs`, given their numbers client by client."""
        return rows if self._order is None else self._order[rows]

    def _take(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(positions).to(self.inputs.device)
        return self.inputs.index_select(0, index), self.labels.index_select(0, index)

    def minibatches(self, group: Sequence[Work], count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs (clients, batch, ...) and labels (clients, batch) of each local step of a group.

        All clients of the group draw alike (`how_it_draws`); they may be of several runs. Inputs are valid
        until the next step.
        """
        # All samples of a single client that need no change are used as they are.
        first = group[0]
        if (
            first.is_full
            and len(group) == 1
            and self._is_ready
            and not self.is_changed
            and self._order is None
            and first.samples is None
        ):
            yield from itertools.repeat(self._in_place(first), count)
            return

        # Gathered and normalised step by step, in memory that a cache holds; full batches once.
        draw = self._drawn_here if self._are_here(group) else self._drawn_together
        values = None
        for step, (raw, labels) in enumerate(draw(group, 1 if first.is_full else count)):
            values = self.normalise.into(self._room, raw)
            if not first.is_full:
                yield self._perturb(values, group, step) if self.is_changed else values, labels
        for step in range(count if first.is_full else 0):
            yield self._perturb(values, group, step) if self.is_changed else values, labels

    def _are_here(self, group: Sequence[Work]) -> bool:
        """Whether all samples are in `inputs`; the runs of a pack share theirs."""
        return all(work.samples is None and work.data.inputs is self.inputs for work in group)

    def _drawn_here(self, group: Sequence[Work], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(clients, batch, ...) and (clients, batch) of each step: what `draw` gives for each client."""
        shape = len(group), group[0].batch
        raw = self._room("raw", (*shape, *self.inputs.shape[1:]), self.inputs, self.inputs.dtype)
        own = self.labels.shape[1:]
        labels = self._room("labels", (steps, *shape, *own), self.labels, self.labels.dtype)
        flat = raw.flatten(0, 1)

        # Positions and labels of all steps, then the samples step by step.
        positions = np.stack([work.positions(steps) for work in group])
        by_step = positions.reshape(len(group), steps, -1).swapaxes(0, 1).reshape(-1)
        index = torch.from_numpy(by_step).to(self.inputs.device)
        torch.index_select(self.labels, 0, index, out=labels.flatten(0, 2))
        for some, own_labels in zip(index.chunk(steps), labels.unbind(), strict=True):
            torch.index_select(self.inputs, 0, some, out=flat)
            yield raw, own_labels

    def _drawn_together(self, group: Sequence[Work], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same where borrowed clients bring their samples along."""
        drawn = [work.samples or work.data.draw(work.client, work.drawn, steps) for work in group]
        by_client = [[part.unflatten(0, (steps, -1)) for part in samples] for samples in drawn]
        for step in range(steps):
            yield tuple(
                torch.stack([part[step] for part in parts]) for parts in zip(*by_client, strict=True)
            )

    def _in_place(self, work: Work) -> tuple[Tensor, Tensor]:
        """All samples of a client where they are; few clients come again every few rounds."""
        part = self._places.get((work.client, work.batch))
        if part is None:
            start = int(self._starts[place_of(work.client, self._num_ranks)])
            rows = slice(start, start + work.batch)
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            part = self._places[work.client, work.batch] = self.inputs[None, rows], self.labels[None, rows]
        return part

    def _perturb(self, inputs: Tensor, group: Sequence[Work], step: int) -> Tensor:
        """Gradient noise and augmentation of each client's minibatch number drawn + step."""
        return torch.stack(
            [w.data._perturb_one(i, w.client, w.drawn + step) for i, w in zip(inputs, group, strict=True)]
        )

    def _perturb_one(self, inputs: Tensor, client: int, number: int) -> Tensor:
        if self.noise_std:
            noise = rng.at(self.seed, "noise", client, number).standard_normal(inputs.shape)
            inputs = inputs + self.noise_std * torch.from_numpy(noise).to(inputs)
        if self.augment:
            inputs = random_crop_flip(inputs, rng.at(self.seed, "augment", client, number))
        return inputs


def random_crop_flip(inputs: Tensor, draws: np.random.Generator) -> Tensor:
    """One crop (padding 4) and one horizontal flip for the whole minibatch, as the paper's code does."""
    top, left, flip = draws.integers(9), draws.integers(9), draws.integers(2)
    height, width = inputs.shape[-2:]
    padded = torch.nn.functional.pad(inputs, (4, 4, 4, 4))
    crop = padded[..., top : top + height, left : left + width]
    return crop.flip(-1) if flip else crop.contiguous()
