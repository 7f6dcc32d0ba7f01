"""Sums that do not depend on order or grouping: fixed point in 64-bit integers.

Every contribution c = q * update is rounded once to a multiple of 2**-exponent; the multiples are added
as integers, which is associative. The exponent comes from the largest |c| of all clients and from how
many there are, both the same on every rank, so 1, 2 or 16 ranks get the same bits.

Error: with m the largest |c|, K contributions, b = ceil(log2 K), each is off by at most half a unit,
2**-(exponent + 1) <= 2**(b - 62) * m, so the sum by at most K * 2**(b - 62) * m: for K = 10 about
3e-17 * m, finer than float64 addition itself. Overflow cannot occur: each multiple is at most
2**(62 - b), so K of them stay within 2**62.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from torch import Tensor

_FEW = 1 << 12  # entries
_CHUNK = 1 << 14  # entries: 128 KB of float64
_ENTRIES_AT_ONCE = 1 << 25  # 256 MB of float64, on a GPU
_SMALLEST = sys.float_info.min  # below it digits are lost
_MAX_EXPONENT = 1000  # 2.0**_MAX_EXPONENT is finite; contributions below 1e-280 may round to zero


def magnitudes(values: np.ndarray) -> np.ndarray:
    """The largest magnitude in each row, nan where one holds a nan. On a CPU."""
    if values.size <= _FEW:
        return np.abs(values).max(axis=1).astype(np.float64)
    return np.maximum(values.max(axis=1), -values.min(axis=1)).astype(np.float64)  # without a copy


def common_exponent(largest: float, count: int) -> int:
    """The exponent for `count` contributions of magnitude at most `largest`.

    >>> common_exponent(1.0, 1)
    61
    """
    if not math.isfinite(largest) or largest < 0:
        raise ValueError(f"largest contribution must be finite and >= 0, got {largest}")
    headroom = max(count - 1, 0).bit_length()  # ceil(log2(count))
    _, exponent_of_largest = math.frexp(largest)  # largest < 2**exponent_of_largest
    return min(62 - headroom - exponent_of_largest, _MAX_EXPONENT)


def add_contributions(
    total: np.ndarray, updates: np.ndarray, weights: Sequence[float], exponent: int
) -> None:
    """total += round(weight * update * 2**exponent) for each update, in int64; products in float64.

    On a CPU, by numpy, which takes half of torch's time.
    """
    factors = [one_factor(weight, exponent) for weight in weights]
    if len(total) <= _CHUNK:
        _add_chunk(total, updates, factors)
        return
    # Chunk by chunk through all updates, so that the chunk stays in the cache.
    for start in range(0, len(total), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        _add_chunk(total[chunk], updates[:, chunk], factors)


def _add_chunk(total: np.ndarray, updates: np.ndarray, factors: Sequence[tuple[float, float]]) -> None:
    real, whole = np.empty(len(total)), np.empty(len(total), np.int64)
    for update, (factor, rest) in zip(updates, factors, strict=True):
        # Scaling by a power of two is exact: weight * update is rounded once to float64, once here.
        np.multiply(update, factor, out=real, dtype=np.float64)
        if rest != 1:
            real *= rest
        np.rint(real, out=real)
        np.copyto(whole, real, casting="unsafe")
        total += whole


def one_factor(weight: float, exponent: int) -> tuple[float, float]:
    """weight * 2**exponent, which is exact, and 1; two factors where one leaves float64's range."""
    try:
        factor = math.ldexp(weight, exponent)
        if abs(factor) >= _SMALLEST or weight == 0:
            return factor, 1.0
    except OverflowError:
        pass
    return weight, math.ldexp(1.0, exponent)


def add_all(total: Tensor, updates: Tensor, weights: Tensor, exponent: int) -> None:
    """As `add_contributions`, with all updates in one expression, for a GPU.

    `weights`: float64, on the device.
    """
    chunk = max(_ENTRIES_AT_ONCE // max(len(updates), 1), 1)
    for start in range(0, len(total), chunk):
        scaled = updates[:, start : start + chunk] * weights[:, None]  # in float64, as the weights are
        scaled *= math.ldexp(1.0, exponent)
        total[start : start + chunk] += scaled.round_().long().sum(dim=0)


def to_float(total: np.ndarray | Tensor, exponent: int) -> np.ndarray | Tensor:
    """The float64 value of an integer sum, correctly rounded."""
    values = total.astype(np.float64) if isinstance(total, np.ndarray) else total.double()
    if exponent < -_MAX_EXPONENT:  # beyond it a factor is infinite
        values *= math.ldexp(1.0, _MAX_EXPONENT)
        exponent += _MAX_EXPONENT
    values *= math.ldexp(1.0, -exponent)
    return values
