"""Who trains whom in a round: owners train their own clients, and surplus clients are lent to idle ranks.

Invariant: the plan is a pure function of the participants and the number of ranks, so that every rank
computes the same one; a client's update has the same bits on whichever rank it is trained.
"""

from __future__ import annotations

import numpy as np


def assign(owners: np.ndarray, num_ranks: int) -> np.ndarray:
    """The rank that trains each participant, given the rank that owns it.

    No rank trains more than its even share, ceil(participants / ranks); what an owner has beyond that goes
    to the ranks with the least to do. Nothing else moves, since moving costs a message.

    >>> assign(np.array([0, 0, 0, 1]), 2)
    array([0, 0, 1, 1])
    >>> assign(np.array([2, 2, 2]), 3)
    array([2, 0, 1])
    """
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
