"""A recorded local step (a CUDA graph) on fixed memory, and the few recordings that are kept."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmpi.data.device_draws import DeviceDraws, Samples, crop_on_device
from fedmpi.data.shard import ClientData
from fedmpi.methods.base import Local, Rate
from fedmpi.models.engines import Gradients
from fedmpi.simulation.client import Group

Step = Callable[[Tensor, Tensor, Rate, Rate], None]  # inputs, labels, gamma, -gamma

SIDE_BY_SIDE = (4, 2, 1)  # clients on streams of their own
_MOST_RECORDINGS = 4
_RECORDED_AT_USE = 3  # shapes that come once or twice are not worth a recording


@functools.cache
def streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    """The streams of this process, for all its runs: the first records, the others are lanes.

    Made once, since cuBLAS keeps a workspace for each stream for ever. No matrix product may run on the
    first: torch frees the workspaces of a recording's own stream with any graph that was recorded on it.
    """
    return tuple(torch.cuda.Stream(device) for _ in range(1 + SIDE_BY_SIDE[0]))


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
        starts: Tensor,
        samples: Samples,
        lanes: Sequence[Lane],
        steps: Sequence[Step],
        batch: int,
        data: ClientData,
        *,
        is_full: bool,
        rate: float | None,
    ) -> None:
        """`starts`: x_t of each client's run; `data`: how samples are changed; `rate`: gamma, if it is part
        of the step, otherwise it is read from the device.
        """
        self._memory, self._starts, self._samples = memory, starts, samples
        self._lanes, self._steps = lanes, steps
        self._data, self._is_full, self._rate = data, is_full, rate
        device = samples.labels.device
        self._number = torch.zeros(1, dtype=torch.int64, device=device)  # of the step
        self._first = torch.arange(batch, device=device)  # positions of the first minibatch
        self._graph: torch.cuda.CUDAGraph | None = None
        self._kept: object = None
        self._filled: tuple[list, list] = [], []  # which x and gamma the memory holds

    def record(self, pool: object, stream: torch.cuda.Stream) -> None:
        """From now on replay the step. To be called before the memory is filled."""
        # Libraries allocate their workspaces in the first calls, which must not be recorded.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._number.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(stream)

        # Record one step; other threads (MPI's) may call CUDA meanwhile. Whatever happens, the stream of
        # before is the current one again: torch does not see to that when a recording fails.
        gc.collect()  # an old graph must not be destroyed meanwhile
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
            ):
                self._step()
        except BaseException:
            _leave_pool(pool)
            raise
        self._graph = graph
        self._kept = [lane.gradients.memory() for lane in self._lanes]  # the graph knows addresses only

    def fill(self, group: Group, draws: DeviceDraws) -> None:
        """Clients' vectors and samples into the memory; the first step comes next."""
        self._memory["update"].zero_()
        for piece in group.pieces:
            for name, value in piece.local.items():
                if name != "update":
                    self._memory[name][piece.here].copy_(value)
        draws.fill(group.works, self._samples)
        self._number.zero_()

        # What is there already since another group of this round, or of the round before, is not copied.
        starts = [
            (piece.here.stop, id(piece.task.start), piece.task.start._version) for piece in group.pieces
        ]
        has_own = any(piece.task.start.dim() > 1 for piece in group.pieces)
        if has_own or starts != self._filled[0]:
            for piece in group.pieces:
                self._starts[piece.here].copy_(piece.start)
        rates = [(piece.here.stop, piece.task.current.local_lr) for piece in group.pieces]
        if rates != self._filled[1]:
            draws.fill_rates(group.works, self._samples)
        self._filled = [] if has_own else starts, rates

    def take_out(self, group: Group) -> None:
        """Clients' vectors after the last step."""
        for piece in group.pieces:
            for name, value in piece.local.items():
                if not name.startswith("server_"):
                    value.copy_(self._memory[name][piece.here])

    def __call__(self) -> None:
        """One local step."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()

    def _step(self) -> None:
        """All lanes beside each other, forked from the current stream and joined to it."""
        main, share = torch.cuda.current_stream(), len(self._memory["update"]) // len(self._lanes)
        where = None
        if not self._is_full:
            where = torch.add(self._first, self._number, alpha=len(self._first))
        for index, (lane, step) in enumerate(zip(self._lanes, self._steps, strict=True)):
            rows = slice(share * index, share * (index + 1))
            lane.stream.wait_stream(main)
            with torch.cuda.stream(lane.stream):
                step(*self._minibatch(rows, where), *self._rates(rows))
        for lane in self._lanes:
            main.wait_stream(lane.stream)
        self._number.add_(1)

    def _rates(self, rows: slice) -> tuple[Rate, Rate]:
        """Gamma and -gamma of some clients."""
        if self._rate is not None:
            return self._rate, -self._rate
        return self._samples.rates[0, rows], self._samples.rates[1, rows]

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

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.why_not = "" if enabled else "the model may draw random numbers"
        self._kept: dict[Hashable, Program] = {}
        self._uses: Counter[Hashable] = Counter()
        self._pool = torch.cuda.graph_pool_handle()  # shared: programs run one after another
        self._stream = streams(device)[0]

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
        except RuntimeError as error:  # an operation that cannot be recorded
            # While a recording ends, another error hides the cause.
            cause = error.__context__ if isinstance(error.__context__, Exception) else error
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            self.why_not = f"{type(cause).__name__}: {cause}".partition("\n")[0]
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
        torch.cuda.synchronize()  # it may be running
        del self._kept[rarest]
        return True


def _leave_pool(pool: object) -> None:
    """After a recording that failed: older versions of torch go on allocating from its memory."""
    leave = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if leave is not None:
        with contextlib.suppress(RuntimeError):  # newer ones have left it
            leave(torch.cuda.current_device(), pool)
