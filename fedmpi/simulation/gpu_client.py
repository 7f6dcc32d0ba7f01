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

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmpi.data.device_draws import DeviceDraws, Samples, crop_on_device
from fedmpi.data.shard import ClientData, Work
from fedmpi.methods import Method, Round
from fedmpi.methods.base import Local, Rate
from fedmpi.models.engines import Engine, Gradients, make_gradients
from fedmpi.models.flat import FlatModel, aligned_rows
from fedmpi.simulation.client import LocalTrainer, Step, make_step, rows_of

_MOST_RECORDINGS = 4
_RECORDED_AT_USE = 3  # shapes that come once or twice are not worth a recording
_SIDE_BY_SIDE = (4, 2, 1)  # clients on streams of their own
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
    count = _SIDE_BY_SIDE[0] if first.group_size == 1 and is_small else 1
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
        self.recordings = Recordings(enabled=not reseed)
        self._lanes = [Lane(gradients, torch.cuda.Stream()) for gradients in lanes]
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
        return next(n for n in _SIDE_BY_SIDE if n <= min(left, len(self._lanes)))

    def _train_group(
        self, local: Local, group: Sequence[Work], method: Method, local_steps: int, local_lr: float
    ) -> None:
        # The program for clients that draw like these.
        batch, is_full = self.data.how_it_draws(group[0].client)
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


@dataclass(frozen=True)
class Lane:
    """Gradients with parameters of their own, and the stream on which they are computed."""

    gradients: Gradients
    stream: torch.cuda.Stream


class Program:
    """A local step of some clients on fixed memory; each lane has an equal share of the clients."""

    def __init__(
        self,
        memory: Local,
        samples: Samples,
        lanes: Sequence[Lane],
        steps: Sequence[Step],
        rates: tuple[Rate, Rate],
        batch: int,
        data: ClientData,
        *,
        is_full: bool,
    ) -> None:
        self._memory, self._samples, self._lanes, self._steps = memory, samples, lanes, steps
        self._data, self._is_full, self._rates = data, is_full, rates
        device = samples.labels.device
        self._number = torch.zeros(1, dtype=torch.int64, device=device)  # of the step
        self._first = torch.arange(batch, device=device)  # positions of the first minibatch
        self._graph: torch.cuda.CUDAGraph | None = None
        self._kept: object = None

    def record(self, pool: object, stream: torch.cuda.Stream) -> None:
        """From now on replay the step. To be called before the memory is filled."""
        # Libraries allocate their workspaces in the first calls, which must not be recorded.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._number.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(stream)

        # Record one step; other threads (MPI's) may call CUDA meanwhile.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._step()
        self._graph = graph
        self._kept = [lane.gradients.memory() for lane in self._lanes]  # the graph knows addresses only

    def fill(self, local: Local, rows: slice, put_samples: Callable[[Samples], None]) -> None:
        """Clients' vectors and samples into the memory; the first step comes next."""
        for name, value in self._own(local):
            self._memory[name][rows].copy_(value) if name != "update" else self._memory[name].zero_()
        put_samples(self._samples)
        self._number.zero_()

    def take_out(self, local: Local, rows: slice) -> None:
        """Clients' vectors after the last step."""
        for name, value in self._own(local):
            value.copy_(self._memory[name][rows])

    def __call__(self) -> None:
        """One local step."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()

    def _own(self, local: Local) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in local.items() if not name.startswith("server_")]

    def _step(self) -> None:
        """All lanes beside each other, forked from the current stream and joined to it."""
        main, share = torch.cuda.current_stream(), len(self._memory["update"]) // len(self._lanes)
        where = None
        if not self._is_full:
            where = torch.add(self._first, self._number, alpha=len(self._first))
        for index, (lane, step) in enumerate(zip(self._lanes, self._steps, strict=True)):
            lane.stream.wait_stream(main)
            with torch.cuda.stream(lane.stream):
                step(*self._minibatch(slice(share * index, share * (index + 1)), where), *self._rates)
        for lane in self._lanes:
            main.wait_stream(lane.stream)
        self._number.add_(1)

    def _minibatch(self, rows: slice, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs and labels of this step, as `ClientData.minibatches` gives them."""
        inputs, labels = self._samples.inputs[rows], self._samples.labels[rows]
        if where is not None:
            inputs, labels = inputs.index_select(1, where), labels.index_select(1, where)
        values = self._data.normalise(inputs)
        if self._samples.noise is not None:
            noise = self._samples.noise[rows].index_select(1, self._number).squeeze(1)
            values = values + self._data.noise_std * noise
        if self._samples.crops is not None:
            crops = self._samples.crops[rows].index_select(1, self._number).squeeze(1)
            values = torch.stack([crop_on_device(v, c) for v, c in zip(values, crops, strict=True)])
        return values, labels


class Recordings:
    """The programs that are kept, few and recorded; those of rare shapes are made anew each time."""

    def __init__(self, *, enabled: bool) -> None:
        self.why_not = "" if enabled else "the model may draw random numbers"
        self._kept: dict[Hashable, Program] = {}
        self._uses: Counter[Hashable] = Counter()
        self._pool = torch.cuda.graph_pool_handle()  # shared: programs run one after another
        self._stream = torch.cuda.Stream()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, kind: Hashable, make: Callable[[], Program]) -> Program:
        """A program for this kind of group, recorded if the kind is frequent."""
        self._uses[kind] += 1
        if kind in self._kept:
            return self._kept[kind]
        program = make()
        if self.why_not or not self._is_worth_it(kind):
            return program
        try:
            program.record(self._pool, self._stream)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation that cannot be recorded
            self.why_not = f"{type(error).__name__}: {error}".partition("\n")[0]
            return make()
        self._kept[kind] = program
        return program

    def _is_worth_it(self, kind: Hashable) -> bool:
        """Whether it came often enough, also for taking another one's place."""
        if self._uses[kind] < _RECORDED_AT_USE:
            return False
        if len(self._kept) < _MOST_RECORDINGS:
            return True
        rarest = min(self._kept, key=self._uses.__getitem__)
        if self._uses[kind] <= 2 * self._uses[rarest]:
            return False
        del self._kept[rarest]
        return True
