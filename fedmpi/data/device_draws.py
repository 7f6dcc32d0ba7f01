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

Draw = tuple[Work, float]  # with gamma of its run


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Memory for the raw samples of some clients for all their local steps of a round."""

    inputs: Tensor  # (clients, samples, ...)
    labels: Tensor  # (clients, samples, ...)
    rates: Tensor  # (2, clients, 1): gamma, -gamma
    crops: Tensor | None  # (clients, steps, 3): top, left, whether to flip
    noise: Tensor | None  # (clients, steps, batch, ...)


class DeviceDraws:
    """The draws of one round, of one run or of all in a pack, which share their samples."""

    def __init__(self, device: torch.device) -> None:
        self._integers = Upload(torch.int64, device)
        self._reals, self._rates_sent = Upload(torch.float64, device), Upload(torch.float64, device)
        self._gammas: list[float] = []  # of the clients, as they were sent
        self._places: dict[int, int] = {}  # of clients among those of the round

    def room(self, data: ClientData, count: int, batch: int, *, is_full: bool, steps: int) -> Samples:
        """Memory for `count` clients with minibatches of `batch` samples."""
        inputs, labels = data.inputs, data.labels
        samples = batch if is_full else batch * steps
        shape = inputs.shape[1:]
        return Samples(
            inputs=inputs.new_zeros((count, samples, *shape)),
            labels=labels.new_zeros((count, samples, *labels.shape[1:])),
            rates=torch.zeros((2, count, 1), dtype=torch.float64, device=inputs.device),
            crops=labels.new_zeros((count, steps, 3), dtype=torch.int64) if data.augment else None,
            noise=torch.zeros((count, steps, batch, *shape), dtype=data.normalise.dtype,
                              device=inputs.device) if data.noise_std else None,
        )  # fmt: skip

    def send(self, draws: Sequence[Draw]) -> None:
        """Draw for all these clients, and send what was drawn in one copy."""
        positions = [
            np.empty(0, np.int64) if work.samples is not None else work.positions(work.steps)
            for work, _ in draws
        ]
        crops = [_crops(work, work.steps) for work, _ in draws if work.data.augment]
        noise = [_noise(work, work.steps) for work, _ in draws if work.data.noise_std]
        gammas = [rate for _, rate in draws]
        if gammas != self._gammas:
            self._rates = self._rates_sent.put(np.array([gammas, [-g for g in gammas]])).view(2, -1, 1)
            self._gammas = gammas
        integers = self._integers.put(_joined([*positions, *crops], np.int64))
        self._noise_values = self._reals.put(_joined(noise, np.float64))

        # Client after client in each; a group is a piece of it.
        self._places = {id(work): place for place, (work, _) in enumerate(draws)}
        self._ends = np.cumsum([0, *(len(part) for part in positions)])
        self._positions, self._crop_values = integers.split(
            [int(self._ends[-1]), sum(c.size for c in crops)]
        )
        self._crop_ends = np.cumsum([0, *(part.size for part in crops)])
        self._noise_ends = np.cumsum([0, *(part.size for part in noise)])

    def fill(self, group: Sequence[Work], samples: Samples) -> None:
        """Put the samples of a group, clients that were sent one after another, into a program's memory."""
        first, count = self._places[id(group[0])], len(group)
        last = first + count

        # Own clients in one pass if there are no others; borrowed ones brought their samples along.
        data = group[0].data
        if all(work.samples is None for work in group):
            positions = self._positions[self._ends[first] : self._ends[last]]
            for source, target in ((data.inputs, samples.inputs), (data.labels, samples.labels)):
                torch.index_select(source, 0, positions, out=target[:count].flatten(0, 1))
        else:
            for place, work in enumerate(group):
                where = self._positions[self._ends[first + place] : self._ends[first + place + 1]]
                parts = work.samples or (
                    data.inputs.index_select(0, where),
                    data.labels.index_select(0, where),
                )
                samples.inputs[place].copy_(parts[0])
                samples.labels[place].copy_(parts[1])

        # Crops and noise of all of them.
        if samples.crops is not None:
            values = self._crop_values[self._crop_ends[first] : self._crop_ends[last]]
            samples.crops[:count].view(-1).copy_(values)
        if samples.noise is not None:
            values = self._noise_values[self._noise_ends[first] : self._noise_ends[last]]
            samples.noise[:count].view(-1).copy_(values)

    def fill_rates(self, group: Sequence[Work], samples: Samples) -> None:
        """Gamma of a group."""
        first, count = self._places[id(group[0])], len(group)
        samples.rates[:, :count].copy_(self._rates[:, first : first + count])


def _crops(work: Work, steps: int) -> np.ndarray:
    streams = (rng.stream(work.data.seed, "augment", work.client, work.drawn + k) for k in range(steps))
    return np.array([[draws.integers(9), draws.integers(9), draws.integers(2)] for draws in streams])


def _noise(work: Work, steps: int) -> np.ndarray:
    shape = (work.batch, *work.data.inputs.shape[1:])
    streams = (rng.stream(work.data.seed, "noise", work.client, work.drawn + k) for k in range(steps))
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
