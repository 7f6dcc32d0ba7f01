"""The matrix Q of participation weights, sparse, and what follows from it alone.

Invariant: work and memory grow with the number of weights above 0, not with rounds times clients, so that a
million clients are no problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Weights:
    """q_t^n > 0 as rows (round, client, weight), rounds 0 ... num_rounds - 1 in ascending order."""

    rounds: np.ndarray
    clients: np.ndarray
    weights: np.ndarray
    num_rounds: int
    num_clients: int

    @classmethod
    def dense(cls, q: np.ndarray) -> Weights:
        """From a matrix (rounds, clients)."""
        rounds, clients = np.nonzero(q)
        return cls(rounds, clients, np.asarray(q, float)[rounds, clients], *q.shape)

    @classmethod
    def of_rounds(cls, found: Sequence[tuple[np.ndarray, np.ndarray]], num_clients: int) -> Weights:
        """From (clients, weights) of each round, as a participation answers."""
        rounds = np.repeat(np.arange(len(found)), [len(clients) for clients, _ in found])
        clients, weights = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return cls(rounds, clients, weights, len(found), num_clients)

    @cached_property
    def by_client(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same rows ordered by client, then by round: intervals of any length are contiguous in it."""
        order = np.lexsort((self.rounds, self.clients))
        return self.rounds[order], self.clients[order], self.weights[order]

    def sums(self) -> np.ndarray:
        """sum_n q_t^n of each round; the paper takes it to be 1."""
        return np.bincount(self.rounds, self.weights, self.num_rounds)

    def longest_absence(self) -> int:
        """The most rounds in a row that some client was absent, start and end included."""
        rounds, clients, _ = self.by_client
        if len(np.unique(clients)) < self.num_clients:
            return self.num_rounds
        is_first = np.diff(clients, prepend=-1) != 0
        gaps = np.where(is_first, rounds, np.diff(rounds, prepend=0) - 1)
        last = rounds[np.append(np.flatnonzero(is_first)[1:] - 1, len(rounds) - 1)]
        return int(max(gaps.max(), (self.num_rounds - 1 - last).max()))


def rounding(num_clients: int) -> float:
    """Relative: averaged weights that differ by less are the same; the mean of N may be off by N ulp."""
    return max(1e-12, 2.3e-16 * num_clients)


def rho(q: Weights) -> float:
    """The least rho with sum_n (q_t^n)^2 <= rho^2 for all t (section 3); 1/sqrt(S) for S equal weights."""
    return float(np.sqrt(np.bincount(q.rounds, q.weights**2, q.num_rounds).max(initial=0)))


def interval_sums(q: Weights, period: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(interval, client, P * qbar) for whole intervals t_0 = 0, P, 2P, ... and those who took part."""
    rounds, clients, weights = q.by_client
    inside = rounds < q.num_rounds // period * period
    rounds, clients, weights = rounds[inside], clients[inside], weights[inside]
    if len(rounds) == 0:
        return rounds, clients, weights
    intervals = rounds // period
    changes = (np.diff(intervals, prepend=-1) != 0) | (np.diff(clients, prepend=-1) != 0)
    starts = np.flatnonzero(changes)
    return intervals[starts], clients[starts], np.add.reduceat(weights, starts)


def delta2_factors(q: Weights, period: int) -> np.ndarray:
    """N sum_n (qbar_{t_0}^n - mu_{t_0})^2 of each whole interval: times d^2 it bounds delta^2(P).

    The right-hand side of equation (15) without d^2, with the best mu, the mean over clients.
    Exactly 0 where all clients have the same weight up to rounding (Proposition 4.2).
    """
    count = q.num_rounds // period
    intervals, _, sums = interval_sums(q, period)
    means = np.bincount(intervals, sums, count) / period / q.num_clients
    # Deviations are squared one by one: a difference of sums of squares would lose the zero.
    squares = np.bincount(intervals, (sums / period - means[intervals]) ** 2, count)
    absent = q.num_clients - np.bincount(intervals, minlength=count)
    factors = q.num_clients * (squares + absent * means**2)
    return np.where(factors <= (q.num_clients * rounding(q.num_clients) * means) ** 2, 0.0, factors)


def regularized_interval(q: Weights) -> int | None:
    """The smallest P with delta^2(P) = 0 in all whole intervals seen, two of them at least; or None.

    Proposition 4.2. Whether the first interval is even is followed round by round for all P at once; only
    the few lengths that pass are examined in full.
    """
    rounds, clients, weights = q.by_client
    if len(rounds) == 0:
        return None
    # sum_n s_n^2 grows by 2 s q + q^2 when client n, at s so far, adds q.
    before = np.cumsum(weights) - weights
    starts = np.flatnonzero(np.diff(clients, prepend=-1) != 0)
    so_far = before - np.repeat(before[starts], np.diff(starts, append=len(clients)))
    squares = np.cumsum(np.bincount(rounds, 2 * so_far * weights + weights**2, q.num_rounds))
    totals = np.cumsum(np.bincount(rounds, weights, q.num_rounds))
    spread = squares - totals**2 / q.num_clients
    periods = 1 + np.flatnonzero((spread <= 1e-7 * squares) & (squares > 0))
    for period in periods[periods <= q.num_rounds // 2].tolist():
        if not delta2_factors(q, period).any():
            return period
    return None


def interval_grid(num_rounds: int, *always: int | None, count: int = 24) -> list[int]:
    """Interval lengths to examine: evenly spread by order of magnitude, and those asked for."""
    most = max(num_rounds // 2, 1)
    spaced = np.unique(np.geomspace(1, most, count).round().astype(int)).tolist()
    return sorted({*spaced, *(p for p in always if p and p <= num_rounds)})
