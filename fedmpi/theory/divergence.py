"""Divergences of given gradients at a point: how far the participants' direction is from that of all.

`deviations` holds grad F_n(x) - grad f(x), one row per client. Invariant: results depend only on the inner
products of its rows, so a Gram matrix is enough (`deviations_of_gram`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.theory.weights import Weights, interval_sums, rounding

_BLOCK = 1 << 22  # numbers of a temporary array


@dataclass(frozen=True)
class Divergence:
    """The constants of Assumptions 3 and 3' at one point, the least that hold there."""

    d2: float  # max_n |grad F_n - grad f|^2
    beta2: float  # (5): max_t |sum_n q_t^n (grad F_n - grad f)|^2
    nu2: float  # (6): max_t sum_n q_t^n |grad F_n - sum_n' q_t^n' grad F_n'|^2


def divergence(q: Weights, deviations: np.ndarray) -> Divergence:
    """d^2, beta^2 and nu^2 over all rounds of Q."""
    _, beta2, nu2 = round_split(q, deviations)
    return Divergence(
        float((deviations**2).sum(axis=1).max()), float(beta2.max(initial=0)), float(nu2.max(initial=0))
    )


def round_split(q: Weights, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each round sum_n q |grad F_n - grad f|^2, beta_t^2 and nu_t^2: the first is the sum of the others.

    Equation (11), Proposition 4.1; it needs weights that sum to 1. All three are computed independently.
    """
    norms = (deviations**2).sum(axis=1)
    whole = np.bincount(q.rounds, q.weights * norms[q.clients], q.num_rounds)
    beta2, nu2 = np.zeros(q.num_rounds), np.zeros(q.num_rounds)
    for part, means in _combined(q.rounds, q.clients, q.weights, q.num_rounds, deviations):
        rounds = q.rounds[part]
        beta2[rounds] = (means[rounds - rounds[0]] ** 2).sum(axis=1)
        away = ((deviations[q.clients[part]] - means[rounds - rounds[0]]) ** 2).sum(axis=1)
        nu2 += np.bincount(rounds, q.weights[part] * away, q.num_rounds)
    return whole, beta2, nu2


def exact_delta2(q: Weights, deviations: np.ndarray, period: int) -> np.ndarray:
    """|(1/P) sum_t sum_n q_t^n (grad F_n - grad f)|^2 of each whole interval, equation (7).

    Weights enter as qbar - mu (equation (13)): the same, since deviations sum to 0, and exactly 0 where all
    clients took part alike.
    """
    count = q.num_rounds // period
    intervals, clients, sums = interval_sums(q, period)
    order = np.argsort(intervals, kind="stable")
    intervals, clients, qbar = intervals[order], clients[order], sums[order] / period
    mu = np.bincount(intervals, qbar, count) / q.num_clients
    from_mu = qbar - mu[intervals]
    from_mu[np.abs(from_mu) <= rounding(q.num_clients) * mu[intervals]] = 0.0
    # Where a client was absent mu need not be subtracted: all deviations, its own included, sum to 0.
    is_full = np.bincount(intervals, minlength=count) == q.num_clients
    effective = np.where(is_full[intervals], from_mu, qbar)
    result = np.zeros(count)
    for part, vectors in _combined(intervals, clients, effective, count, deviations):
        here = np.unique(intervals[part])
        result[here] = (vectors[here - intervals[part][0]] ** 2).sum(axis=1)
    return result


def _combined(
    groups: np.ndarray, clients: np.ndarray, weights: np.ndarray, count: int, deviations: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield (rows of some groups, sum of weight * deviation of each), in blocks of bounded memory."""
    rows_at_once = max(_BLOCK // max(deviations.shape[1], 1), 1)
    first = 0
    while first < len(groups):
        last = min(first + rows_at_once, len(groups))
        if last < len(groups):  # groups stay whole
            last = int(np.searchsorted(groups, groups[last]))
            if last <= first:
                last = int(np.searchsorted(groups, groups[first], side="right"))
        part = slice(first, last)
        own = groups[part] - groups[first]
        vectors = np.zeros((int(own[-1]) + 1, deviations.shape[1]))
        starts = np.flatnonzero(np.diff(own, prepend=-1) != 0)
        vectors[own[starts]] = np.add.reduceat(
            weights[part, None] * deviations[clients[part]], starts, axis=0
        )
        yield part, vectors
        first = last


def deviations_of_gram(gram: np.ndarray) -> np.ndarray:
    """Rows with the inner products of a (clients, clients) matrix: short stand-ins for long gradients."""
    values, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(np.maximum(values, 0))
