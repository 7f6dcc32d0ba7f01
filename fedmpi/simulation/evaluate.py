"""Loss and accuracy on the whole training and test sets, over all ranks.

Every block of samples is evaluated by one rank, always with the same samples; the others contribute
zeros for it. So the sum over ranks is exact, and the means do not depend on the number of ranks.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fedmpi.data.evaluation import EvalData
from fedmpi.models.flat import FlatModel
from fedmpi.models.losses import sample_losses
from fedmpi.mpi import Comm
from fedmpi.simulation.aggregate import Vector


@torch.inference_mode()
def evaluate(comm: Comm, model: FlatModel, global_params: Vector, data: EvalData) -> tuple[float, float]:
    """Collective. (mean loss, accuracy) over the whole set; nan for an empty set or no classes."""
    # This rank's blocks: (loss, correct samples) of each; on a GPU nobody waits for them one by one.
    model.load(global_params)
    model.forward.eval()
    found, device = [], model.values.device
    nothing = torch.full((), math.nan, dtype=torch.float64, device=device)
    for inputs, labels in data.blocks():
        outputs = model.forward(inputs)
        losses = sample_losses(outputs, labels)
        is_classifier = outputs.dim() == 2
        correct = (outputs.argmax(dim=1) == labels).sum().double() if is_classifier else nothing
        found.append(torch.stack((losses.double().sum(), correct)))
    model.forward.train()

    # Exact: each block has one owner.
    sums = np.zeros((data.num_blocks, 2))
    if found:
        sums[data.block_ids] = torch.stack(found).cpu().numpy()
    comm.sum_in_place(sums.reshape(-1))
    if data.num_samples == 0:
        return math.nan, math.nan

    # fsum: the correctly rounded sum of the blocks.
    losses, correct = sums.T
    loss = math.fsum(losses) / data.num_samples if np.isfinite(losses).all() else math.inf
    return loss, correct.sum() / data.num_samples


class Evaluator:
    """Evaluates x on one set; keeps the result while x does not change (rounds without participants)."""

    def __init__(self, comm: Comm, model: FlatModel, data: EvalData) -> None:
        self._comm, self._model, self._data = comm, model, data
        self._seen: Vector | None = None
        self._found = (math.nan, math.nan)

    def __call__(self, global_params: Vector) -> tuple[float, float]:
        """Collective. (mean loss, accuracy). Nobody writes into x: it changed if it is another vector."""
        if global_params is not self._seen:
            self._seen = global_params
            self._found = evaluate(self._comm, self._model, global_params, self._data)
        return self._found
