"""What a client does in a round: I steps of SGD from x_t (Algorithm 1, lines 4 to 7).

The update itself is accumulated, y = x + update, instead of stepping y in place: at gamma = 1e-5 a step
often falls below half an ulp of y and would be lost in float32. Invariant: an update is a pure function
of x_t, gamma and the client's minibatches, whichever clients are trained together with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedmpi import rng
from fedmpi.data.shard import ClientData, Work
from fedmpi.engines import Gradients, is_capturable
from fedmpi.engines.cuda_graph import Recordings
from fedmpi.errors import ClientError


class LocalTrainer:
    """Trains clients in groups, as large as the engine takes."""

    def __init__(
        self,
        gradients: Gradients,
        data: ClientData,
        start: Tensor,
        *,
        reseed: bool = False,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.data = data
        self.start = torch.empty_like(start)  # x_t in working precision
        self._gradients = gradients
        self._reseed = reseed  # a user's model may draw random numbers, in dropout for example
        self._after_step = after_step
        self._records = is_capturable(start.device, is_random=reseed, in_groups=gradients.group_size > 1)
        self._recordings = Recordings()

    def train(
        self, updates: Tensor, works: Sequence[Work], t: int, local_steps: int, local_lr: float
    ) -> None:
        """Write each client's update of round t into its row of `updates`. `self.start` holds x_t."""
        updates.zero_()
        for rows, group in self._groups(works):
            try:
                if self._reseed:
                    torch.manual_seed(rng.integer(self.data.seed, "model", group[0].client, group[0].drawn))
                self._train_group(updates[rows], group, local_steps, local_lr)
            except Exception as error:
                who = ", ".join(str(work.client) for work in group)
                raise ClientError(f"round {t}, client {who}: {type(error).__name__}: {error}") from error

    def _groups(self, works: Sequence[Work]) -> Iterator[tuple[slice, Sequence[Work]]]:
        """Neighbours with minibatches of the same size; a client without samples has a zero gradient."""
        begin = 0
        for batch, same in itertools.groupby(works, lambda work: self.data.batch(work.client)):
            end = begin + len(list(same))
            if batch:
                for first in range(begin, end, self._gradients.group_size):
                    rows = slice(first, min(first + self._gradients.group_size, end))
                    yield rows, works[rows]
            begin = end

    def _train_group(
        self, updates: Tensor, group: Sequence[Work], local_steps: int, local_lr: float
    ) -> None:
        local_params = self._gradients.local_params(len(group))
        add_gradient = self._gradients.adder(updates)

        def step(inputs: Tensor, labels: Tensor) -> None:
            # y = x + update; then update -= gamma * gradient at y.
            torch.add(self.start, updates, out=local_params)
            add_gradient(inputs, labels, -local_lr)

        for number, minibatch in enumerate(self.data.minibatches(group, local_steps)):
            if number == 0 and self._records:
                step = self._recordings.get(step, updates, minibatch, local_lr)
            step(*minibatch)
            self._after_step()
