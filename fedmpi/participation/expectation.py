"""Mean weights E q_t^n in closed form, for clients that are available independently of each other.

Invariant: exact up to rounding, or None where no closed form is known.
"""

from __future__ import annotations

import math

import numpy as np

_NODES = 80  # of Gauss and Legendre; more digits than needed for any number of clients
_BLOCK = 1 << 22  # numbers of a temporary array


def expected_weights(chances: np.ndarray, weighting: str, per_round: int | None) -> np.ndarray | None:
    """E q of one round for clients available with these chances; `per_round` of them are chosen, or all.

    >>> expected_weights(np.array([1.0, 0.5]), "equal", None)  # alone half of the time
    array([0.75, 0.25])
    """
    num_clients = len(chances)
    members = np.flatnonzero(chances)
    if weighting == "inverse-probability":
        return (chances > 0) / num_clients
    if weighting not in ("equal", "all"):
        return None
    if per_round is None:
        return chances / num_clients if weighting == "all" else _of_equal(chances)
    # A choice among clients that differ in nothing but their number gives all of them the same.
    if len(members) == 0 or np.ptp(chances[members]) > 0:
        return np.zeros(num_clients) if len(members) == 0 else None
    chance, count = float(chances[members[0]]), len(members)
    if weighting == "equal":
        whole = 1 - (1 - chance) ** count
    else:
        whole = _mean_chosen(count, chance, per_round) / num_clients
    return np.where(chances > 0, whole / count, 0.0)


def _of_equal(chances: np.ndarray) -> np.ndarray:
    """p_n E[1/(1 + others)], where E[1/(1 + X)] is the integral of E[s^X] over s from 0 to 1."""
    # With u = 1 - s the integrand falls like exp(-u sum p): beyond 50/sum p nothing is left.
    longest = min(1.0, 50 / max(float(chances.sum()), 1e-300))
    nodes, shares = np.polynomial.legendre.leggauss(_NODES)
    nodes, shares = (nodes + 1) / 2 * longest, shares / 2 * longest
    result = np.zeros(len(chances))
    rows = max(_BLOCK // _NODES, 1)
    blocks = range(0, len(chances), rows)
    whole = sum(np.log1p(-nodes * chances[i : i + rows, None]).sum(axis=0) for i in blocks)
    for i in blocks:
        part = chances[i : i + rows, None]
        result[i : i + rows] = (part * np.exp(whole - np.log1p(-nodes * part))) @ shares
    return result


def _mean_chosen(count: int, chance: float, most: int) -> float:
    """E min(X, most) of a binomial X: the sum of P(X >= k) for k = 1 ... most."""
    if chance == 1:
        return float(min(count, most))
    odds, log_share, below, total = math.log(chance / (1 - chance)), count * math.log1p(-chance), 0.0, 0.0
    for k in range(min(most, count)):
        below += math.exp(log_share)  # P(X <= k)
        total += 1 - below
        log_share += math.log((count - k) / (k + 1)) + odds
    return total
