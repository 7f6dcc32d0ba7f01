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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmpi.data.device_draws import DeviceDraws
from fedmpi.data.shard import ClientData, Work
from fedmpi.methods import Method, Round
from fedmpi.methods.base import Local
from fedmpi.models.engines import Engine, Gradients, make_gradients
from fedmpi.models.flat import FlatModel, aligned_rows
from fedmpi.simulation.client import LocalTrainer, make_step, rows_of
from fedmpi.simulation.gpu_program import SIDE_BY_SIDE, Lane, Program, Recordings, streams

_LARGEST_SIDE_BY_SIDE = 5_000_000  # parameters; beyond that one client fills a GPU


def make_trainer(
    engine: Engine,
    model: FlatModel,
    data: ClientData,
    *,
    clip_norm: float | None,
    reseed: bool,
    after_step: Callable[[], None],
) -> LocalTrainer:
    """The trainer for a model's device."""
    options = {"clip_norm": clip_norm, "reseed": reseed, "after_step": after_step}
    first = make_gradients(engine, model)
    if model.values.device.type == "cpu":
        return LocalTrainer(first, data, model.values, **options)

    # Side by side only what leaves room on the device, one by one what draws random numbers.
    is_small = model.num_params <= _LARGEST_SIDE_BY_SIDE and not reseed
    count = SIDE_BY_SIDE[0] if first.group_size == 1 and is_small else 1
    lanes = [first, *(make_gradients(engine, model.replica()) for _ in range(count - 1))]
    return GpuTrainer(lanes, data, model.values, **options)


@dataclass(frozen=True)
class _Kind:
    """What a recording depends on."""

    count: int  # clients
    batch: int
    is_full: bool  # minibatches are all samples of the client
    method: type
    rate: float | None  # None: gamma is read from the device


class GpuTrainer(LocalTrainer):
    """Trains clients by recorded steps; a model that draws random numbers step by step."""

    def __init__(
        self,
        lanes: Sequence[Gradients],
        data: ClientData,
        start: Tensor,
        *,
        clip_norm: float | None = None,
        reseed: bool = False,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`lanes`: one for each client that is trained side by side; a single one trains groups."""
        super().__init__(lanes[0], data, start, clip_norm=clip_norm, reseed=reseed, after_step=after_step)
        self.recordings = Recordings(start.device, enabled=not reseed)
        own = streams(start.device)[1 : 1 + len(lanes)]
        self._lanes = [Lane(gradients, stream) for gradients, stream in zip(lanes, own, strict=True)]
        self._draws = DeviceDraws(data, start.device)
        # Gamma and -gamma, where recorded steps find them.
        self._rates = torch.zeros(2, dtype=torch.float64, device=start.device)
        self._sent: Local = {}  # what the server sends, at a fixed place

    def train(
        self, local: Local, works: Sequence[Work], method: Method, current: Round, local_steps: int
    ) -> None:
        """As on a CPU. What this round's clients draw is sent to the device first, at once."""
        self._draws.send(works, local_steps)
        self._rates[0].fill_(current.local_lr)
        self._rates[1].fill_(-current.local_lr)
        for name in local:
            if name.startswith("server_"):
                place = self._sent.setdefault(name, torch.empty_like(local[name]))
                place.copy_(local[name])
        super().train(local, works, method, current, local_steps)

    def _group_size(self, left: int) -> int:
        """Whole groups of the batched engine; 4, 2 or 1 clients side by side by the loop engine."""
        if self._gradients.group_size > 1:
            return super()._group_size(left)
        return next(n for n in SIDE_BY_SIDE if n <= min(left, len(self._lanes)))

    def _train_group(
        self, local: Local, group: Sequence[Work], method: Method, local_steps: int, local_lr: float
    ) -> None:
        # The program for clients that draw like these.
        batch, is_full = group[0].how_it_draws
        in_groups = self._gradients.group_size > 1
        fixed = method.steps_by_itself and not method.rate_on_device
        kind = _Kind(
            count=self._gradients.group_size if in_groups else len(group),
            batch=batch, is_full=is_full, method=type(method), rate=local_lr if fixed else None,
        )  # fmt: skip
        program = self.recordings.get(kind, lambda: self._program(kind, local, method, local_steps))

        # Put the clients into its memory, take all steps, and take the results out.
        rows = slice(len(group))
        program.fill(local, rows, lambda samples: self._draws.fill(group, samples))
        for _ in range(local_steps):
            program()
            self._after_step()
        program.take_out(local, rows)

    def _program(self, kind: _Kind, local: Local, method: Method, local_steps: int) -> Program:
        """New memory, and a step on it."""
        memory = {
            name: self._sent[name]
            if name.startswith("server_")
            else aligned_rows(kind.count, value.shape[1], value)
            for name, value in local.items()
        }
        samples = self._draws.room(kind.count, kind.batch, is_full=kind.is_full, steps=local_steps)
        rates = tuple(self._rates) if kind.rate is None else (kind.rate, -kind.rate)
        lanes = self._lanes[: 1 if self._gradients.group_size > 1 else kind.count]
        share = kind.count // len(lanes)
        steps = [
            make_step(
                lane.gradients, self.start, rows_of(memory, slice(share * i, share * (i + 1))), method,
                clip_norm=self._clip_norm,
            )
            for i, lane in enumerate(lanes)
        ]  # fmt: skip
        return Program(memory, samples, lanes, steps, rates, kind.batch, self.data, is_full=kind.is_full)
