"""What a run came to in the end, one rule for all figures: a mean over whole cycles, never over one phase.

`window` says how many rounds at the end, `mean_over` takes the mean in them, `settled` does both.
Invariant: each phase of the cycle that evaluations come to has the same weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LAST = 5  # evaluations, at least: a single one may be a run's best by luck
_LONGEST = 1 / 3  # of a run's rounds, for a window that sees all phases: before that it has not settled


def settled(rounds: np.ndarray, values: np.ndarray, cycle: int = 1, at_least: int = LAST) -> float:
    """The mean over the last whole cycles that hold `at_least` evaluations; nan without a finite value.

    >>> settled(np.arange(0, 101, 10), np.arange(11.0), at_least=2)
    9.5
    >>> settled(np.arange(0, 101, 5), np.tile([1.0, 3.0], 11)[:-1], cycle=10, at_least=1)
    2.0
    """
    rounds, values = finite(rounds, values)
    if not len(rounds):
        return math.nan
    if cycle == 1:
        return float(values[-at_least:].mean())
    every = cadence(rounds)
    return mean_over(rounds, values, cycle, window(int(rounds[-1]), cycle, [every], at_least * every))


def window(rounds: int, cycle: int, steps: Sequence[int], at_least: int) -> int:
    """Rounds at the end: whole cycles, `at_least` so many, and every phase that evaluations come to.

    `steps` are the rounds between evaluations, of each of the runs that are compared. Where all phases
    would take a great part of the run it is whole cycles alone, and without room for one the least.

    >>> window(2000, 20, [9], 45), window(2000, 20, [20], 100), window(12_000, 500, [69], 345)
    (180, 100, 500)
    """
    whole_cycles = math.ceil(at_least / cycle) * cycle
    for all_phases in (math.lcm(cycle, *steps), math.lcm(cycle, max(steps))):
        if all_phases <= _LONGEST * rounds:
            return min(max(all_phases, whole_cycles), rounds)
    return whole_cycles if whole_cycles <= rounds else min(at_least, rounds)


def mean_over(
    rounds: np.ndarray, values: np.ndarray, cycle: int, last: int, end: int | None = None
) -> float:
    """The mean of the finite values of the last rounds, of each phase first; nan without one.

    >>> mean_over(np.array([0, 5, 10, 15]), np.array([9.0, 3.0, 1.0, 3.0]), cycle=10, last=15)
    2.0
    """
    rounds, values = finite(rounds, values)
    counted = in_window(rounds, cycle, last, end)
    phases, values = rounds[counted] % cycle, values[counted]
    if not len(values):
        return math.nan
    return float(np.mean([values[phases == phase].mean() for phase in np.unique(phases)]))


def in_window(rounds: np.ndarray, cycle: int, last: int, end: int | None = None) -> np.ndarray:
    """Which evaluations count, of the last rounds before `end`, by default the last evaluation.

    One beside the rhythm, as that at the end may be, does not count by a phase that no other has.

    >>> in_window(np.array([0, 5, 10, 15, 18]), cycle=10, last=10)
    array([False, False,  True,  True, False])
    """
    if not len(rounds):
        return np.zeros(0, bool)
    inside = rounds > (rounds[-1] if end is None else end) - last
    has_phase = inside & (rounds % math.gcd(cadence(rounds), cycle) == 0)
    return has_phase if has_phase.any() else inside


def cadence(rounds: np.ndarray) -> int:
    """Rounds between evaluations, those beside the rhythm left out.

    >>> cadence(np.array([0, 9, 18, 27, 30])), cadence(np.array([4]))
    (9, 1)
    """
    gaps = np.diff(np.unique(rounds))
    return int(np.median(gaps)) if len(gaps) else 1


def finite(rounds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where there is a value."""
    known = np.isfinite(values)
    return np.asarray(rounds)[known], np.asarray(values, float)[known]
