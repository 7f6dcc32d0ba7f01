"""What `advise` says of bias and of chance: the floor that no P removes, and Propositions 4.6 and 4.7.

Invariant: plain numbers, texts and lists, for JSON; nothing is claimed of a process whose conditions are
not known to hold.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmpi.config import WEIGHTINGS, Config
from fedmpi.theory.random_participation import chebyshev_delta2, expected_delta2, hoeffding_delta2

if TYPE_CHECKING:
    from fedmpi.theory.advice import Adviser

FAILURE = 0.05  # c
# Methods that correct for how often clients take part, or remember the absent ones.
CORRECTING = (
    "fedau", "mifa", "fedvarp", "fedlaavg", "focus", "scaffold", "amplified-scaffold", "debiasing-fedavg",
    "feddyn", "fedawe", "fedpbc", "f3ast", "ca-fed",
)  # fmt: skip


def bias_report(adviser: Adviser) -> dict[str, Any]:
    """Mean weights in the long run, what they leave of delta^2 for any P, and what would help."""
    process, known = adviser.process, adviser.known
    means, found = process.means, adviser.is_biased
    least, most = int(means.argmin()), int(means.argmax())
    exact = None
    if found and known and known.deviations is not None:
        exact = float(((means @ known.deviations) ** 2).sum())
    return {
        "is_biased": found,
        "floor": process.floor if found else 0.0,
        "floor_delta2": exact,
        "least": [least, float(means[least])],
        "most": [most, float(means[most])],
        "from": process.means_from,
        "never_seen": int(np.count_nonzero(means == 0)),
        "remedies": remedies(adviser.config) if found else [],
    }


def remedies(config: Config) -> list[str]:
    """Settings under which fedavg, or another method, goes to the optimum of all clients."""
    weighting = WEIGHTINGS.part("inverse-probability")
    helps = (
        config.participation.weighting != weighting.name and config.participation.selection != "schedule"
    )
    found = []
    if helps and not list(weighting.conflicts(config)):
        found.append(f'participation.weighting = "{weighting.name}"')
    return [*found, 'algorithm.name = "fedau", "mifa" or "fedvarp"']


def proposition_report(adviser: Adviser) -> dict[str, Any] | None:
    """delta^2(P)/d^2 by Proposition 4.6 or 4.7 over P: in expectation, and with probability 1 - c."""
    name = adviser.process.proposition
    if name is None or adviser.regularized:
        return None
    rows = [_row(adviser, name, period) for period, _, _ in adviser.curve]
    return {
        "name": name,
        "c": FAILURE,
        "columns": ["P", "expected", "probable", "probable_for_all"],
        "rows": rows,
    }


def _row(adviser: Adviser, name: str, period: int) -> list[float]:
    """[P, in expectation, as the paper has it with probability 1 - c, the same for all intervals of T]."""
    count, variance = adviser.q.num_clients, adviser.upsilon2
    intervals = math.ceil(adviser.rates.num_rounds / period)
    expected = expected_delta2(variance, count, period)
    if name == "4.6":
        probable = chebyshev_delta2(variance, count, period, FAILURE)
        return [
            period,
            expected,
            probable,
            chebyshev_delta2(variance, count, period, FAILURE, intervals=intervals),
        ]
    largest = max(1.0, float(adviser.q.weights.max(initial=0)))
    printed = hoeffding_delta2(count, period, FAILURE, largest=largest)
    together = hoeffding_delta2(count, period, FAILURE, events=count * intervals, largest=largest)
    return [period, expected, printed, together]
