"""Which rank trains which client: owners train their own clients, surplus clients are lent to idle ranks.

Invariant: the plan is a pure function of the participants and the number of ranks, so that every rank
computes the same one; a client's update has the same bits on any rank.
"""

from __future__ import annotations

import numpy as np


def assign(owners: np.ndarray, num_ranks: int, costs: np.ndarray | None = None) -> np.ndarray:
    """The rank that trains each participant, given the rank that owns it.

    If the `costs` differ, see `assign_by_cost`. Otherwise no rank trains more than its even share,
    ceil(participants / ranks); an owner's surplus goes to the ranks with the least to do. Nothing else
    moves, since moving costs a message.

    >>> assign(np.array([0, 0, 0, 1]), 2)
    array([0, 0, 1, 1])
    >>> assign(np.array([2, 2, 2]), 3)
    array([2, 0, 1])
    """
    if costs is not None and len(costs) and costs.min() != costs.max():
        return assign_by_cost(owners, num_ranks, costs)

    # Nothing to lend if no owner has more than its share.
    share = -(-len(owners) // num_ranks)
    load = np.bincount(owners, minlength=num_ranks)
    if load.max(initial=0) <= share:
        return owners

    # A participant is surplus if its owner has `share` others before it.
    order = np.argsort(owners, kind="stable")
    place = np.empty(len(owners), np.int64)
    place[order] = np.arange(len(owners)) - np.repeat(np.cumsum(load) - load, load)
    surplus = np.flatnonzero(place >= share)

    # Free places, first one place on each of the least loaded ranks, then a second, ...
    load = np.minimum(load, share)
    free = [(load[rank] + k, rank) for rank in range(num_ranks) for k in range(share - load[rank])]
    trainers = owners.copy()
    trainers[surplus] = [rank for _, rank in sorted(free)[: len(surplus)]]
    return trainers


def assign_by_cost(owners: np.ndarray, num_ranks: int, costs: np.ndarray) -> np.ndarray:
    """As `assign`, for participants with different costs: the largest first, on its owner if there is room.

    A rank has room up to the even share of all costs, or up to the largest single cost. What does not fit
    on its owner goes to the rank with the least to do.

    >>> assign_by_cost(np.array([0, 0, 0, 1]), 2, np.array([9, 1, 8, 1]))
    array([0, 0, 1, 1])
    """
    # Greedy: the most expensive first, where it fits.
    room = max(-(-int(costs.sum()) // num_ranks), int(costs.max()))
    load = np.zeros(num_ranks, np.int64)
    trainers = owners.copy()
    for i in np.argsort(-costs, kind="stable").tolist():
        home = owners[i]
        rank = home if load[home] + costs[i] <= room else int(load.argmin())
        load[rank] += costs[i]
        trainers[i] = rank
    return trainers
