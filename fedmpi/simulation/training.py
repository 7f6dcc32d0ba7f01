"""The clients' part of a round, over all ranks: which rank trains which client, local training, the sums.

Of one run, or of all runs of a pack at once. Invariant: every rank runs every line; a rank without
participants contributes zeros. A client's update does not depend on the rank that trains it nor on the
clients trained beside it, nor do the sums depend on the order.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.config import Config
from fedmpi.config.records import replace
from fedmpi.data.ownership import owner_of
from fedmpi.errors import ClientError
from fedmpi.methods import Method, Round, ServerState
from fedmpi.models.engines import Engine
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.simulation.aggregate import Reduced, Share, placed, wave_size
from fedmpi.simulation.client import Failures, Task
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.gpu_aggregate import make_sum
from fedmpi.simulation.gpu_client import GpuTrainer, make_trainer
from fedmpi.simulation.population import Places, Population
from fedmpi.simulation.rank_report import RankReport
from fedmpi.storage.columns import LENDING, LOCAL_SGD


@dataclass(kw_only=True, slots=True, eq=False)
class Order:
    """What a run wants in a round: all its participants trained, and their updates summed."""

    population: Population
    method: Method
    state: ServerState
    current: Round
    report: RankReport  # what this rank wants after the round


@dataclass(slots=True)
class _Part:
    """What this rank does for one run in a wave."""

    order: Order
    mine: Places  # the participants that it trains, own before borrowed ones
    num_own: int
    trainers: np.ndarray | None  # who trains whom; None if there is one rank
    clients: np.ndarray  # those that it trains
    task: Task | None = None

    @classmethod
    def of(cls, order: Order) -> _Part:
        """As the plan for the round has it."""
        clients = order.current.clients
        mine, num_own, trainers = order.population.share(clients, may_lend=not order.method.tables)
        return cls(order, mine, num_own, trainers, clients[mine])

    def finish(self, failures: Failures) -> None:
        """After the last local step; the owners keep what their clients remember."""
        order, task = self.order, self.task
        if failures.of(task):
            return
        try:
            order.method.finish_clients(task.local, order.current)
        except Exception as error:
            failures.add(task, task.works, error)
            return
        if order.method.tables:
            order.population.memory.store(self.clients, task.local)

    def rows(self) -> dict[str, torch.Tensor]:
        """What is summed; updates in place of what a failed client does not have."""
        local, updates = self.task.local, self.task.local["update"]
        rows = {"weighted_sum": updates}
        for name in self.order.method.client_sums:
            rows[name] = local.get(name, updates)
        return rows

    def share(self, values: Sequence[np.ndarray], seconds: float, failure: ClientError | None) -> Share:
        """For the reduction. `values`: largest magnitudes in each row of `rows`."""
        current, report = self.order.current, self.order.report
        return Share(
            clients=current.clients,
            weights=current.weights,
            mine=self.mine,
            rows=self.rows(),
            peaks=[placed(value, len(current.clients), self.mine) for value in values],
            report=RankReport(
                stop=report.stop,
                wants_checkpoint=report.wants_checkpoint,
                failed=failure is not None,
                seconds=seconds,
            ),
            failure=failure,
        )


class Training:
    """What trains the clients of a rank and sums their updates; the runs of a pack share one."""

    def __init__(
        self,
        comm: Comm,
        config: Config,
        model: FlatModel,
        engine: Engine,
        clock: Stopwatch,
        *,
        may_draw: bool,
        stays_on_device: bool,
    ) -> None:
        """`may_draw`: the model may draw random numbers; `stays_on_device`: the server's vectors lie on the
        GPU.
        """
        self._comm, self._clock = comm, clock
        self._in_groups = engine.name == "batched"
        self._parts: Sequence[_Part] = ()  # of the wave that is being trained
        self.trainer = make_trainer(engine, model, may_draw=may_draw, after_step=self._keep_moving)
        self.weighted_sum = make_sum(
            comm, model.num_params, model.values.dtype, model.values.device,
            takes_buffers=config.run.cuda_aware, stays=stays_on_device,
        )  # fmt: skip
        self._wave_size = wave_size(model.num_params)

    def train(self, orders: Sequence[Order]) -> list[Reduced | Exception]:
        """Collective. For each run local training of all participants, and the sums; or the error that ends
        the run. In waves that bound the memory.
        """
        # All clients of a run start from its x_t.
        for order in orders:
            order.population.start_from(order.state.global_params)
            order.population.use_full_data(order.method.uses_full_data(order.current.t))

        # Usually all in one wave.
        if all(len(order.current.clients) <= self._wave_size for order in orders):
            answers = self._train_wave(orders)
        else:
            answers = self._train_waves([_waves(order, self._wave_size) for order in orders])

        # The clients went on in their data.
        for order in orders:
            order.population.minibatches_drawn[order.current.clients] += order.population.local_steps
        return answers

    def _train_waves(self, waves: Sequence[Sequence[Order]]) -> list[Reduced | Exception]:
        """Collective. Wave after wave of each run; a run ends with its first error."""
        answers: list[list[Reduced | Exception]] = [[] for _ in waves]
        for number in range(max(map(len, waves))):
            left = [i for i, own in enumerate(waves) if number < len(own) and not _failed(answers[i])]
            for i, answer in zip(left, self._train_wave([waves[i][number] for i in left]), strict=True):
                answers[i].append(answer)
        return [_failed(own) or _combined(own) for own in answers]

    def _train_wave(self, orders: Sequence[Order]) -> list[Reduced | Exception]:
        """Collective. Each rank trains its part of the plan; then exact sums over all ranks."""
        begin, is_alone, clock = time.perf_counter(), self._comm.size == 1, self._clock

        # The clients that this rank trains, own before borrowed ones, and the arrays to train them on.
        self._parts = parts = [_Part.of(order) for order in orders]
        counts = [len(part.clients) for part in parts]
        updates = self.weighted_sum.buffers(sum(counts))
        for part, rows in zip(parts, updates.split(counts) if len(parts) > 1 else [updates], strict=True):
            part.task = task_of(part.order, part.clients, rows)
        tasks, failures = [part.task for part in parts], Failures()

        # Start sending the samples of lent clients.
        if not is_alone:
            with clock(LENDING):
                _start_lending(parts)

        # Own clients first, while the samples of borrowed ones arrive; in groups, all at once.
        rest = None
        if not is_alone and not self._in_groups:
            with clock(LOCAL_SGD):
                self.trainer.train(updates, tasks, failures, [slice(part.num_own) for part in parts])
            rest = [slice(part.num_own, None) for part in parts]

        # Then the borrowed ones.
        if not is_alone:
            with clock(LENDING):
                _receive(parts)
        with clock(LOCAL_SGD):
            self.trainer.train(updates, tasks, failures, rest)

        # Buffers are free again; the owners keep what their clients remember.
        if not is_alone:
            with clock(LENDING):
                for part in parts:
                    part.order.population.loans.finish()
        with clock(LOCAL_SGD):
            for part in parts:
                part.finish(failures)
            if not self._comm.is_part:
                failures.raise_first()

            # Sum the results of all ranks. On a GPU only the peaks show that training is complete.
            magnitudes = self._magnitudes(parts, updates)
        seconds = time.perf_counter() - begin
        shares = [
            part.share(values, seconds, failures.of(part.task))
            for part, values in zip(parts, magnitudes, strict=True)
        ]
        return self.weighted_sum.reduce(shares, clock)

    def _magnitudes(self, parts: Sequence[_Part], updates: torch.Tensor) -> list[list[np.ndarray]]:
        """For each run those of its updates, and of what else is summed; waits for the device."""
        others = [rows for part in parts for rows in list(part.rows().values())[1:]]
        first, *values = self.weighted_sum.magnitudes([updates, *others])
        rest, found, begin = iter(values), [], 0
        for part in parts:
            end = begin + len(part.clients)
            found.append([first[begin:end], *(next(rest) for _ in part.order.method.client_sums)])
            begin = end
        return found

    def _keep_moving(self) -> None:
        pulse.here.tick()
        for part in self._parts if self._comm.size > 1 else ():
            part.order.population.loans.keep_moving()

    @property
    def recorded(self) -> str:
        """Whether local steps were recorded on a GPU, or why not; empty on a CPU."""
        if not isinstance(self.trainer, GpuTrainer):
            return ""
        why_not = self.trainer.recordings.why_not
        return f"no: {why_not}" if why_not else f"yes: {len(self.trainer.recordings)} programs"

    def end_interval(self, population: Population, method: Method, state: ServerState) -> ServerState:
        """Collective. What a method does with its tables when an interval of P rounds ends."""
        clients = method.clients_of_interval(state)
        if clients is None or len(clients) == 0:
            return state

        # Wave by wave, each rank the clients that it owns.
        total = 0.0
        for wave in np.split(clients, range(self._wave_size, len(clients), self._wave_size)):
            mine = np.flatnonzero(owner_of(wave, self._comm.size) == self._comm.rank)
            local = population.memory.fetch(wave[mine])
            rows = method.interval_rows(state, local, wave[mine])
            population.memory.store(wave[mine], local)
            total = total + self.weighted_sum.total(rows, wave, mine)
        return method.end_interval(state, total)


def _waves(order: Order, size: int) -> list[Order]:
    """The order, for some participants after others."""
    current = order.current
    if len(current.clients) <= size:
        return [order]
    return [
        dataclasses.replace(
            order, current=replace(current, clients=current.clients[wave], weights=current.weights[wave])
        )
        for wave in (slice(first, first + size) for first in range(0, len(current.clients), size))
    ]


def _failed(answers: Sequence[Reduced | Exception]) -> Exception | None:
    """The error that ended a run in one of its waves."""
    return next((answer for answer in answers if isinstance(answer, Exception)), None)


def _combined(parts: Sequence[Reduced]) -> Reduced:
    """One result for all waves."""
    if len(parts) == 1:
        return parts[0]
    return Reduced(
        sums={name: sum(part.sums[name] for part in parts) for name in parts[0].sums},
        update_max=np.concatenate([part.update_max for part in parts]),
        compute_time=sum(part.compute_time for part in parts),
        idle_time=sum(part.idle_time for part in parts),
        stop=max(part.stop for part in parts),
        checkpoint=any(part.checkpoint for part in parts),
    )


def _start_lending(parts: Sequence[_Part]) -> None:
    """Each client of each run has a message tag of its own."""
    tag = 0
    for part in parts:
        population, clients = part.order.population, part.order.current.clients
        drawn, steps = population.minibatches_drawn, population.local_steps
        population.loans.start(clients, part.trainers, drawn, steps, tag)
        tag += len(clients)


def _receive(parts: Sequence[_Part]) -> None:
    """The samples of borrowed clients."""
    for part in parts:
        for work in part.task.works[part.num_own :]:
            work.samples = part.order.population.loans.receive(work.client, part.task.local_steps)


def task_of(order: Order, clients: np.ndarray, updates: torch.Tensor) -> Task:
    """The arrays that training works on: updates, clients' tables, scratch, what the server sends."""
    population, method = order.population, order.method
    memory = population.memory.fetch(clients) if method.tables else {}
    scratch = {name: torch.zeros_like(updates) for name in method.scratch}
    sent = {
        f"server_{name}": torch.as_tensor(order.state.extras[name]).to(updates)[None]
        for name in method.broadcasts
    }
    return Task(
        start=population.start,
        local={"update": updates, **memory, **scratch, **sent},
        works=population.works(clients),
        method=method,
        current=order.current,
        local_steps=population.local_steps,
        clip_norm=population.config.algorithm.clip_norm,
        reseed=population.may_draw,
    )
