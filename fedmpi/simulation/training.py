"""The clients' part of a round, over all ranks: which rank trains which client, local training, the sums.

Of one run, or of all runs of a pack at once. Invariant: every rank runs every line; a rank without
participants contributes zeros. A client's update does not depend on the rank that trains it nor on the
clients trained beside it, nor do the sums depend on the order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.config import Config
from fedmpi.config.records import replace
from fedmpi.data.ownership import owner_of
from fedmpi.methods import Method, Round, ServerState
from fedmpi.models.engines import Engine
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.simulation.aggregate import Reduced, Share, WeightedSum, wave_size
from fedmpi.simulation.client import Failures, Task
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.gpu_client import GpuTrainer, make_trainer
from fedmpi.simulation.population import Population
from fedmpi.simulation.rank_report import RankReport
from fedmpi.storage.columns import LENDING, LOCAL_SGD


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """What a run wants in a round: all its participants trained, and their updates summed."""

    population: Population
    method: Method
    state: ServerState
    current: Round
    report: RankReport  # what this rank wants after the round


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
        self._orders: Sequence[Order] = ()
        self.trainer = make_trainer(engine, model, may_draw=may_draw, after_step=self._keep_moving)
        self.weighted_sum = WeightedSum(
            comm, model.num_params, model.values.dtype, model.values.device,
            on_device=config.run.cuda_aware,
            stays_on_device=stays_on_device,
        )  # fmt: skip
        self._wave_size = wave_size(model.num_params)

    def train(self, orders: Sequence[Order]) -> list[Reduced | Exception]:
        """Collective. For each run local training of all participants, and the sums; or the error that ends
        the run. In waves that bound the memory.
        """
        # All clients of a run start from its x_t.
        for order in orders:
            population, state = order.population, order.state
            population.start.copy_(torch.as_tensor(state.global_params))
            is_full = order.method.uses_full_data(order.current.t)
            population.data.batch_size = 0 if is_full else population.config.algorithm.batch_size

        # Wave by wave; usually there is one.
        waves = [_waves(order, self._wave_size) for order in orders]
        answers: list[list[Reduced | Exception]] = [[] for _ in orders]
        for number in range(max(map(len, waves))):
            left = [i for i, own in enumerate(waves) if number < len(own) and not _failed(answers[i])]
            for i, answer in zip(left, self._train_wave([waves[i][number] for i in left]), strict=True):
                answers[i].append(answer)

        # The clients went on in their data.
        for order in orders:
            steps = order.population.config.algorithm.local_steps
            order.population.minibatches_drawn[order.current.clients] += steps
        return [_failed(own) or _combined(own) for own in answers]

    def _train_wave(self, orders: Sequence[Order]) -> list[Reduced | Exception]:
        """Collective. Each rank trains its part of the plan; then exact sums over all ranks."""
        begin, is_alone = time.perf_counter(), self._comm.size == 1
        self._orders = orders

        # The clients that this rank trains, own before borrowed ones.
        plans = [
            order.population.share(order.current.clients, may_lend=not order.method.tables)
            for order in orders
        ]
        counts = [len(mine) for mine, _, _ in plans]
        firsts = [sum(counts[:i]) for i in range(len(counts))]
        updates = self.weighted_sum.buffers(sum(counts))

        # Start sending the samples of lent clients.
        if not is_alone:
            with self._clock(LENDING):
                _start_lending(orders, [trainers for _, _, trainers in plans])

        # Own clients first, while the samples of borrowed ones arrive; in groups, all at once.
        tasks = [
            task_of(order, mine, updates[first : first + len(mine)])
            for order, (mine, _, _), first in zip(orders, plans, firsts, strict=True)
        ]
        own = [slice(0 if self._in_groups else num_own) for _, num_own, _ in plans]
        failures = Failures()
        if any(rows.stop for rows in own):
            with self._clock(LOCAL_SGD):
                self.trainer.train(updates, tasks, own, failures)

        # Then the borrowed ones.
        rest = [slice(rows.stop, len(task.works)) for rows, task in zip(own, tasks, strict=True)]
        if any(rows.start < rows.stop for rows in rest):
            if not is_alone:
                with self._clock(LENDING):
                    _receive(orders, tasks, [num_own for _, num_own, _ in plans])
            with self._clock(LOCAL_SGD):
                self.trainer.train(updates, tasks, rest, failures)
        if not self._comm.is_part:
            failures.raise_first()
        with self._clock(LOCAL_SGD):
            for order, task in zip(orders, tasks, strict=True):
                if not failures.of(task):
                    order.method.finish_clients(task.local, order.current)

        # Buffers are free again; the owners keep what their clients remember.
        if not is_alone:
            with self._clock(LENDING):
                for order in orders:
                    order.population.loans.finish()
        for order, task, (mine, _, _) in zip(orders, tasks, plans, strict=True):
            if order.method.tables and not failures.of(task):
                order.population.memory.store(order.current.clients[mine], task.local)

        # Sum the results of all ranks. On a GPU only the peaks show that training is complete.
        with self._clock(LOCAL_SGD):
            shares = self._shares(orders, [mine for mine, _, _ in plans], tasks, failures)
        seconds = time.perf_counter() - begin
        shares = [replace(s, report=replace(s.report, seconds=seconds)) for s in shares]
        return self.weighted_sum.reduce(shares, self._clock)

    def _shares(
        self, orders: Sequence[Order], mine: Sequence[np.ndarray], tasks: Sequence[Task], failures: Failures
    ) -> list[Share]:
        """What this rank has for each run; waits for the device."""
        rows = [
            {"weighted_sum": task.local["update"]}
            | {name: task.local.get(name, task.local["update"]) for name in order.method.client_sums}
            for order, task in zip(orders, tasks, strict=True)
        ]
        places = [i for i, own in enumerate(rows) for _ in own]
        peaks = iter(
            self.weighted_sum.peaks(
                [part for own in rows for part in own.values()],
                [len(orders[i].current.clients) for i in places],
                [mine[i] for i in places],
            )
        )
        return [
            Share(
                clients=order.current.clients,
                weights=order.current.weights,
                mine=own,
                rows=parts,
                peaks=[next(peaks) for _ in parts],
                report=replace(order.report, failed=failures.of(task) is not None),
                failure=failures.of(task),
            )
            for order, own, parts, task in zip(orders, mine, rows, tasks, strict=True)
        ]

    def _keep_moving(self) -> None:
        for order in self._orders if self._comm.size > 1 else ():
            order.population.loans.keep_moving()

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
        replace(
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


def _start_lending(orders: Sequence[Order], trainers: Sequence[np.ndarray]) -> None:
    """Each client of each run has a message tag of its own."""
    tag = 0
    for order, who in zip(orders, trainers, strict=True):
        population, clients = order.population, order.current.clients
        steps = population.config.algorithm.local_steps
        population.loans.start(clients, who, population.minibatches_drawn, steps, tag)
        tag += len(clients)


def _receive(orders: Sequence[Order], tasks: Sequence[Task], num_own: Sequence[int]) -> None:
    """The samples of borrowed clients."""
    for order, task, count in zip(orders, tasks, num_own, strict=True):
        for work in task.works[count:]:
            work.samples = order.population.loans.receive(work.client, task.local_steps)


def task_of(order: Order, mine: np.ndarray, updates: torch.Tensor) -> Task:
    """The arrays that training works on: updates, clients' tables, scratch, what the server sends."""
    population, method = order.population, order.method
    own, options = order.current.clients[mine], population.config.algorithm
    memory = population.memory.fetch(own) if method.tables else {}
    scratch = {name: torch.zeros_like(updates) for name in method.scratch}
    sent = {
        f"server_{name}": torch.as_tensor(order.state.extras[name]).to(updates)[None]
        for name in method.broadcasts
    }
    return Task(
        start=population.start,
        local={"update": updates, **memory, **scratch, **sent},
        works=population.works(own),
        method=method,
        current=order.current,
        local_steps=options.local_steps,
        clip_norm=options.clip_norm,
        reseed=population.may_draw,
    )
