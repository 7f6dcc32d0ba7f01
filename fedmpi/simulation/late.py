"""Updates that come rounds after they were computed: their clients' owners keep them until then.

In a round some clients train and leave their update behind (weight 0 in its sum), and updates that were
left behind arrive, without training. Invariant: an arriving update is, bit for bit, what its client
computed from the x of its own round; kept by client id, so a checkpoint goes on on any number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config import Config
from fedmpi.config.records import replace
from fedmpi.participation.delivery import keeps_late
from fedmpi.simulation.shares import Reduced

if TYPE_CHECKING:
    from fedmpi.simulation.parts import Order, Part

TABLE = "late_update"


def with_late(config: Config, tables: tuple[str, ...]) -> tuple[str, ...]:
    """The tables of a method, and one more where updates may be late."""
    return (*tables, TABLE) if keeps_late(config) else tables


def with_leaving(order: Order) -> Order:
    """The round with those who only train in it, and weigh nothing."""
    if order.late is None or not len(order.late.leaving):
        return order
    heard, clients = order.current, np.union1d(order.current.clients, order.late.leaving)
    weights = np.zeros(len(clients))
    weights[np.searchsorted(clients, heard.clients)] = heard.weights
    new = replace(heard, clients=clients, weights=weights)
    return type(order)(
        population=order.population, method=order.method, state=order.state, current=new,
        report=order.report, late=order.late,
    )  # fmt: skip


def as_heard(answer: Reduced | Exception, trained: Order, order: Order) -> Reduced | Exception:
    """Of those whose updates are in the sum; nothing of the others is known to the server."""
    if isinstance(answer, Exception) or trained is order:
        return answer
    there = np.isin(trained.current.clients, order.current.clients)
    answer.update_max = answer.update_max[there]
    return answer


def exchange(part: Part) -> None:
    """Leave behind the updates of those who leave, and fetch those that arrive."""
    late, local = part.order.late, part.task.local
    if late is None:
        return
    for place, client in enumerate(part.clients.tolist()):
        if client in late.leaving_set:
            local[TABLE][place] = local["update"][place]
        elif client in late.arriving_set:
            local["update"][place] = local[TABLE][place]
