"""Which rank owns which client: rank r of R has clients r, r + R, r + 2R, ...

By stride, since availability groups are contiguous ids: contiguous ownership would leave most ranks idle.
No other module computes with the number of ranks.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

Ids = TypeVar("Ids", int, np.ndarray)


def owner_of(clients: Ids, num_ranks: int) -> Ids:
    """The rank of a client, or of each of some clients.

    >>> owner_of(7, 3), owner_of(np.arange(5), 2).tolist()
    (1, [0, 1, 0, 1, 0])
    """
    return clients % num_ranks


def owned_by(rank: int, num_ranks: int, num_clients: int) -> np.ndarray:
    """The clients of a rank, in ascending order.

    >>> owned_by(1, 3, 8).tolist()
    [1, 4, 7]
    """
    return np.arange(rank, num_clients, num_ranks)


def parts_for(rank: int, num_ranks: int, num_parts: int) -> list[int]:
    """Which of the ranks of an earlier job may have owned clients that this rank owns now.

    >>> parts_for(1, 2, 4), parts_for(1, 2, 3)
    ([1, 3], [0, 1, 2])
    """
    common = math.gcd(num_ranks, num_parts)
    return [part for part in range(num_parts) if (part - rank) % common == 0]


def place_of(clients: Ids, num_ranks: int) -> Ids:
    """The position of a client among those of its owner, from 0.

    >>> place_of(7, 3)
    2
    """
    return clients // num_ranks
