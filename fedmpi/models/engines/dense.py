"""Many clients at once, by hand, for models of dense layers: logistic regression and MLPs.

A step of such a model is a few small matrix products; autograd and Python around them cost several times
as much. Here the products of a group of clients are one call each (baddbmm), and the gradient goes
straight into the update. Invariant: all matrices of a client start at multiples of 64 bytes, the same in
every row, so that a product has the same bits in any row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi.models.engines.autograd import Adder, Scale
from fedmpi.models.flat import FlatModel, aligned_rows, together

threshold_backward = torch.ops.aten.threshold_backward.grad_input

_MOST_ROOMS = 64  # sizes of groups and minibatches for which memory is kept
_IN_PLACE = 50_000  # entries of a weight from which adding its gradient inside the product is faster


class Dense:
    """Gradients of a group of clients."""

    by_inference = True
    takes_rates = True
    sets_first = True

    def __init__(self, model: FlatModel, layers: list[nn.Linear]) -> None:
        self._model = model
        self._widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self.group_size = together(16, model.num_params)
        self._local_params = aligned_rows(self.group_size, model.num_params, model.values)
        self._rooms: dict[tuple[int, int], _Room] = {}
        self._scratch = [
            aligned_rows(self.group_size, layer.weight.numel(), model.values).view(-1, *layer.weight.shape)
            if layer.weight.numel() < _IN_PLACE
            else None
            for layer in layers
        ]

    def local_params(self, count: int) -> Tensor:
        """A stack separate from the model."""
        return self._local_params[:count]

    def memory(self) -> object:
        """The parameters, and room for inputs and outputs."""
        return self._local_params, list(self._rooms.values()), self._scratch

    def adder(self, target: Tensor) -> Adder:
        """Adds scale * gradient to `target`, for all rows at once."""
        # Weights and biases of all clients, and where their gradients go.
        count = len(target)
        at = self._model.stacked_views(self._local_params[:count])
        weights, biases = at[::2], [bias.unsqueeze(2) for bias in at[1::2]]
        backwards = [weight.transpose(1, 2) for weight in weights]
        targets = self._model.stacked_views(target)
        weight_targets, bias_targets = targets[::2], targets[1::2]
        scratch = [None if part is None else part[:count] for part in self._scratch]
        last, slope_of = len(weights) - 1, self._model.task.slope
        classes = torch.arange(self._widths[-1], device=target.device)[:, None]

        def add(inputs: Tensor, labels: Tensor, scale: Scale, is_first: bool = False) -> None:
            batch = labels.shape[1]
            room = self._room(count, batch)
            values, transposed = room.place(inputs)

            # Forward: values[k + 1] = relu(W values[k] + b), without relu in the last layer.
            for k in range(last + 1):
                out = torch.bmm(weights[k], values[k], out=values[k + 1]).add_(biases[k])
                if k < last:
                    out.relu_()

            # d(mean loss)/d(outputs) = d(loss)/d(outputs) / batch; the scale goes in here, once.
            slope = slope_of(values[-1], labels, classes, room.minus_ones)
            room.multiply_slope(scale, batch)

            # Backward, from the last layer to the first. The first gradient of a round is set, not added.
            for k in range(last, -1, -1):
                total = torch.sum(slope, dim=2, out=room.sums[k])
                if scratch[k] is None:
                    if is_first:
                        weight_targets[k].zero_()
                    weight_targets[k].baddbmm_(slope, transposed[k])
                else:
                    torch.bmm(slope, transposed[k], out=scratch[k])
                    _put(weight_targets[k], scratch[k], is_first)
                _put(bias_targets[k], total, is_first)
                if k:  # through the relu before, whose outputs are not needed any more
                    before = torch.bmm(backwards[k], slope)
                    slope = threshold_backward(before, values[k], 0, grad_input=values[k])

        return add

    def _room(self, count: int, batch: int) -> _Room:
        """Made once for each number of clients and size of minibatch."""
        room = self._rooms.get((count, batch))
        if room is None:
            if len(self._rooms) >= _MOST_ROOMS:
                del self._rooms[next(iter(self._rooms))]
            room = self._rooms[count, batch] = _Room(self._local_params, count, batch, self._widths)
        return room


def _put(target: Tensor, values: Tensor, is_first: bool) -> None:
    """Set the first values, add others to them."""
    if is_first:
        target.copy_(values)
    else:
        target.add_(values)


class _Room:
    """Memory of a group's samples and of the outputs of each layer, with samples as columns.

    Samples are columns, which makes W the left factor: twice as fast as the other way round.
    """

    @torch.inference_mode(mode=False)  # so that it may be used within that mode and outside
    def __init__(self, like: Tensor, count: int, batch: int, widths: list[int]) -> None:
        rows = [aligned_rows(count, batch * width, like) for width in widths]
        self._samples = rows[0].view(count, batch, -1)
        self._outputs = [part.view(count, -1, batch) for part in rows[1:]]
        self._slope = self._outputs[-1]
        self._slope_array = self._slope.numpy() if like.device.type == "cpu" else None
        self.sums = [like.new_empty((count, width)) for width in widths[1:]]
        self._copied = self._with(self._samples)
        self._in_place: dict[tuple, tuple[list[Tensor], list[Tensor]]] = {}  # samples used where they are
        self.minus_ones = like.new_full((count, 1, batch), -1.0)

    def place(self, inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Samples and outputs of each layer, (clients, width, batch) each; and the same transposed.

        The inputs are used where they are, if their layout is right, else copied.
        """
        # The same place again: memory that is known here cannot have been given to others.
        key = inputs.data_ptr(), inputs.stride()
        found = self._in_place.get(key)
        if found is not None:
            return found

        # Whether the layout is right.
        samples = inputs.reshape(self._samples.shape)
        if samples.data_ptr() == key[0] and samples.stride() == self._samples.stride() and key[0] % 64 == 0:
            if len(self._in_place) >= _MOST_ROOMS:
                self._in_place.clear()
            self._in_place[key] = self._with(samples)
            return self._in_place[key]
        self._samples.copy_(samples)
        return self._copied

    def multiply_slope(self, scale: Scale, batch: int) -> None:
        """The last outputs times scale / batch."""
        if isinstance(scale, Tensor):
            self._slope.mul_((scale / batch).to(self._slope.dtype).unsqueeze(2))
        elif self._slope_array is not None:  # a quarter of the time of torch's call
            np.multiply(self._slope_array, scale / batch, out=self._slope_array)
        else:
            self._slope.mul_(scale / batch)

    def _with(self, samples: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        values = [samples.transpose(1, 2), *self._outputs]
        return values, [samples, *(part.transpose(1, 2) for part in self._outputs)]
