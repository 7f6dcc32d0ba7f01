"""Loss and accuracy on the whole training and test sets, over all ranks.

Every block of samples is evaluated by one rank, always with the same samples; the others contribute
zeros for it. So the sum over ranks is exact, and the means do not depend on the number of ranks.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

from fedmpi.data.evaluation import EvalData
from fedmpi.models.flat import FlatModel
from fedmpi.models.losses import sample_losses
from fedmpi.mpi import Comm


@torch.inference_mode()
def evaluate(
    comm: Comm, model: FlatModel, global_params: np.ndarray, data: EvalData
) -> tuple[float, float]:
    """Collective. (mean loss, accuracy) over the whole set; nan for an empty set or no classes."""
    # This rank's blocks: sums[b] = (loss, correct samples) of block b.
    model.load(global_params)
    model.forward.eval()
    sums = np.zeros((data.num_blocks, 2))
    for block, inputs, labels in data.blocks():
        outputs = model.forward(inputs)
        losses = sample_losses(outputs, labels)
        sums[block, 0] = losses.double().sum().item()  # waits for the device
        is_classifier = outputs.dim() == 2
        correct = (outputs.argmax(dim=1) == labels).sum().item() if is_classifier else math.nan
        sums[block, 1] = correct
    model.forward.train()

    # Exact: each block has one owner.
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
        self._seen, self._found = b"", (math.nan, math.nan)

    def __call__(self, global_params: np.ndarray) -> tuple[float, float]:
        """Collective. (mean loss, accuracy). x is the same on all ranks, so all see if it changed."""
        digest = hashlib.blake2b(global_params).digest()
        if digest != self._seen:
            self._seen, self._found = digest, evaluate(self._comm, self._model, global_params, self._data)
        return self._found
