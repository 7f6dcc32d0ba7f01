"""What clients will draw in a round, sent to a GPU at once: positions of samples, crops and noise.

Invariant: the minibatches are those of `ClientData.minibatches`, bit for bit; they are put together on the
device, by programs that work on fixed memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.data import rng
from fedmpi.data.shard import ClientData, Work
from fedmpi.mpi.pinned import Upload


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Memory for the raw samples of some clients for all their local steps of a round."""

    inputs: Tensor  # (clients, samples, ...)
    labels: Tensor  # (clients, samples)
    crops: Tensor | None  # (clients, steps, 3): top, left, whether to flip
    noise: Tensor | None  # (clients, steps, batch, ...)


class DeviceDraws:
    """The draws of one round."""

    def __init__(self, data: ClientData, device: torch.device) -> None:
        self._data = data
        self._integers = Upload(torch.int64, device)
        self._reals = Upload(data.normalise.dtype, device)
        self._places: dict[int, int] = {}  # of clients among those of the round

    def room(self, count: int, batch: int, *, is_full: bool, steps: int) -> Samples:
        """Memory for `count` clients with minibatches of `batch` samples."""
        inputs, labels = self._data.inputs, self._data.labels
        samples = batch if is_full else batch * steps
        shape = inputs.shape[1:]
        return Samples(
            inputs=inputs.new_zeros((count, samples, *shape)),
            labels=labels.new_zeros((count, samples)),
            crops=labels.new_zeros((count, steps, 3)) if self._data.augment else None,
            noise=torch.zeros((count, steps, batch, *shape), dtype=self._data.normalise.dtype,
                              device=inputs.device) if self._data.noise_std else None,
        )  # fmt: skip

    def send(self, works: Sequence[Work], steps: int) -> None:
        """Draw for all these clients, and send what was drawn in one copy."""
        positions = [
            np.empty(0, np.int64) if work.samples is not None
            else work.positions(steps)
            for work in works
        ]  # fmt: skip
        crops = [self._crops(work, steps) for work in works] if self._data.augment else []
        noise = [self._noise(work, steps) for work in works] if self._data.noise_std else []
        integers = self._integers.put(_joined([*positions, *crops], np.int64))

        # Client after client in each; a group is a piece of it.
        self._ends = np.cumsum([0, *(len(part) for part in positions)])
        self._places = {work.client: place for place, work in enumerate(works)}
        self._positions, self._crop_values = integers.split(
            [int(self._ends[-1]), sum(c.size for c in crops)]
        )
        self._noise_values = self._reals.put(_joined(noise, np.float64))
        self._noise_ends = np.cumsum([0, *(part.size for part in noise)])

    def fill(self, group: Sequence[Work], samples: Samples) -> None:
        """Put the samples of a group, clients that were sent one after another, into a program's memory."""
        first, count = self._places[group[0].client], len(group)
        last = first + count
        num_own = sum(work.samples is None for work in group)

        # Own clients, which come first, in one pass; borrowed ones brought their samples along.
        if num_own:
            positions = self._positions[self._ends[first] : self._ends[first + num_own]]
            for source, target in (
                (self._data.inputs, samples.inputs),
                (self._data.labels, samples.labels),
            ):
                torch.index_select(source, 0, positions, out=target[:num_own].flatten(0, 1))
        for place, work in enumerate(group[num_own:], start=num_own):
            samples.inputs[place].copy_(work.samples[0])
            samples.labels[place].copy_(work.samples[1])

        # Crops and noise of all of them.
        if samples.crops is not None:
            size = samples.crops[0].numel()
            samples.crops[:count].view(-1).copy_(self._crop_values[size * first : size * last])
        if samples.noise is not None:
            values = self._noise_values[self._noise_ends[first] : self._noise_ends[last]]
            samples.noise[:count].view(-1).copy_(values)

    def _crops(self, work: Work, steps: int) -> np.ndarray:
        streams = (
            rng.stream(self._data.seed, "augment", work.client, work.drawn + k) for k in range(steps)
        )
        return np.array([[draws.integers(9), draws.integers(9), draws.integers(2)] for draws in streams])

    def _noise(self, work: Work, steps: int) -> np.ndarray:
        shape = (self._data.batch(work.client), *self._data.inputs.shape[1:])
        streams = (rng.stream(self._data.seed, "noise", work.client, work.drawn + k) for k in range(steps))
        return np.array([draws.standard_normal(shape) for draws in streams])


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([part.reshape(-1) for part in parts]) if parts else np.empty(0, dtype)


def crop_on_device(inputs: Tensor, crop: Tensor) -> Tensor:
    """As `random_crop_flip`, with (top, left, flip) on the device."""
    height, width = inputs.shape[-2:]
    top, left, flip = crop.unbind()
    down = torch.arange(height, device=inputs.device) + top
    across = torch.arange(width, device=inputs.device)
    across = left + across + flip * (width - 1 - 2 * across)
    padded = torch.nn.functional.pad(inputs, (4, 4, 4, 4))
    return padded.index_select(-2, down).index_select(-1, across)
