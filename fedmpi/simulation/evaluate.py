"""Loss and accuracy on the whole training and test sets, over all ranks; of one x, or of all x of a pack.

Every block of samples is evaluated by one rank, always with the same samples; the others contribute
zeros for it. So the sum over ranks is exact, and the means do not depend on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmpi.data.evaluation import EvalData
from fedmpi.models.engines.forward import make_forward, may_take_many
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.simulation.aggregate import Vector

Metrics = tuple[float, float]  # mean loss, accuracy

NOTHING: Metrics = math.nan, math.nan
_BLOCKS_AT_ONCE = 16


def evaluate(comm: Comm, model: FlatModel, global_params: Vector, data: EvalData) -> Metrics:
    """Collective. (mean loss, accuracy) over the whole set; nan for an empty set or no classes."""
    return evaluate_all(comm, [model], [global_params], data)[0]


@torch.inference_mode()
def evaluate_all(
    comm: Comm, models: Sequence[FlatModel], vectors: Sequence[Vector], data: EvalData
) -> list[Metrics]:
    """Collective. As `evaluate`, of several x, each with a model of its own, in one pass over the data."""
    if data.num_samples == 0:
        return [NOTHING] * len(models)
    for model, global_params in zip(models, vectors, strict=True):
        model.load(global_params)
        model.forward.eval()

    # This rank's blocks; on a GPU nobody waits for them one by one.
    forwards, found = [make_forward(model) for model in models], []
    for inputs, labels in data.blocks(at_once=_BLOCKS_AT_ONCE if may_take_many(models[0]) else 1):
        outputs = torch.stack([forward(inputs) for forward in forwards], dim=1)
        found.append(_look_at(outputs, labels))
    for model in models:
        model.forward.train()

    # Exact: each block has one owner.
    sums = np.zeros((data.num_blocks, 2, len(models)))
    if found:
        sums[data.block_ids] = torch.cat(found).cpu().numpy()
    comm.sum_in_place(sums.reshape(-1))
    return [_means(*sums[:, :, k].T, data.num_samples) for k in range(len(models))]


def _look_at(outputs: Tensor, labels: Tensor) -> Tensor:
    """(blocks, 2, models) in float64: sums of the losses, and how many samples are classified correctly.

    Takes (blocks, models, classes, samples), or (blocks, models, samples) of losses; labels (blocks, samples).
    """
    if outputs.dim() == 3:
        losses = outputs.double().sum(dim=2)
        return torch.stack((losses, torch.full_like(losses, math.nan)), dim=1)

    # Classes come before samples: ten times as fast as the other way round.
    wanted = labels[:, None, None].expand(-1, outputs.shape[1], 1, -1)
    losses = torch.log_softmax(outputs, dim=2).gather(2, wanted).neg_()
    right = outputs.max(dim=2, keepdim=True).indices == wanted  # of equal ones the first
    return torch.cat((losses.double().sum(dim=3), right.double().sum(dim=3)), dim=2).transpose(1, 2)


def _means(losses: np.ndarray, correct: np.ndarray, count: int) -> Metrics:
    """From the sums of all blocks; fsum: correctly rounded."""
    loss = math.fsum(losses) / count if np.isfinite(losses).all() else math.inf
    return loss, correct.sum() / count


class Evaluator:
    """Evaluates x on one set; keeps the result while x does not change (rounds without participants)."""

    def __init__(self, comm: Comm, model: FlatModel, data: EvalData) -> None:
        self._comm, self.model, self.data = comm, model, data
        self._seen: Vector | None = None
        self._found = NOTHING

    def __call__(self, global_params: Vector) -> Metrics:
        """Collective. (mean loss, accuracy)."""
        if self.is_new(global_params):
            self.keep(global_params, evaluate(self._comm, self.model, global_params, self.data))
        return self._found

    def is_new(self, global_params: Vector) -> bool:
        """Whether x changed since the last evaluation. Nobody writes into x: then it is another vector."""
        return global_params is not self._seen

    def keep(self, global_params: Vector, found: Metrics) -> None:
        """What was found for this x."""
        self._seen, self._found = global_params, found
