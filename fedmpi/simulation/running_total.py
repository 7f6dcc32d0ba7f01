"""A sum of any number of updates in fixed memory: each is added as soon as it is known, and forgotten.

The sum of a few updates (exact.py) needs the largest of all before the first is rounded, so all of them
wait in memory. Here nobody waits, and nobody has to guess how large later ones will be. The reasoning:

1. The grids on which contributions c = q * update may be rounded form one fixed ladder: grid k has the
   multiples of 2**-(width * k). The width follows from the number of contributions alone.
2. A total keeps two words of 64 bits a parameter, digits on neighbouring grids: `high` sums c rounded to
   grid k, `low` what that leaves, rounded to grid k + 1. Together they are the exact sum of all c, each
   rounded once to grid k + 1; `high` alone is the exact sum of all c, each rounded once to grid k.
3. k is the largest for which all |c| so far are below half a unit of grid k - 1. When a larger one comes,
   the total moves to grids k - 1 and k: `low` is dropped, `high` takes its place. By 2 this is what it
   would have been from the start. Two steps or more leave zero, to which earlier contributions round there.

So a total is a pure function of the set of its contributions, in whatever order and on whatever ranks they
were added: the ranks move their totals to the grids of the largest of all and add up words, in one message.
There is nothing to agree on ahead, nothing to do again, and nothing to keep between rounds: a killed run, a
run in a pack and any number of ranks have the same bits. The price is a second word.

Error: with m the largest |c|, K contributions and b = ceil(log2 K), each is off by half a unit of grid
k + 1, at most 2**-width * m; that is 2**(b - 62) * m as in exact.py (2**-50 * m if K <= 2**12), usually far
less. Overflow cannot occur: digits are at most 2**(width - 1), so K of them stay within 2**61.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedmpi.simulation import exact

_KEPT_BYTES, _FEWEST_KEPT, _MOST_KEPT = 1 << 28, 16, 4096
_PASSING_BYTES = 1 << 23
_WIDEST = 50  # bits of a digit; up to 2**51 rounding by addition is exact
_FINEST = 1000  # 2.0**_FINEST is finite
_CHUNK = 1 << 15  # entries: 256 KB of float64
_ENTRIES_AT_ONCE = 1 << 24  # on a GPU
_ROUNDER = 1.5 * 2.0**52  # adding this rounds to a whole number, which is then in the lowest bits


def most_kept(num_params: int) -> int:
    """The participants of a round whose updates may be kept until all are known, over all ranks.

    More than these are added one after the other. 256 MB, more for models above 4 million parameters;
    it depends on the model alone, so that the bits do not depend on the number of ranks.

    >>> most_kept(228_586)
    293
    """
    return min(max(_KEPT_BYTES // (4 * num_params), _FEWEST_KEPT), _MOST_KEPT)


def passing_rows(num_params: int, group_size: int) -> int:
    """How many updates a rank trains before it adds them to a running total: 8 MB, which caches hold.

    >>> passing_rows(228_586, 16), passing_rows(25_000_000, 2)
    (16, 2)
    """
    rows = min(_PASSING_BYTES // (4 * num_params), _MOST_KEPT)
    return max(rows // group_size, 1) * group_size


def rows_held(most: int, num_params: int, group_size: int, num_ranks: int) -> int:
    """The updates that a rank holds at most, in rounds with up to `most` participants."""
    held = -(-min(most, most_kept(num_params)) // num_ranks)
    return held if most <= most_kept(num_params) else max(held, passing_rows(num_params, group_size))


class RunningTotal:
    """A sum of `count` contributions over all ranks; this rank's part of it.

    `words`: (2, num_params) of 64-bit integers, on a CPU or a GPU, set to zero here.
    """

    def __init__(self, words: np.ndarray | Tensor, count: int) -> None:
        self._words = words
        self._words[...] = 0
        self._width = min(62 - max(count - 1, 0).bit_length(), _WIDEST)
        self._level: int | None = None  # k, once something else than zero was added

    def add(self, rows: Tensor, weights: np.ndarray, largest: float) -> None:
        """Add weight * row for each row; `largest`: the largest magnitude among these products."""
        if largest == 0:
            return
        self.move_to(largest)
        exponent = self._width * self._level
        if isinstance(self._words, Tensor):
            _add_on_gpu(self._words, rows, weights, exponent, self._width)
        else:
            factors = [exact.one_factor(weight, exponent) for weight in weights.tolist()]
            _add_here(self._words, rows.numpy(), factors, self._width)

    def move_to(self, largest: float) -> None:
        """To grids that hold contributions of this magnitude as well."""
        if largest == 0:
            return
        _, size = math.frexp(largest)  # largest < 2**size
        level = min((self._width - 1 - size) // self._width, _FINEST // self._width - 1)
        if self._level is None:
            self._level = level
        elif level < self._level:
            high, low = self._words
            low[...] = high if level == self._level - 1 else 0
            high[...] = 0
            self._level = level

    def value(self, words: np.ndarray | Tensor) -> np.ndarray | Tensor:
        """The float64 value of the words of all ranks together, which have moved to the same grids."""
        exponent = self._width * (self._level or 0)
        high, low = words
        value = exact.to_float(high, exponent)
        value += exact.to_float(low, exponent + self._width)
        return value


def _add_here(words: np.ndarray, rows: np.ndarray, factors: list[tuple[float, float]], width: int) -> None:
    """On a CPU, in pieces that stay in the cache: some columns of a row, or several rows of few columns."""
    num_params = words.shape[1]
    columns, at_once = min(_CHUNK, num_params), max(_CHUNK // num_params, 1)
    rounders = np.array([_ROUNDER, math.ldexp(_ROUNDER, -width)])
    superfluous = rounders.view(np.int64) * len(rows)  # modulo 2**64, as all sums of words
    weights, more = np.array(factors).T[:, :, None]
    room = np.empty((2, at_once, columns))
    for start in range(0, num_params, columns):
        some = slice(start, start + columns)
        for first in range(0, len(rows), at_once):
            piece = slice(first, first + at_once)
            _add_piece(words[:, some], rows[piece, some], weights[piece], more[piece], rounders, room)
        words[:, some] -= superfluous[:, None]


def _add_piece(
    words: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    more: np.ndarray,
    rounders: np.ndarray,
    room: np.ndarray,
) -> None:
    count, columns = rows.shape
    rest, digit = room[:, :count, :columns]
    # weight * update is rounded once to float64; scaling by a power of two is exact.
    np.multiply(rows, weights, out=rest)
    if (more != 1).any():
        rest *= more
    # A sum's lowest bits are the rounded number, its others always those of the rounder.
    np.add(rest, rounders[0], out=digit)
    _add_rows(words[0], digit.view(np.int64))
    digit -= rounders[0]
    rest -= digit
    rest += rounders[1]
    _add_rows(words[1], rest.view(np.int64))


def _add_rows(total: np.ndarray, rows: np.ndarray) -> None:
    total += rows[0] if len(rows) == 1 else rows.sum(axis=0)


def _add_on_gpu(words: Tensor, rows: Tensor, weights: np.ndarray, exponent: int, width: int) -> None:
    """The same integers, with all rows in one expression."""
    sent = torch.from_numpy(weights).to(rows.device)[:, None]
    high, low = words
    chunk = max(_ENTRIES_AT_ONCE // max(len(rows), 1), 1)
    for start in range(0, words.shape[1], chunk):
        some = slice(start, start + chunk)
        rest = rows[:, some] * sent  # in float64, as the weights are
        rest *= math.ldexp(1.0, exponent)
        digit = rest.round()
        high[some] += digit.long().sum(dim=0)
        rest -= digit
        rest *= math.ldexp(1.0, width)
        low[some] += rest.round_().long().sum(dim=0)
