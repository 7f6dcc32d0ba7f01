"""What a run came to in the end: a mean over whole cycles of its availability, never over one phase.

Invariant: each phase of the cycle that was evaluated has the same weight.
"""

from __future__ import annotations

import math

import numpy as np

LAST = 5  # evaluations, at least: a single one may be a run's best by luck


def settled(rounds: np.ndarray, values: np.ndarray, cycle: int = 1, at_least: int = LAST) -> float:
    """The mean over the last whole cycles that hold `at_least` evaluations; nan without a finite value.

    >>> settled(np.arange(0, 101, 10), np.arange(11.0), at_least=2)
    9.5
    >>> settled(np.arange(0, 101, 5), np.tile([1.0, 3.0], 11)[:-1], cycle=10, at_least=1)
    2.0
    """
    known = np.isfinite(values)
    rounds, values = np.asarray(rounds)[known], np.asarray(values, float)[known]
    if not len(rounds):
        return math.nan
    if cycle == 1:
        return float(values[-at_least:].mean())
    inside = rounds > rounds[-1] - window(rounds, cycle, at_least)
    phases, values = rounds[inside] % cycle, values[inside]
    return float(np.mean([values[phases == phase].mean() for phase in np.unique(phases)]))


def window(rounds: np.ndarray, cycle: int = 1, at_least: int = LAST) -> int:
    """Rounds of whole cycles, enough for every phase that is evaluated and for `at_least` evaluations.

    >>> window(np.arange(0, 101, 9), cycle=20), window(np.arange(0, 101, 20), cycle=20)
    (180, 100)
    """
    every = cadence(rounds)
    all_phases = math.lcm(every, cycle)
    return max(all_phases, -(-at_least * every // cycle) * cycle)


def cadence(rounds: np.ndarray) -> int:
    """Rounds between evaluations, those beside the rhythm left out.

    >>> cadence(np.array([0, 9, 18, 27, 30])), cadence(np.array([4]))
    (9, 1)
    """
    gaps = np.diff(np.unique(rounds))
    return int(np.median(gaps)) if len(gaps) else 1
