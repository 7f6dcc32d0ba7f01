"""What one rank does for the clients of a round: whom it trains for which run, on which arrays.

Invariant: what a client starts from and is trained on does not depend on the rank nor on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.config.records import replace
from fedmpi.errors import ClientError
from fedmpi.methods import Method, Round, ServerState
from fedmpi.participation.delivery import Late
from fedmpi.simulation.client import Failures, Task
from fedmpi.simulation.late import exchange
from fedmpi.simulation.population import Places, Population
from fedmpi.simulation.rank_report import RankReport
from fedmpi.simulation.shares import Share, among, placed


@dataclass(kw_only=True, slots=True, eq=False)
class Order:
    """What a run wants in a round: all its participants trained, and their updates summed."""

    population: Population
    method: Method
    state: ServerState
    current: Round
    report: RankReport  # what this rank wants after the round
    late: Late | None = None  # whose updates are left behind or arrive in this round; None if none ever is

    @property
    def uses_memory(self) -> bool:
        """Whether clients of the round keep something with their owners."""
        return bool(self.method.tables) or self.late is not None


@dataclass(slots=True)
class Part:
    """What this rank does for one run, at once."""

    order: Order
    mine: Places  # the participants that it trains, own before borrowed ones
    num_own: int
    trainers: np.ndarray | None  # who trains whom; None if there is one rank
    clients: np.ndarray  # those that it trains
    lending: Places  # the participants that may be lent meanwhile
    task: Task | None = None

    @classmethod
    def of(cls, order: Order) -> Part:
        """As the plan for the round has it."""
        clients = order.current.clients
        mine, num_own, trainers = share_of(order)
        return cls(order, mine, num_own, trainers, clients[mine], slice(None))

    def finish(self, failures: Failures) -> None:
        """After the last local step; the owners keep what their clients remember."""
        order, task = self.order, self.task
        if failures.of(task):
            return
        try:
            order.method.finish_clients(task.local, replace(order.current, mine=self.mine))
        except Exception as error:
            failures.add(task, task.works, error)
            return
        exchange(self)
        if order.uses_memory:
            order.population.memory.store(self.clients, task.local)

    def rows(self) -> dict[str, torch.Tensor]:
        """What is summed; updates in place of what a failed client does not have."""
        local, updates = self.task.local, self.task.local["update"]
        rows = {"weighted_sum": updates}
        for name in self.order.method.client_sums:
            rows[name] = local.get(name, updates)
        return rows

    def numbers(self) -> dict[str, np.ndarray]:
        """What the server reads of each of these clients; 0 for those that failed."""
        local, zero = self.task.local, np.zeros(len(self.clients))
        numbers = {name: local.get(name) for name in self.order.method.client_numbers}
        return {
            name: zero if values is None else values.reshape(-1).double().cpu().numpy()
            for name, values in numbers.items()
        }

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
            numbers={
                name: among(own, len(current.clients), self.mine) for name, own in self.numbers().items()
            },
        )


def start_lending(parts: Sequence[Part]) -> None:
    """Each client of each run has a message tag of its own."""
    tag = 0
    for part in parts:
        population, current = part.order.population, part.order.current
        clients = current.clients[part.lending]
        drawn, steps = population.minibatches_drawn, population.local_steps.of(current.t, clients)
        population.loans.start(clients, part.trainers[part.lending], drawn, steps, tag)
        tag += len(clients)


def receive(parts: Sequence[Part]) -> None:
    """The samples of borrowed clients."""
    for part in parts:
        for work in part.task.works[part.num_own :]:
            work.samples = part.order.population.loans.receive(work.client, work.steps)


def share_of(order: Order) -> tuple[Places, int, np.ndarray | None]:
    """Whom this rank trains, see `Population.share`; who needs memory or all its data is not lent."""
    may_lend = not order.uses_memory and not order.method.asks_gradients
    return order.population.share(order.current.t, order.current.clients, may_lend=may_lend)


def sent_by_server(method: Method, state: ServerState, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """What all clients get besides x: "server_<name>", (1, num_params) each."""
    return {
        f"server_{name}": torch.as_tensor(state.extras[name]).to(like)[None] for name in method.broadcasts
    }


def task_of(order: Order, clients: np.ndarray, updates: torch.Tensor) -> Task:
    """The arrays that training works on: updates, clients' tables, scratch, what the server sends."""
    population, method = order.population, order.method
    memory = population.memory.fetch(clients) if order.uses_memory else {}
    scratch = {name: torch.zeros_like(updates) for name in method.scratch}
    if method.asks_gradients:
        scratch["gradient_at_x"] = population.gradients(clients, updates)
    local = {"update": updates, **memory, **scratch, **sent_by_server(method, order.state, updates)}
    works = population.works(order.current.t, clients)
    for work in works if order.late else ():
        if work.client in order.late.arriving_set:
            work.steps = 0  # its update is there
    return Task(
        start=method.start(local) if method.has_own_starts else population.start,
        local=local,
        works=works,
        method=method,
        current=order.current,
        clip_norm=population.config.algorithm.clip_norm,
        reseed=population.may_draw,
    )
