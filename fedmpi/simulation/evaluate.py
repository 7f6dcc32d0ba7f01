"""Loss and metrics on the whole training and test sets, over all ranks; of one x, or of all x of a pack.

Every block of samples is evaluated by one rank, always with the same samples; the others contribute
zeros for it. So the sum over ranks is exact, and the means do not depend on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.data.evaluation import EvalData
from fedmpi.models.engines.forward import Forward, make_forward, may_take_many
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.simulation.by_client import ByClient, Cells
from fedmpi.simulation.shares import Vector

Metrics = tuple[float, ...]  # mean loss, and the others of the task in their order

_BLOCKS_AT_ONCE = 6


class Evaluator:
    """What was found for one set; it holds while x does not change (rounds without participants)."""

    def __init__(self, model: FlatModel, data: EvalData, clients_of: np.ndarray | None = None) -> None:
        """`clients_of`: the client of each sample of the set, if each client is looked at."""
        self.model, self.data = model, data
        self.found = self.nothing
        self.cells = None if clients_of is None else Cells(clients_of, data, model.task)
        self.found_by_client: ByClient | None = None
        self._seen: Vector | None = None
        self._seen_by_client: Vector | None = None
        self._forward: tuple[Sequence[FlatModel], Forward] | None = None

    @property
    def nothing(self) -> Metrics:
        """What stands for a set that is not evaluated: nan."""
        return self.model.task.evaluated((), 0)

    def is_new(self, global_params: Vector, *, by_client: bool = False) -> bool:
        """Whether x changed since the last evaluation. Nobody writes into x: then it is another vector."""
        return global_params is not (self._seen_by_client if by_client and self.cells else self._seen)

    def keep(self, global_params: Vector, found: Metrics) -> None:
        """What was found for this x."""
        self._seen, self.found = global_params, found

    def keep_by_client(self, global_params: Vector, sums: np.ndarray) -> None:
        """What was found for this x, client by client, as sums of cells."""
        self._seen_by_client, self.found_by_client = global_params, self.cells.metrics(sums)

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
    by_client: bool = False  # each client too, of the sets whose clients are known


@torch.inference_mode()
def look_all(comm: Comm, looks: Sequence[Look]) -> None:
    """Collective. Evaluate what several runs ask for, each set in one pass, with one message for all."""
    # What is new, by set: runs of a pack share their sets.
    wanted: dict[int, list[tuple[Evaluator, Look]]] = {}
    for look in looks:
        x, by_client = look.global_params, look.by_client
        new = [evaluator for evaluator in look.evaluators if evaluator.is_new(x, by_client=by_client)]
        if new:
            new[0].model.load(x)
        for evaluator in new:
            wanted.setdefault(id(evaluator.data), []).append((evaluator, look))

    # This rank's blocks; each has one owner, so that the sum over ranks is exact.
    sums = [part for some in wanted.values() for part in _sums(some)]
    if comm.size > 1 and sums:
        flat = np.concatenate([part.reshape(-1) for part in sums])
        comm.sum_in_place(flat)
        ends = np.cumsum([part.size for part in sums])
        sums = [flat[end - s.size : end].reshape(s.shape) for s, end in zip(sums, ends, strict=True)]

    # Means of the whole sets, and of each client.
    parts = iter(sums)
    for some in wanted.values():
        part = next(parts)
        for place, (evaluator, look) in enumerate(some):
            totals = [_total(values) for values in part[:, :, place].T]
            found = evaluator.model.task.evaluated(totals, evaluator.data.num_samples)
            evaluator.keep(look.global_params, found)
        for evaluator, look in _by_client(some):
            evaluator.keep_by_client(look.global_params, next(parts))


def evaluate(comm: Comm, model: FlatModel, global_params: Vector, data: EvalData) -> Metrics:
    """Collective. Mean loss and other metrics over the whole set; nan for an empty set."""
    evaluator = Evaluator(model, data)
    look_all(comm, [Look(global_params, [evaluator])])
    return evaluator.found


def _by_client(some: Sequence[tuple[Evaluator, Look]]) -> list[tuple[Evaluator, Look]]:
    """Those that look at each client too."""
    return [(evaluator, look) for evaluator, look in some if look.by_client and evaluator.cells]


def _sums(some: Sequence[tuple[Evaluator, Look]]) -> list[np.ndarray]:
    """(blocks, sums, models): what the task sums over samples, the loss first; zero in others' blocks.

    Then those of all cells, for each evaluator that looks at each client.
    """
    evaluators = [evaluator for evaluator, _ in some]
    data, models = evaluators[0].data, [evaluator.model for evaluator in evaluators]
    closer = [evaluators.index(evaluator) for evaluator, _ in _by_client(some)]
    task = models[0].task
    sums = np.zeros((data.num_blocks, len(task.summed), len(models)))
    if len(data.block_ids) == 0:
        return [sums, *(np.zeros((len(task.summed), len(evaluators[place].cells))) for place in closer)]
    for model in models:
        model.evaluates()

    # On a GPU nobody waits for the blocks one by one.
    forward = evaluators[0].forward(models)
    blocks = data.blocks(at_once=_BLOCKS_AT_ONCE if may_take_many(models[0]) else 1)
    found, each = [], []
    for inputs, labels in blocks:
        pulse.here.tick()
        values = task.of_samples(forward(inputs), labels)
        found.append(torch.stack([part.double().sum(dim=2) for part in values], dim=1))
        if closer:
            each.append(
                torch.stack([part[:, closer].double() for part in values]).transpose(2, 3).flatten(1, 2)
            )
    for model in models:
        model.trains()
    sums[data.block_ids] = (found[0] if len(found) == 1 else torch.cat(found)).cpu().numpy()
    if not closer:
        return [sums]
    by_sample = torch.cat(each, dim=1).cpu().numpy()  # (sums, samples, models)
    return [sums, *(evaluators[p].cells.sums(by_sample[:, :, n]) for n, p in enumerate(closer))]


def _total(values: np.ndarray) -> float:
    """The sum over all blocks, correctly rounded; inf if one is not finite, nan where nothing is known."""
    if np.isfinite(values).all():
        return math.fsum(values)
    return math.nan if np.isnan(values).all() else math.inf
