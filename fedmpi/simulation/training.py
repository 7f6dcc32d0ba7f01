"""The clients' part of a round, over all ranks: which rank trains which client, local training, the sums.

Of one run, or of all runs of a pack at once. The updates of a few participants are kept until all are
known; many are added and forgotten as they come (streaming.py). Invariant: every rank runs every line; a
rank without participants contributes zeros. A client's update does not depend on the rank that trains it
nor on the clients trained beside it, nor do the sums depend on the order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fedmpi.config import Config
from fedmpi.config.records import replace
from fedmpi.data.ownership import owner_of
from fedmpi.methods import Method, Round, ServerState
from fedmpi.models.engines import Engine
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.simulation.client import Failures
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.gpu_aggregate import make_sum
from fedmpi.simulation.gpu_client import GpuTrainer, make_trainer
from fedmpi.simulation.late import as_heard, with_leaving
from fedmpi.simulation.parts import Order, Part, receive, sent_by_server, start_lending, task_of
from fedmpi.simulation.population import Population
from fedmpi.simulation.running_total import most_kept, passing_rows
from fedmpi.simulation.shares import Reduced
from fedmpi.simulation.streamed_sum import StreamedSum
from fedmpi.simulation.streaming import Stream
from fedmpi.storage.columns import LENDING, LOCAL_SGD, REDUCTION


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
        self._parts: Sequence[Part] = ()  # that are being trained
        self.trainer = make_trainer(engine, model, may_draw=may_draw, after_step=self._keep_moving)
        self.weighted_sum = make_sum(
            comm, model.num_params, model.values.dtype, model.values.device,
            takes_buffers=config.run.cuda_aware, stays=stays_on_device,
        )  # fmt: skip
        self._streamed = StreamedSum(comm, self.weighted_sum)
        self._most_kept = most_kept(model.num_params)
        self._passing_rows = passing_rows(model.num_params, self.trainer.group_size)

    def train(self, orders: Sequence[Order]) -> list[Reduced | Exception]:
        """Collective. For each run local training of all participants, and the sums; or the error that ends
        the run.
        """
        # All clients of a run start from its x_t; some only train, and are heard in a later round.
        given, orders = orders, [with_leaving(order) for order in orders]
        for order in orders:
            order.population.start_from(order.state.global_params)
            order.population.use_full_data(order.method.uses_full_data(order.current.t))

        # Usually few take part. Whether a run has few depends on nothing but its own round.
        if all(len(order.current.clients) <= self._most_kept for order in orders):
            answers = self._train_few(orders)
        else:
            has_few = [len(order.current.clients) <= self._most_kept for order in orders]
            few, many = (
                [order for order, is_few in zip(orders, has_few, strict=True) if is_few == wanted]
                for wanted in (True, False)
            )
            found = {True: iter(self._train_few(few) if few else ()), False: iter(self._train_many(many))}
            answers = [next(found[is_few]) for is_few in has_few]

        # The clients went on in their data.
        for order in orders:
            clients = order.current.clients
            trained = clients if order.late is None else np.setdiff1d(clients, order.late.arriving)
            order.population.go_on(order.current.t, trained)
        return [as_heard(*found) for found in zip(answers, orders, given, strict=True)]

    def _train_few(self, orders: Sequence[Order]) -> list[Reduced | Exception]:
        """Collective. Each rank trains its part of the plan; then exact sums over all ranks."""
        begin, failures = time.perf_counter(), Failures()
        parts = [Part.of(order) for order in orders]
        magnitudes = self._train_parts(parts, failures)
        seconds = time.perf_counter() - begin
        shares = [
            part.share(values, seconds, failures.of(part.task))
            for part, values in zip(parts, magnitudes, strict=True)
        ]
        return self.weighted_sum.reduce(shares, self._clock)

    def _train_many(self, orders: Sequence[Order]) -> list[Reduced | Exception]:
        """Collective. As `_train_few`, but each rank trains a few of its clients, adds their updates to its
        totals, and trains the next.
        """
        names = [("weighted_sum", *order.method.client_sums) for order in orders]
        totals = self._streamed.totals(names, [len(order.current.clients) for order in orders])
        streams = [
            Stream(order, own, self._comm, self._passing_rows)
            for order, own in zip(orders, totals, strict=True)
        ]

        # As many times as the busiest rank needs; the others still lend.
        for number in range(max(stream.length for stream in streams)):
            begin, failures = time.perf_counter(), Failures()
            parts = [stream.part(number) for stream in streams]
            magnitudes = self._train_parts(parts, failures)
            seconds = time.perf_counter() - begin
            with self._clock(REDUCTION):
                for stream, part, values in zip(streams, parts, magnitudes, strict=True):
                    stream.take(part, values, seconds, failures.of(part.task))
        return self._streamed.reduce([stream.share() for stream in streams], self._clock)

    def _train_parts(self, parts: Sequence[Part], failures: Failures) -> list[list[np.ndarray]]:
        """Collective. Train the clients of each part; the largest magnitudes in each row that is summed."""
        is_alone, clock, self._parts = self._comm.size == 1, self._clock, parts

        # The arrays to train them on.
        counts = [len(part.clients) for part in parts]
        updates = self.weighted_sum.buffers(sum(counts))
        for part, rows in zip(parts, updates.split(counts) if len(parts) > 1 else [updates], strict=True):
            part.task = task_of(part.order, part.clients, rows)
        tasks = [part.task for part in parts]

        # Start sending the samples of lent clients.
        if not is_alone:
            with clock(LENDING):
                start_lending(parts)

        # Own clients first, while the samples of borrowed ones arrive; in groups, all at once.
        rest = None
        if not is_alone and not self._in_groups:
            with clock(LOCAL_SGD):
                self.trainer.train(updates, tasks, failures, [slice(part.num_own) for part in parts])
            rest = [slice(part.num_own, None) for part in parts]

        # Then the borrowed ones.
        if not is_alone:
            with clock(LENDING):
                receive(parts)
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

            # On a GPU only the peaks show that training is complete.
            return self._magnitudes(parts, updates)

    def _magnitudes(self, parts: Sequence[Part], updates: torch.Tensor) -> list[list[np.ndarray]]:
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

        # Few at once; of many, each rank some of its clients after others.
        if len(clients) <= self._most_kept:
            ((rows, mine),) = self._interval_rows(population, method, state, clients, len(clients))
            return method.end_interval(state, self.weighted_sum.total(rows, clients, mine))
        pieces = self._interval_rows(population, method, state, clients, self._passing_rows)
        return method.end_interval(state, self._streamed.total(pieces, clients))

    def take_back(self, population: Population, method: Method, state: ServerState, current: Round) -> None:
        """What clients that took part keep of the new x: some of this rank's clients after others."""
        if not method.takes_back:
            return
        x = torch.as_tensor(state.global_params).to(population.start)[None]
        sent = {"server_x": x, **sent_by_server(method, state, population.start)}
        is_own = owner_of(current.clients, self._comm.size) == self._comm.rank
        own = np.flatnonzero(is_own & current.takes_part)
        for first in range(0, len(own), self._passing_rows):
            mine = own[first : first + self._passing_rows]
            local = population.memory.fetch(current.clients[mine])
            method.take_back({**local, **sent}, replace(current, mine=mine))
            population.memory.store(current.clients[mine], local)

    def _interval_rows(
        self, population: Population, method: Method, state: ServerState, clients: np.ndarray, count: int
    ) -> Iterator[tuple[torch.Tensor, np.ndarray]]:
        """What up to `count` clients of this rank at a time add to the server's sum, and which they are."""
        own = np.flatnonzero(owner_of(clients, self._comm.size) == self._comm.rank)
        for first in range(0, max(len(own), 1), count):
            mine = own[first : first + count]
            local = population.memory.fetch(clients[mine])
            rows = method.interval_rows(state, local, clients[mine])
            population.memory.store(clients[mine], local)
            yield rows, mine
