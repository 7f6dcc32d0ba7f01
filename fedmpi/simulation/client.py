"""What a client does in a round: I steps of SGD from x_t (Algorithm 1, lines 4 to 7).

The update itself is accumulated, y = x + update, instead of stepping y in place: at gamma = 1e-5 a step
often falls below half an ulp of y and would be lost in float32. Invariant: an update is a pure function
of x_t, gamma and the client's minibatches, regardless of which clients, of which runs, are trained with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmpi.data import rng
from fedmpi.data.shard import Work
from fedmpi.errors import ClientError
from fedmpi.methods import Method, Round
from fedmpi.methods.base import Local, Rate
from fedmpi.models.engines import Gradients
from fedmpi.models.engines.compiled import Compiled
from fedmpi.models.flat import aligned_rows
from fedmpi.simulation.local_step import Step, method_step, plain_step

Rows = Sequence[slice] | None  # some clients of each task

_MOST_STEPS = 256


@dataclass(kw_only=True, slots=True, eq=False)
class Task:
    """What one run wants to be trained in a round, on this rank."""

    start: Tensor  # x_t in working precision; or a row for each client
    local: Local  # a row for each client: updates, the method's tables and scratch
    works: Sequence[Work]
    method: Method
    current: Round
    clip_norm: float | None = None
    reseed: bool = False  # a user's model may draw random numbers, in dropout for example

    @property
    def is_plain(self) -> bool:
        """Whether gradients may be added to the updates directly."""
        return self.clip_norm is None and not self.method.steps_by_itself


@dataclass(slots=True)
class Piece:
    """Clients of one run that are trained beside those of others."""

    task: Task
    rows: slice  # of the task
    here: slice  # of the group

    @property
    def start(self) -> Tensor:
        """Where they start: one vector for all, or their rows."""
        start = self.task.start
        return start if start.dim() == 1 else start[self.rows]

    @property
    def local(self) -> Local:
        """Their rows; entries that the server sent are shared by all."""
        return {
            name: value if name.startswith("server_") else value[self.rows]
            for name, value in self.task.local.items()
        }


@dataclass(slots=True)
class Group:
    """Clients that are trained together; their updates are neighbours in memory."""

    rows: slice  # of all updates
    works: Sequence[Work]
    pieces: Sequence[Piece]

    @property
    def is_plain(self) -> bool:
        """Whether gradients may be added to the updates directly; all of its runs agree."""
        return self.pieces[0].task.is_plain


class Failures:
    """What went wrong, and for which run; a run whose client failed is not trained any further."""

    def __init__(self) -> None:
        self._found: dict[int, ClientError] = {}

    def add(self, task: Task, works: Sequence[Work], error: Exception) -> None:
        """Name round and clients, whatever failed; the first error of a run counts."""
        who, t = ", ".join(str(work.client) for work in works), task.current.t
        failure = ClientError(f"round {t}, client {who}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        self._found.setdefault(id(task), failure)

    def of(self, task: Task) -> ClientError | None:
        """The failure of a run."""
        return self._found.get(id(task)) if self._found else None

    def raise_first(self) -> None:
        """Raise the first error, if there is one."""
        for error in self._found.values():
            raise error


class LocalTrainer:
    """Trains clients in groups of up to the engine's group size. On a CPU; see gpu_client.py for a GPU."""

    def __init__(self, gradients: Gradients, *, after_step: Callable[[], None] = lambda: None) -> None:
        self._gradients = gradients
        self._after_step = after_step
        self._plain_steps: dict[tuple, Step] = {}  # by the place of the updates

    @property
    def group_size(self) -> int:
        """How many clients are trained together at most."""
        return self._gradients.group_size

    def train(self, updates: Tensor, tasks: Sequence[Task], failures: Failures, rows: Rows = None) -> None:
        """Write each client's update into its row of `updates`, in which the tasks follow each other.

        `rows`: which of each task's clients, by default all. Methods may change other entries of `local`.
        """
        count = sum(len(task.works) for task in tasks)
        for group in self._groups(tasks, rows or [slice(None)] * len(tasks)):
            some = updates if len(group.works) == count else updates[group.rows]
            if not (group.works[0].batch and group.works[0].steps):  # no samples, or nothing to do
                some.zero_()
                continue
            if all(failures.of(piece.task) for piece in group.pieces):
                continue
            try:
                if self._gradients.by_inference and group.is_plain:  # a method's own step may keep tensors
                    with torch.inference_mode():
                        self._train_group(some, group, failures)
                else:
                    self._train_group(some, group, failures)
            except Exception as error:
                for piece in group.pieces:
                    failures.add(piece.task, group.works[piece.here], error)

    def _groups(self, tasks: Sequence[Task], rows: Sequence[slice]) -> Iterator[Group]:
        """Neighbours that draw alike; those without samples, who have nothing to do, too.

        Clients draw alike if their minibatches are as many, have the same size, and are all of their
        samples, or are not.
        """
        alike: list[tuple[Task, int, int]] = []  # rows of a task
        before, begin_of_task = None, 0
        first = place = 0  # where `alike` begins and ends
        for task, some in zip(tasks, rows, strict=True):
            kind_of_task, count = self._kind(task), len(task.works)
            begin, end, _ = some.indices(count)
            while begin < end:
                # The next neighbours of this task.
                how, after = task.works[begin].how, begin + 1
                while after < end and task.works[after].how == how:
                    after += 1

                # Beside those before, if they have the same in common and leave no gap.
                if (how, kind_of_task) != before or begin_of_task + begin != place:
                    yield from self._cut(alike, first)
                    alike, before, first = [], (how, kind_of_task), begin_of_task + begin
                alike.append((task, begin, after))
                begin, place = after, begin_of_task + after
            begin_of_task += count
        yield from self._cut(alike, first)

    def _cut(self, alike: Sequence[tuple[Task, int, int]], place: int) -> Iterator[Group]:
        """Clients that draw alike, from a place of the updates on, in groups of the right size."""
        left = sum(end - begin for _, begin, end in alike)
        if len(alike) == 1 and self._group_size(left) == left:  # the usual case, quickly
            ((task, begin, end),) = alike
            works, piece = task.works[begin:end], Piece(task, slice(begin, end), slice(0, left))
            yield Group(slice(place, place + left), works, [piece])
            return
        size, pieces, works, count = 0, [], [], 0
        for task, begin, end in alike:
            while begin < end:
                size = size or self._group_size(left)
                some = min(end - begin, size - count)
                pieces.append(Piece(task, slice(begin, begin + some), slice(count, count + some)))
                works += task.works[begin : begin + some]
                begin, count = begin + some, count + some
                if count == size:
                    yield Group(slice(place, place + count), works, pieces)
                    left, place = left - count, place + count
                    size, pieces, works, count = 0, [], [], 0

    def _kind(self, task: Task) -> Hashable:
        """What tasks must have in common for their clients to be trained together."""
        rate = None if self._gradients.takes_rates else task.current.local_lr
        return task.is_plain, rate, self._at_once(task)

    def _at_once(self, task: Task) -> bool:
        """Whether all local steps of its clients are one call of machine code, whoever is beside them."""
        return isinstance(self._gradients, Compiled) and task.is_plain and self._gradients.takes(task.works)

    def _group_size(self, left: int) -> int:
        """How many of `left` clients that draw alike are trained next."""
        return min(left, self._gradients.group_size)

    def _train_group(self, updates: Tensor, group: Group, failures: Failures) -> None:
        work, task = group.works[0], group.pieces[0].task
        if self._at_once(task):
            self._train_at_once(updates, group)
            return
        reseed(task, work)
        step, rates, is_first = self._step(updates, group, failures), _rates(group, updates), True
        for minibatch in work.data.minibatches(group.works, work.steps):
            step(*minibatch, rates, is_first)
            is_first = False
            self._after_step()

    def _train_at_once(self, updates: Tensor, group: Group) -> None:
        """All local steps of each run's clients."""
        for piece in group.pieces:
            rate = piece.task.current.local_lr
            self._gradients.train(piece.start, updates[piece.here], group.works[piece.here], rate)
            self._after_step()

    def _step(self, updates: Tensor, group: Group, failures: Failures) -> Step:
        """A step on these rows. Plain SGD works on the updates alone, whose rows come again every round."""
        if not group.is_plain:
            return self._step_by_methods(updates, group, failures)
        starts = [(piece.start, piece.here) for piece in group.pieces]
        if any(start.dim() > 1 for start, _ in starts):  # of this round only
            return plain_step(self._gradients, starts, updates)
        key = updates.data_ptr(), *((id(p.task.start), p.here.stop) for p in group.pieces)
        if key not in self._plain_steps:
            if len(self._plain_steps) >= _MOST_STEPS:
                self._plain_steps.clear()
            self._plain_steps[key] = plain_step(self._gradients, starts, updates)
        return self._plain_steps[key]

    def _step_by_methods(self, updates: Tensor, group: Group, failures: Failures) -> Step:
        """The gradients of all clients at once; then each run takes its own step."""
        gradient = aligned_rows(len(updates), updates.shape[1], updates)
        local_params = self._gradients.local_params(len(updates))
        add_gradient = self._gradients.adder(gradient)
        updates.zero_()
        steps = [
            (piece, updates[piece.here], local_params[piece.here],
             method_step(piece.task.method, piece.local, gradient[piece.here], piece.task.clip_norm))
            for piece in group.pieces
        ]  # fmt: skip

        def step(inputs: Tensor, labels: Tensor, rates: Rate, is_first: bool) -> None:
            for piece, update, y, _ in steps:
                torch.add(piece.start, update, out=y)
            add_gradient(inputs, labels, 1.0)
            for piece, _, _, own_step in steps:
                try:
                    if not failures.of(piece.task):
                        own_step(piece.task.current.local_lr, -piece.task.current.local_lr)
                except Exception as error:
                    failures.add(piece.task, group.works[piece.here], error)
            gradient.zero_()

        return step


def reseed(task: Task, work: Work) -> None:
    """A model with dropout draws from the client's own seed."""
    if task.reseed:
        torch.manual_seed(rng.integer(work.data.seed, "model", work.client, work.drawn))


def _rates(group: Group, like: Tensor) -> Rate:
    """-gamma of the group, or of each of its clients if they differ."""
    rates = [piece.task.current.local_lr for piece in group.pieces]
    if rates.count(rates[0]) == len(rates):
        return -rates[0]
    counts = [piece.here.stop - piece.here.start for piece in group.pieces]
    each = [-rate for rate, count in zip(rates, counts, strict=True) for _ in range(count)]
    return like.new_tensor(each, dtype=torch.float64)[:, None]
