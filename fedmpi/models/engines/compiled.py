"""Dense layers on a CPU, client by client in machine code (kernels.py); as dense.py otherwise.

Plain local steps are one call for all clients of a run that are here; those of methods with steps of their
own, with clipping or with changed samples are computed one by one. Invariant: a client's update does not
depend on what is trained beside it, nor on the rank that trains it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi.data.evaluation import EvalData, Normaliser
from fedmpi.data.shard import ClientData, Work
from fedmpi.models.engines.autograd import Adder, Scale
from fedmpi.models.engines.dense import Dense
from fedmpi.models.flat import FlatModel
from fedmpi.tasks.classification import Classification

_IN_CACHE = 1 << 18  # parameters; libraries multiply larger layers faster
_STORED = (torch.uint8, torch.float32)  # samples that are read as they are stored


def may_compile(model: FlatModel) -> bool:
    """Whether the kernels are for this model: dense layers in float32 on a CPU, and cross-entropy."""
    values, slope = model.values, type(model.task).slope
    return values.device.type == "cpu" and values.dtype == torch.float32 and slope is Classification.slope


def may_compute_outputs(model: FlatModel, data: EvalData) -> bool:
    """Whether the kernels are for evaluations: of dense layers that a cache holds, in float32 on a CPU."""
    values = model.values
    return (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and data.inputs.dtype in _STORED
        and data.inputs[:1].numel() == min(len(data.inputs), 1) * model.dense_layers[0].in_features
        and model.num_params <= _IN_CACHE
    )


class Compiled(Dense):
    """Gradients of a group of clients, one after another."""

    def __init__(self, model: FlatModel, layers: list[nn.Linear]) -> None:
        super().__init__(model, layers)
        from fedmpi.models.engines import kernels  # takes half a second

        self._kernels = kernels
        self._sizes = _widths(layers)
        self._rooms_of: dict[int, np.ndarray] = {}
        self._normalised: tuple[Normaliser, tuple[np.ndarray, np.ndarray]] | None = None

    def adder(self, target: Tensor) -> Adder:
        """Adds scale * gradient to `target`, row by row."""
        params, rows = self._local_params[: len(target)].numpy(), target.numpy()

        def add(inputs: Tensor, labels: Tensor, scale: Scale, is_first: bool = False) -> None:
            batch = labels.shape[1]
            values, slopes = self._split(batch)
            samples, wanted = inputs.reshape(len(target), -1).numpy(), labels.numpy()
            if samples.shape[1] != batch * self._widths[0]:
                raise ValueError("samples do not have as many numbers as the model takes")
            for i, row in enumerate(rows):
                if is_first:
                    row[:] = 0
                values[: samples.shape[1]] = samples[i]
                own = float(scale[i]) if isinstance(scale, Tensor) else scale
                self._kernels.add_gradient(
                    params[i], row, self._sizes, values, slopes, wanted[i], np.float32(own / batch)
                )

        return add

    def takes(self, works: Sequence[Work]) -> bool:
        """Whether `train` can read the samples of some clients of a run."""
        if not works:
            return False
        data = works[0].data
        return (
            data.inputs.dtype in _STORED and data.normalise.dtype == torch.float32 and not data.is_changed
        )

    def train(self, start: Tensor, updates: Tensor, works: Sequence[Work], local_lr: float) -> None:
        """All local steps of clients of a run that draw alike; `start`: for all, or a row for each."""
        first, steps = works[0], works[0].steps
        room, step_size = self._room_for(first.batch), np.float32(-local_lr / first.batch)
        starts, targets = start.numpy().reshape(-1, start.shape[-1]), updates.numpy()
        scale, shift = self._factors(first.data)

        # Those whose samples are here in one call, lent ones by themselves.
        if all(work.samples is None for work in works):
            pieces = [(slice(None), first.data.inputs, first.data.labels,
                       np.stack([work.positions(steps) for work in works]))]  # fmt: skip
        else:
            pieces = [
                (slice(n, n + 1), *samples, rows[None])
                for n, (*samples, rows) in enumerate(work.stored(steps) for work in works)
            ]
        for some, inputs, labels, rows in pieces:
            self._kernels.train(
                starts if len(starts) == 1 else starts[some], targets[some], self._sizes,
                inputs.numpy().reshape(len(inputs), -1), labels.numpy(), rows,
                first.batch, steps, scale, shift, step_size, room,
            )  # fmt: skip

    def _factors(self, data: ClientData) -> tuple[np.ndarray, np.ndarray]:
        """Those of a data set; all runs of a pack share it."""
        if self._normalised is None or self._normalised[0] is not data.normalise:
            self._normalised = data.normalise, factors_of(data.normalise, data.inputs.shape[1:])
        return self._normalised[1]

    def _split(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for the outputs of all layers, the samples first; and for two slopes."""
        room, end = self._room_for(batch)[2 * self._model.num_params :], batch * sum(self._widths)
        return room[:end], room[end:]

    def _room_for(self, batch: int) -> np.ndarray:
        """For y and an update, the samples and the outputs of all layers, and two slopes."""
        if batch not in self._rooms_of:
            if len(self._rooms_of) >= 64:
                self._rooms_of.clear()
            widest = max(self._widths[1:-1], default=0)
            size = 2 * self._model.num_params + batch * (sum(self._widths) + 2 * widest)
            self._rooms_of[batch] = np.empty(size, np.float32)
        return self._rooms_of[batch]


class CompiledOutputs:
    """Outputs of several models for blocks of samples, each normalised once for all (see forward.py)."""

    def __init__(self, models: Sequence[FlatModel], data: EvalData) -> None:
        from fedmpi.models.engines import kernels

        self._kernels, self._models = kernels, models
        self._sizes = _widths(models[0].dense_layers)
        self._stacked = np.empty((len(models), models[0].num_params), np.float32)
        self._factors = factors_of(data.normalise, data.inputs.shape[1:])
        self._room = np.empty(kernels.SAMPLES * (self._sizes[0] + 2 * max(self._sizes[1:])), np.float32)
        self._outputs: dict[tuple[int, int], Tensor] = {}

    def load(self) -> None:
        """Take over their present parameters."""
        for row, model in zip(self._stacked, self._models, strict=True):
            row[:] = model.values.numpy()

    @torch.inference_mode(mode=False)
    def __call__(self, inputs: Tensor) -> Tensor:
        """(blocks, models, classes, samples), valid until the next call."""
        blocks, samples = inputs.shape[:2]
        outputs = self._outputs.get((blocks, samples))
        if outputs is None:
            shape = blocks, len(self._models), int(self._sizes[-1]), samples
            outputs = self._outputs[blocks, samples] = torch.empty(shape, dtype=torch.float32)
        for block, out in zip(inputs.flatten(2).numpy(), outputs.numpy(), strict=True):
            self._kernels.outputs_of(self._stacked, self._sizes, block, *self._factors, self._room, out)
        return outputs


def factors_of(normalise: Normaliser, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The normalisation of each number of a sample of this shape."""
    parts = normalise.scale, normalise.shift
    if normalise.scale is None:
        parts = torch.ones(()), torch.zeros(())
    scale, shift = (part.expand(1, *shape).reshape(-1).contiguous().numpy() for part in parts)
    return scale, shift


def _widths(layers: Sequence[nn.Linear]) -> np.ndarray:
    return np.array([layers[0].in_features, *(layer.out_features for layer in layers)])
