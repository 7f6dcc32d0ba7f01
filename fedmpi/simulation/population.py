"""The clients of one run, as one rank sees them: data, memory, and how far each has come in its data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedmpi.config import Config
from fedmpi.data.local_steps import LocalSteps
from fedmpi.data.ownership import owned_by, owner_of
from fedmpi.data.shard import ClientData, DataInfo, Work
from fedmpi.models import may_be_random
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.device import ranks_sharing
from fedmpi.simulation.at_x import add_client_gradient
from fedmpi.simulation.client_tables import ClientMemory, check_room, check_vectors
from fedmpi.simulation.lending import Loans
from fedmpi.simulation.plan import assign
from fedmpi.simulation.shares import Vector

Places = np.ndarray | slice  # indices of some participants


class Population:
    """All N clients of a run; this rank owns some of them.

    `minibatches_drawn` counts for each client; `memory` has the tables of this rank's clients.
    """

    def __init__(
        self,
        comm: Comm,
        config: Config,
        model: FlatModel,
        data: ClientData,
        info: DataInfo,
        tables: tuple[str, ...],
        num_packed: int = 1,
    ) -> None:
        """Collective. `tables`: the vectors that the method keeps for each client between rounds.

        `num_packed`: runs that share the memory.
        """
        self._comm, self._model = comm, model
        self.config, self.data, self.info = config, data, info
        self.local_steps = LocalSteps(config, info.partition.num_clients)
        self.loans = Loans(comm, data)
        self.minibatches_drawn = np.zeros(info.partition.num_clients, np.int64)
        self.start = torch.empty_like(model.values)  # x_t in working precision
        self._start_on_host = self.start.numpy() if self.start.device.type == "cpu" else None
        self.may_draw = may_be_random(config)  # random numbers, in a model of the user's own

        # The clients' tables, if they fit into memory.
        num_owned = len(owned_by(comm.rank, comm.size, info.partition.num_clients))
        size = len(tables), num_owned, model.num_params, model.values.element_size()
        device = model.values.device
        sharing = ranks_sharing(comm, device) * num_packed
        comm.try_on_all(lambda: check_vectors(*size[2:], device=device, sharing=sharing))
        comm.try_on_all(lambda: check_room(config.algorithm.name, *size, device=device, sharing=sharing))
        self.memory = ClientMemory(tables, num_owned, comm.size, model.values)

    def start_from(self, global_params: Vector) -> None:
        """All clients start from this x."""
        if self._start_on_host is not None:
            np.copyto(self._start_on_host, global_params, casting="same_kind")
        else:
            self.start.copy_(torch.as_tensor(global_params))

    def gradients(self, clients: np.ndarray, like: Tensor) -> Tensor:
        """grad F_n(x) of some of this rank's clients, a row each."""
        rows = torch.zeros_like(like)
        self._model.load(self.start)
        for row, client in zip(rows, clients.tolist(), strict=True):
            add_client_gradient(self._model, self.data, client, row)
        return rows

    def use_full_data(self, is_full: bool) -> None:
        """Whether clients use all their data in each local step, or minibatches."""
        self.data.batch_size = 0 if is_full else self.config.algorithm.batch_size

    def share(
        self, t: int, clients: np.ndarray, *, may_lend: bool
    ) -> tuple[Places, int, np.ndarray | None]:
        """Which participants this rank trains, own before borrowed ones; how many it owns; who trains whom.

        One rank trains all: None. Owners train their own clients and lend the surplus; clients with tables
        are never lent.
        """
        if self._comm.size == 1:
            return slice(None), len(clients), None
        trainers = owners = owner_of(clients, self._comm.size)
        if may_lend:
            costs = self.info.costs(clients, self.data.batch_size)
            if self.local_steps.the_same is None:
                costs = costs * self.local_steps.of(t, clients)
            trainers = assign(owners, self._comm.size, costs)
        mine = np.flatnonzero(trainers == self._comm.rank)
        is_borrowed = owners[mine] != self._comm.rank
        num_own = len(mine) - int(is_borrowed.sum())
        return np.concatenate([mine[~is_borrowed], mine[is_borrowed]]), num_own, trainers

    def works(self, t: int, clients: np.ndarray) -> list[Work]:
        """What these clients do in round t; the samples of borrowed ones are not here yet."""
        drawn, steps = self.minibatches_drawn[clients], self.local_steps.of(t, clients)
        all_of_it = zip(clients.tolist(), drawn.tolist(), steps.tolist(), strict=True)
        return [Work(self.data, n, k, steps=count) for n, k, count in all_of_it]

    def go_on(self, t: int, clients: np.ndarray) -> None:
        """These clients have done what they do in round t."""
        self.minibatches_drawn[clients] += self.local_steps.of(t, clients)
