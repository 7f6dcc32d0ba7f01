"""Loss and accuracy on the whole training and test sets, over all ranks; of one x, or of all x of a pack.

Every block of samples is evaluated by one rank, always with the same samples; the others contribute
zeros for it. So the sum over ranks is exact, and the means do not depend on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.data.evaluation import EvalData
from fedmpi.models.engines.forward import Forward, make_forward, may_take_many
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.simulation.shares import Vector

Metrics = tuple[float, float]  # mean loss, accuracy

NOTHING: Metrics = math.nan, math.nan
_BLOCKS_AT_ONCE = 6


class Evaluator:
    """What was found for one set; it holds while x does not change (rounds without participants)."""

    def __init__(self, model: FlatModel, data: EvalData) -> None:
        self.model, self.data = model, data
        self.found = NOTHING
        self._seen: Vector | None = None
        self._forward: tuple[Sequence[FlatModel], Forward] | None = None

    def is_new(self, global_params: Vector) -> bool:
        """Whether x changed since the last evaluation. Nobody writes into x: then it is another vector."""
        return global_params is not self._seen

    def keep(self, global_params: Vector, found: Metrics) -> None:
        """What was found for this x."""
        self._seen, self.found = global_params, found

    def forward(self, models: Sequence[FlatModel]) -> Forward:
        """That of some models on this set, at their present parameters; kept for the same models."""
        if self._forward is None or self._forward[0] != models:
            self._forward = models, make_forward(models, self.data)
        self._forward[1].load()
        return self._forward[1]


@dataclass(frozen=True, eq=False)
class Look:
    """What a run wants to know: x on some sets. The answer is in `found` of these evaluators."""

    global_params: Vector
    evaluators: Sequence[Evaluator]  # of one model


@torch.inference_mode()
def look_all(comm: Comm, looks: Sequence[Look]) -> None:
    """Collective. Evaluate what several runs ask for, each set in one pass, with one message for all."""
    # What is new, by set: runs of a pack share their sets.
    wanted: dict[int, list[tuple[Evaluator, Vector]]] = {}
    for look in looks:
        new = [evaluator for evaluator in look.evaluators if evaluator.is_new(look.global_params)]
        if new:
            new[0].model.load(look.global_params)
        for evaluator in new:
            wanted.setdefault(id(evaluator.data), []).append((evaluator, look.global_params))

    # This rank's blocks; each has one owner, so that the sum over ranks is exact.
    sums = [_sums([evaluator for evaluator, _ in some]) for some in wanted.values()]
    if comm.size > 1 and sums:
        flat = np.concatenate([part.reshape(-1) for part in sums])
        comm.sum_in_place(flat)
        ends = np.cumsum([part.size for part in sums])
        sums = [flat[end - s.size : end].reshape(s.shape) for s, end in zip(sums, ends, strict=True)]

    # Means of the whole sets.
    for some, part in zip(wanted.values(), sums, strict=True):
        for place, (evaluator, x) in enumerate(some):
            evaluator.keep(x, _means(*part[:, :, place].T, evaluator.data.num_samples))


def evaluate(comm: Comm, model: FlatModel, global_params: Vector, data: EvalData) -> Metrics:
    """Collective. (mean loss, accuracy) over the whole set; nan for an empty set or no classes."""
    evaluator = Evaluator(model, data)
    look_all(comm, [Look(global_params, [evaluator])])
    return evaluator.found


def _sums(evaluators: Sequence[Evaluator]) -> np.ndarray:
    """(blocks, 2, models): sums of losses and of right answers on one set; zero in others' blocks."""
    data, models = evaluators[0].data, [evaluator.model for evaluator in evaluators]
    sums = np.zeros((data.num_blocks, 2, len(models)))
    if len(data.block_ids) == 0:
        return sums
    for model in models:
        model.evaluates()

    # On a GPU nobody waits for the blocks one by one.
    forward = evaluators[0].forward(models)
    blocks = data.blocks(at_once=_BLOCKS_AT_ONCE if may_take_many(models[0]) else 1)
    found = [_look_at(forward(inputs), labels) for inputs, labels in blocks]
    for model in models:
        model.trains()
    sums[data.block_ids] = (found[0] if len(found) == 1 else torch.cat(found)).cpu().numpy()
    return sums


def _look_at(outputs: Tensor, labels: Tensor) -> Tensor:
    """(blocks, 2, models) in float64: sums of the losses, and how many samples are classified correctly.

    Takes (blocks, models, classes, samples), or (blocks, models, samples) of losses; and labels,
    (blocks, samples).
    """
    pulse.here.tick()
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
    if count == 0:
        return NOTHING
    loss = math.fsum(losses) / count if np.isfinite(losses).all() else math.inf
    return loss, correct.sum() / count
