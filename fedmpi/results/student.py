"""Student's t distribution and the paired t test's power, without a statistics library.

Invariant: exact up to rounding: finite sums for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and
26.7.4), bisection for quantiles, one smooth integral for power.
"""

from __future__ import annotations

import math

import numpy as np

_NODES = 200  # of Gauss and Legendre
MOST_PAIRS = 10_000


def two_sided_p(t: float, freedom: int) -> float:
    """P(|T| > |t|) with so many degrees of freedom.

    >>> round(two_sided_p(12.706204736, 1), 9), round(two_sided_p(2.228138852, 10), 9)
    (0.05, 0.05)
    """
    if math.isnan(t):
        return math.nan
    theta = math.atan2(abs(t), math.sqrt(freedom))
    cosine, is_odd = math.cos(theta), freedom % 2
    # cos + 2/3 cos^3 + 2/3 4/5 cos^5 + ..., or 1 + 1/2 cos^2 + 1/2 3/4 cos^4 + ...: to cos^(freedom - 2).
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(is_odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cosine**2
    inside = math.sin(theta) * total
    if is_odd:
        inside = 2 / math.pi * (theta + inside)
    return min(max(1 - inside, 0.0), 1.0)


def quantile(freedom: int, level: float = 0.05) -> float:
    """The t with P(|T| > t) = level.

    >>> round(quantile(2), 6), round(quantile(9), 6)
    (4.302653, 2.262157)
    """
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > level else (low, middle)
    return high


def power(effect: float, pairs: int, level: float = 0.05) -> float:
    """The chance that a paired t test finds a difference of `effect` standard deviations.

    >>> round(power(0.5, 34), 3)
    0.808
    """
    freedom = pairs - 1
    limit, shift = quantile(freedom, level), abs(effect) * math.sqrt(pairs)
    # T = (Z + shift)/U; over the density of U = sqrt(chi^2/freedom), which is near 1.
    nodes, shares = np.polynomial.legendre.leggauss(_NODES)
    first, last = max(0.0, 1 - 9 / math.sqrt(freedom)), 1 + 9 / math.sqrt(freedom)
    u, shares = first + (nodes + 1) / 2 * (last - first), shares / 2 * (last - first)
    constant = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    density = np.exp(constant + (freedom - 1) * np.log(u) - freedom * u**2 / 2)
    found = [_normal(shift - limit * x) + _normal(-shift - limit * x) for x in u]
    return float((shares * density) @ np.array(found))


def pairs_needed(effect: float, wanted: float = 0.9, level: float = 0.05) -> int | None:
    """The fewest pairs with this power; None if more than `MOST_PAIRS`, or if there is no effect.

    >>> pairs_needed(1.0), pairs_needed(0.5), pairs_needed(0.5, 0.8)
    (13, 44, 34)
    """
    if effect == 0 or math.isnan(effect) or power(effect, MOST_PAIRS, level) < wanted:
        return None
    low, high = 1, 2  # too few, perhaps enough
    while power(effect, high, level) < wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, middle, level) >= wanted else (middle, high)
    return high


def _normal(x: float) -> float:
    """P(Z < x)."""
    return math.erfc(-x / math.sqrt(2)) / 2
