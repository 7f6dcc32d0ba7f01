"""What a client does in a round: I steps of SGD from x_t (Algorithm 1, lines 4 to 7).

The update itself is accumulated, y = x + update, instead of stepping y in place: at gamma = 1e-5 a step
often falls below half an ulp of y and would be lost in float32. Invariant: an update is a pure function
of x_t, gamma and the client's minibatches, regardless of which clients are trained with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedmpi.data import rng
from fedmpi.data.shard import ClientData, Work
from fedmpi.errors import ClientError
from fedmpi.methods import Method, Round
from fedmpi.methods.base import Local, Rate, add_scaled
from fedmpi.models.engines import Gradients
from fedmpi.models.flat import aligned_rows

Step = Callable[[Tensor, Tensor, Rate, Rate], None]

_MOST_STEPS = 256


class LocalTrainer:
    """Trains clients in groups of up to the engine's group size. On a CPU; see gpu_client.py for a GPU."""

    def __init__(
        self,
        gradients: Gradients,
        data: ClientData,
        start: Tensor,
        *,
        clip_norm: float | None = None,
        reseed: bool = False,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.data = data
        self.start = torch.empty_like(start)  # x_t in working precision
        self._gradients = gradients
        self._reseed = reseed  # a user's model may draw random numbers, in dropout for example
        self._after_step = after_step
        self._clip_norm = clip_norm
        self._plain_steps: dict[tuple[int, int], Step] = {}  # by the place of the updates

    def train(
        self, local: Local, works: Sequence[Work], method: Method, current: Round, local_steps: int
    ) -> None:
        """Write each client's update of a round into its row of local["update"]. `self.start` holds x_t.

        The method may change its other entries of `local`.
        """
        local["update"].zero_()
        for rows, group in self._groups(works):
            try:
                # A model with dropout draws from the client's own seed.
                if self._reseed:
                    torch.manual_seed(rng.integer(self.data.seed, "model", group[0].client, group[0].drawn))
                self._train_group(rows_of(local, rows), group, method, local_steps, current.local_lr)
            except Exception as error:
                # Name round and clients, whatever failed.
                who = ", ".join(str(work.client) for work in group)
                raise ClientError(
                    f"round {current.t}, client {who}: {type(error).__name__}: {error}"
                ) from error

    def _groups(self, works: Sequence[Work]) -> Iterator[tuple[slice, Sequence[Work]]]:
        """Neighbours that draw alike; a client without samples has a zero gradient.

        Clients draw alike if their minibatches have the same size and are all of their samples, or are not.
        """
        # Runs of clients that draw alike, cut to sizes that are trained together.
        begin = 0
        for (batch, _), same in itertools.groupby(works, lambda work: work.how_it_draws):
            end = begin + len(list(same))
            first = begin
            while batch and first < end:
                rows = slice(first, first + self._group_size(end - first))
                yield rows, works[rows]
                first = rows.stop
            begin = end

    def _group_size(self, left: int) -> int:
        """How many of `left` clients that draw alike are trained next."""
        return min(left, self._gradients.group_size)

    def _train_group(
        self, local: Local, group: Sequence[Work], method: Method, local_steps: int, local_lr: float
    ) -> None:
        step = self._step(local, method)
        for minibatch in self.data.minibatches(group, local_steps):
            step(*minibatch, local_lr, -local_lr)
            self._after_step()

    def _step(self, local: Local, method: Method) -> Step:
        """A step on these rows. Plain SGD works on the updates alone, whose rows come again every round."""
        if method.steps_by_itself or self._clip_norm is not None:
            return make_step(self._gradients, self.start, local, method, clip_norm=self._clip_norm)
        key = local["update"].data_ptr(), len(local["update"])
        if key not in self._plain_steps:
            if len(self._plain_steps) >= _MOST_STEPS:
                self._plain_steps.clear()
            self._plain_steps[key] = make_step(self._gradients, self.start, local, method, clip_norm=None)
        return self._plain_steps[key]


def make_step(
    gradients: Gradients, start: Tensor, local: Local, method: Method, *, clip_norm: float | None
) -> Step:
    """One local step of a group: y = x + update; then update -= gamma * gradient at y.

    It takes inputs, labels, gamma and -gamma.
    """
    update = local["update"]
    local_params = gradients.local_params(len(update))

    # Plain SGD: the engine adds the gradient directly to the update.
    if not method.steps_by_itself and clip_norm is None:
        add_gradient = gradients.adder(update)

        def step(inputs: Tensor, labels: Tensor, local_lr: Rate, minus_lr: Rate) -> None:
            torch.add(start, update, out=local_params)
            add_gradient(inputs, labels, minus_lr)

        return step

    # Clipping and other methods need the gradient separately.
    gradient = aligned_rows(len(update), update.shape[1], update)
    add_gradient = gradients.adder(gradient)

    def step_by_method(inputs: Tensor, labels: Tensor, local_lr: Rate, minus_lr: Rate) -> None:
        torch.add(start, update, out=local_params)
        add_gradient(inputs, labels, 1.0)
        if clip_norm is not None:
            norms = gradient.norm(dim=1, keepdim=True)
            gradient.mul_((clip_norm / norms).clamp_(max=1.0))
        if method.steps_by_itself:
            method.step(local, gradient, local_lr)
        else:
            add_scaled(update, gradient, minus_lr)
        gradient.zero_()

    return step_by_method


def rows_of(local: Local, rows: slice) -> Local:
    """The rows of some clients; entries that the server sent are shared by all."""
    return {name: value if name.startswith("server_") else value[rows] for name, value in local.items()}
