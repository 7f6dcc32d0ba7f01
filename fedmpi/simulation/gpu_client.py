"""Local training on a GPU: a local step of some clients is recorded once, then replayed.

Launching the kernels of a step from Python costs more than most of them take. A recorded step (a CUDA
graph) works on fixed memory: the samples of all local steps, the updates, what the method keeps for each
client, the number of the step and gamma. So one recording serves all rounds, clients and step sizes; there
is one for each size of minibatch and number of clients, and few are kept.

Several clients side by side fill a GPU: each on a stream and with model parameters of its own (the loop
engine), or as one computation (the batched engine, always with whole groups, since the bits of a product
may depend on the number of matrices).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmpi.data.device_draws import DeviceDraws
from fedmpi.data.shard import Work
from fedmpi.methods import Method
from fedmpi.methods.base import Local, Rate
from fedmpi.models.engines import Engine, Gradients, make_gradients
from fedmpi.models.flat import FlatModel, aligned_rows
from fedmpi.simulation.client import Failures, Group, LocalTrainer, Task, reseed
from fedmpi.simulation.gpu_program import SIDE_BY_SIDE, Lane, Program, Recordings, Step, streams
from fedmpi.simulation.local_step import method_step

_LARGEST_SIDE_BY_SIDE = 5_000_000  # parameters; beyond that one client fills a GPU


def make_trainer(
    engine: Engine, model: FlatModel, *, may_draw: bool, after_step: Callable[[], None]
) -> LocalTrainer:
    """The trainer for a model's device. `may_draw`: the model may draw random numbers."""
    first = make_gradients(engine, model)
    if model.values.device.type == "cpu":
        return LocalTrainer(first, after_step=after_step)

    # Side by side only what leaves room on the device, one by one what draws random numbers.
    is_small = model.num_params <= _LARGEST_SIDE_BY_SIDE and not may_draw
    count = SIDE_BY_SIDE[0] if first.group_size == 1 and is_small else 1
    lanes = [first, *(make_gradients(engine, model.replica()) for _ in range(count - 1))]
    return GpuTrainer(lanes, model.values.device, may_draw=may_draw, after_step=after_step)


@dataclass(frozen=True)
class _Kind:
    """What a recording depends on."""

    count: int  # clients
    batch: int
    is_full: bool  # minibatches are all samples of the client
    steps: int
    task: Hashable  # what their tasks have in common


class GpuTrainer(LocalTrainer):
    """Trains clients by recorded steps; a model that draws random numbers step by step."""

    def __init__(
        self,
        lanes: Sequence[Gradients],
        device: torch.device,
        *,
        may_draw: bool = False,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`lanes`: one for each client that is trained side by side; a single one trains groups."""
        super().__init__(lanes[0], after_step=after_step)
        self.recordings = Recordings(device, enabled=not may_draw)
        own = streams(device)[1 : 1 + len(lanes)]
        self._lanes = [Lane(gradients, stream) for gradients, stream in zip(lanes, own, strict=True)]
        self._draws = DeviceDraws(device)

    def train(
        self,
        updates: Tensor,
        tasks: Sequence[Task],
        failures: Failures,
        rows: Sequence[slice] | None = None,
    ) -> None:
        """As on a CPU. What this round's clients draw is sent to the device first, at once."""
        self._draws.send(
            [
                (work, task.current.local_lr)
                for task, some in zip(tasks, rows or [slice(None)] * len(tasks), strict=True)
                for work in task.works[some]
                if work.steps
            ]
        )
        super().train(updates, tasks, failures, rows)

    def _kind(self, task: Task) -> Hashable:
        """What a recorded step depends on."""
        method = task.method
        if not method.steps_by_itself:
            return task.clip_norm, tuple(task.local), None, None
        fixed = None if method.rate_on_device else task.current.local_lr
        return task.clip_norm, tuple(task.local), method.step_key, fixed

    def _group_size(self, left: int) -> int:
        """Whole groups of the batched engine; 4, 2 or 1 clients side by side by the loop engine."""
        if self._gradients.group_size > 1:
            return super()._group_size(left)
        return next(n for n in SIDE_BY_SIDE if n <= min(left, len(self._lanes)))

    def _train_group(self, updates: Tensor, group: Group, failures: Failures) -> None:
        # The program for clients that draw like these.
        work, task = group.works[0], group.pieces[0].task
        reseed(task, work)
        in_groups = self._gradients.group_size > 1
        kind = _Kind(
            count=self._gradients.group_size if in_groups else len(group.works),
            batch=work.batch, is_full=work.is_full, steps=work.steps, task=self._kind(task),
        )  # fmt: skip
        program = self.recordings.get(kind, lambda: self._program(kind, work, task))

        # Put the clients into its memory, take all steps, and take the results out.
        program.fill(group, self._draws)
        for _ in range(work.steps):
            program()
            self._after_step()
        program.take_out(group)

    def _program(self, kind: _Kind, work: Work, task: Task) -> Program:
        """New memory, and a step on it."""
        memory = {
            name: aligned_rows(kind.count, value.shape[1], value) for name, value in task.local.items()
        }
        starts = aligned_rows(kind.count, task.start.shape[-1], task.start)
        samples = self._draws.room(
            work.data, kind.count, kind.batch, is_full=kind.is_full, steps=kind.steps
        )
        lanes = self._lanes[: 1 if self._gradients.group_size > 1 else kind.count]
        share = kind.count // len(lanes)
        steps = []
        for index, lane in enumerate(lanes):
            rows = slice(share * index, share * (index + 1))
            own = {name: value[rows] for name, value in memory.items()}
            steps.append(_make_step(lane.gradients, starts[rows], own, task.method, task.clip_norm))
        is_fixed = task.method.steps_by_itself and not task.method.rate_on_device
        return Program(
            memory, starts, samples, lanes, steps, kind.batch, work.data,
            is_full=kind.is_full, rate=task.current.local_lr if is_fixed else None,
        )  # fmt: skip


def _make_step(
    gradients: Gradients, starts: Tensor, local: Local, method: Method, clip_norm: float | None
) -> Step:
    """One local step of the clients of a lane: inputs, labels, gamma and -gamma."""
    update = local["update"]
    local_params = gradients.local_params(len(update))
    if not method.steps_by_itself and clip_norm is None:
        add_to_update = gradients.adder(update)

        def plain(inputs: Tensor, labels: Tensor, local_lr: Rate, minus_lr: Rate) -> None:
            torch.add(starts, update, out=local_params)
            add_to_update(inputs, labels, minus_lr)

        return plain

    # Clipping and other methods need the gradient separately.
    gradient = aligned_rows(len(update), update.shape[1], update)
    add_gradient = gradients.adder(gradient)
    own_step = method_step(method, local, gradient, clip_norm)

    def step(inputs: Tensor, labels: Tensor, local_lr: Rate, minus_lr: Rate) -> None:
        torch.add(starts, update, out=local_params)
        add_gradient(inputs, labels, 1.0)
        own_step(local_lr, minus_lr)
        gradient.zero_()

    return step
