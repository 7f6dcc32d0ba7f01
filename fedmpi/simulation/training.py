"""The clients' part of a round, over all ranks: which rank trains which client, local training, the sums.

Invariant: every rank runs every line; a rank without participants contributes zeros. A client's update
does not depend on the rank that trains it, nor do the sums depend on the order.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from fedmpi.config import Config
from fedmpi.config.records import replace
from fedmpi.data.ownership import owned_by, owner_of
from fedmpi.data.shard import ClientData, DataInfo, Work
from fedmpi.errors import ClientError
from fedmpi.methods import Method, Round, ServerState
from fedmpi.methods.base import Local
from fedmpi.models import may_be_random
from fedmpi.models.engines import Engine
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.device import ranks_sharing
from fedmpi.simulation.aggregate import Reduced, WeightedSum, wave_size
from fedmpi.simulation.client import rows_of
from fedmpi.simulation.client_tables import ClientMemory, check_room
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.gpu_client import GpuTrainer, make_trainer
from fedmpi.simulation.lending import Loans
from fedmpi.simulation.plan import assign
from fedmpi.simulation.rank_report import RankReport
from fedmpi.storage.columns import LENDING, LOCAL_SGD


class Training:
    """A rank's clients, what they remember, and how many minibatches every client has drawn."""

    def __init__(
        self,
        comm: Comm,
        config: Config,
        model: FlatModel,
        engine: Engine,
        clients: ClientData,
        info: DataInfo,
        tables: tuple[str, ...],
        clock: Stopwatch,
        *,
        stays_on_device: bool,
    ) -> None:
        """Collective. `tables`: the vectors that the method keeps for each client between rounds.

        `stays_on_device`: the server's vectors lie on the GPU.
        """
        self._comm, self._config, self._info, self._clock = comm, config, info, clock
        self._data, self._loans = clients, Loans(comm, clients)
        self._in_groups = engine.name == "batched"

        # What trains the clients, and what sums their updates.
        self.trainer = make_trainer(
            engine, model, clients,
            clip_norm=config.algorithm.clip_norm,
            reseed=may_be_random(config),
            after_step=self._loans.keep_moving,
        )  # fmt: skip
        self.weighted_sum = WeightedSum(
            comm, model.num_params, model.values.dtype, model.values.device,
            on_device=config.run.cuda_aware,
            stays_on_device=stays_on_device,
        )  # fmt: skip
        self._wave_size = wave_size(model.num_params)
        self.minibatches_drawn = np.zeros(info.partition.num_clients, np.int64)

        # The clients' tables, if they fit into memory.
        num_owned = len(owned_by(comm.rank, comm.size, info.partition.num_clients))
        size = len(tables), num_owned, model.num_params, model.values.element_size()
        device = model.values.device
        sharing = ranks_sharing(comm, device)
        comm.try_on_all(lambda: check_room(config.algorithm.name, *size, device=device, sharing=sharing))
        self.memory = ClientMemory(tables, num_owned, comm.size, model.values)

    def train(self, method: Method, state: ServerState, current: Round, report: RankReport) -> Reduced:
        """Collective. Local training of all participants, and the sums, in waves that bound the memory.

        `report`: what this rank wants after the round.
        """
        # All clients start from x_t.
        self.trainer.start.copy_(torch.as_tensor(state.global_params))
        is_full = method.uses_full_data(current.t)
        self._data.batch_size = 0 if is_full else self._config.algorithm.batch_size

        # All in one wave, or wave by wave.
        parts, clients = [], current.clients
        if len(clients) <= self._wave_size:
            reduced = self._train_wave(method, state, current, report)
            self.minibatches_drawn[clients] += self._config.algorithm.local_steps
            return reduced
        for first in range(0, len(clients), self._wave_size):
            wave = slice(first, first + self._wave_size)
            some = replace(current, clients=clients[wave], weights=current.weights[wave])
            parts.append(self._train_wave(method, state, some, report))
        self.minibatches_drawn[clients] += self._config.algorithm.local_steps

        # One result for all waves.
        return Reduced(
            sums={name: sum(part.sums[name] for part in parts) for name in parts[0].sums},
            update_max=np.concatenate([part.update_max for part in parts]),
            compute_time=sum(part.compute_time for part in parts),
            idle_time=sum(part.idle_time for part in parts),
            stop=max(part.stop for part in parts),
            checkpoint=any(part.checkpoint for part in parts),
        )

    def _train_wave(
        self, method: Method, state: ServerState, current: Round, report: RankReport
    ) -> Reduced:
        """Collective. Each rank trains its part of the plan; then exact sums over all ranks."""
        clients, begin = current.clients, time.perf_counter()

        # The clients that this rank trains, own before borrowed ones; and the arrays to train them on.
        steps, is_alone = self._config.algorithm.local_steps, self._comm.size == 1
        mine, num_own, trainers = self._share(clients, may_lend=not method.tables)
        own = clients[mine]
        local = self._local(method, state, own)
        drawn = self.minibatches_drawn[own].tolist()
        works = [Work(self._data, n, k) for n, k in zip(own.tolist(), drawn, strict=True)]

        # Start sending the samples of lent clients.
        if not is_alone:
            with self._clock(LENDING):
                self._loans.start(clients, trainers, self.minibatches_drawn, steps)

        # Own clients first, while the samples of borrowed ones arrive; in groups, all at once.
        first = 0 if self._in_groups else num_own
        failure = None
        if first:
            with self._clock(LOCAL_SGD):
                failure = self._train_rows(slice(first), local, works, method, current)

        # Then the borrowed ones.
        if first < len(works):
            if num_own < len(works):
                with self._clock(LENDING):
                    works[num_own:] = [
                        replace(work, samples=self._loans.receive(work.client, steps))
                        for work in works[num_own:]
                    ]
            with self._clock(LOCAL_SGD):
                failure = failure or self._train_rows(slice(first, None), local, works, method, current)
        if not failure:
            with self._clock(LOCAL_SGD):
                method.finish_clients(local, current)

        # Buffers are free again; the owners keep what their clients remember.
        if not is_alone:
            with self._clock(LENDING):
                self._loans.finish()
        if method.tables and not failure:
            self.memory.store(own, local)

        # Sum the results of all ranks. On a GPU only the peaks show that training is complete.
        with self._clock(LOCAL_SGD):
            others = {name: local[name] for name in method.client_sums} if not failure else {}
            peaks = self.weighted_sum.peaks([local["update"], *others.values()], len(clients), mine)
        report = replace(report, seconds=time.perf_counter() - begin, failed=failure is not None)
        return self.weighted_sum.reduce(
            clients, current.weights, mine, report, self._clock, failure, others, peaks
        )

    def _train_rows(
        self, rows: slice, local: Local, works: list[Work], method: Method, current: Round
    ) -> ClientError | None:
        """Train some clients. Returns a failure, so that all ranks of the group learn of it in `reduce`.

        If the group is the whole job, the failure is raised at once instead.
        """
        steps = self._config.algorithm.local_steps
        try:
            self.trainer.train(rows_of(local, rows), works[rows], method, current, steps)
        except ClientError as error:
            if not self._comm.is_part:
                raise
            return error
        return None

    def _share(self, clients: np.ndarray, *, may_lend: bool) -> tuple[np.ndarray, int, np.ndarray | None]:
        """Which participants this rank trains, as indices, own before borrowed ones; how many it owns; who
        trains whom, None if this rank is alone.
        """
        if self._comm.size == 1:
            return np.arange(len(clients)), len(clients), None
        owners, trainers = self._plan(clients, may_lend=may_lend)
        mine = np.flatnonzero(trainers == self._comm.rank)
        is_borrowed = owners[mine] != self._comm.rank
        num_own = len(mine) - int(is_borrowed.sum())
        return np.concatenate([mine[~is_borrowed], mine[is_borrowed]]), num_own, trainers

    def _plan(self, clients: np.ndarray, *, may_lend: bool) -> tuple[np.ndarray, np.ndarray]:
        """Owner and trainer of each participant, the same on every rank.

        Owners train their own clients and lend the surplus; clients with tables are never lent.
        """
        owners = owner_of(clients, self._comm.size)
        if not may_lend:
            return owners, owners
        costs = self._info.costs(clients, self._data.batch_size)
        return owners, assign(owners, self._comm.size, costs)

    def _local(self, method: Method, state: ServerState, clients: np.ndarray) -> Local:
        """The arrays that training works on: updates, clients' tables, scratch, what the server sends."""
        updates = self.weighted_sum.buffers(len(clients))
        memory = self.memory.fetch(clients) if method.tables else {}
        scratch = {name: torch.zeros_like(updates) for name in method.scratch}
        sent = {
            f"server_{name}": torch.as_tensor(state.extras[name]).to(updates)[None]
            for name in method.broadcasts
        }
        return {"update": updates, **memory, **scratch, **sent}

    @property
    def recorded(self) -> str:
        """Whether local steps were recorded on a GPU, or why not; empty on a CPU."""
        if not isinstance(self.trainer, GpuTrainer):
            return ""
        why_not = self.trainer.recordings.why_not
        return f"no: {why_not}" if why_not else f"yes: {len(self.trainer.recordings)} programs"

    def end_interval(self, method: Method, state: ServerState) -> ServerState:
        """Collective. What a method does with its tables when an interval of P rounds ends."""
        clients = method.clients_of_interval(state)
        if clients is None or len(clients) == 0:
            return state

        # Wave by wave, each rank the clients that it owns.
        total = 0.0
        for wave in np.split(clients, range(self._wave_size, len(clients), self._wave_size)):
            mine = np.flatnonzero(owner_of(wave, self._comm.size) == self._comm.rank)
            local = self.memory.fetch(wave[mine])
            rows = method.interval_rows(state, local, wave[mine])
            self.memory.store(wave[mine], local)
            total = total + self.weighted_sum.total(rows, wave, mine)
        return method.end_interval(state, total)
