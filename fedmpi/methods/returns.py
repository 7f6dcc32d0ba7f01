"""How long clients take to come back: P observed, where nobody knows the cycle of participation.

A client's absences between participations are short within a turn and long between turns. It has come
back when it takes part after an absence longer than half of its longest; the rounds from one such return
to the next are its period. An absence more than twice as long as any before begins a new scale: all that
was before it is one turn, which began with the first participation. P is the median period of the clients
that have come back. Clients in fixed turns: the cycle, once most have come back. Independent rounds: the
time to a rare long absence, which grows slowly. Invariant: a round touches only its participants' numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_NEVER = -1
_NAMES = ("return_first", "return_last", "return_begin", "return_longest", "return_period")


def initial(num_clients: int) -> dict[str, np.ndarray]:
    """Of each client the first and last participation, the last return, the longest absence, the period."""
    values = (_NEVER, _NEVER, _NEVER, 0, 0)
    return {name: np.full(num_clients, value) for name, value in zip(_NAMES, values, strict=True)}


def seen(extras: Mapping[str, np.ndarray], t: int, clients: np.ndarray) -> dict[str, np.ndarray]:
    """What changes when these clients have taken part in round t."""
    first, last, begin, longest, period = (extras[name].copy() for name in _NAMES)
    is_new = last[clients] == _NEVER
    first[clients[is_new]] = begin[clients[is_new]] = t

    # Who comes back, on the scale of before or on a new one.
    absence = np.where(is_new, 0, t - last[clients])  # 1 for a client of the round before
    for comes_back, since in (
        (2 * absence > longest[clients], begin),
        (absence > 2 * longest[clients], first),
    ):
        period[clients[comes_back]] = t - since[clients[comes_back]]
    begin[clients[2 * absence > longest[clients]]] = t
    longest[clients] = np.maximum(longest[clients], absence)
    last[clients] = t
    return dict(zip(_NAMES, (first, last, begin, longest, period), strict=True))


def interval(extras: Mapping[str, np.ndarray], otherwise: int) -> int:
    """P; `otherwise` until a client has come back.

    >>> extras = initial(3)
    >>> for t, who in enumerate([[0], [0], [1], [1], [0], [0], [1], [1]]):
    ...     extras |= seen(extras, t, np.array(who))
    >>> interval(extras, otherwise=1)
    4
    """
    known = extras["return_period"][extras["return_period"] > 0]
    return max(round(float(np.median(known))), 1) if len(known) else otherwise
