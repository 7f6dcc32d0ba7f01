"""The process behind Q: each client's mean weight in the long run, and the variance of averaged weights.

From the config's own probabilities where they give a closed form, else from the rounds that were examined.
Invariant: a difference between clients is called bias only if it is certain, or far outside what chance
alone would give; while there is one, no P makes delta^2(P) smaller than `floor` in units of d^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmpi.config import Config
from fedmpi.config.compositions import availabilities_in
from fedmpi.participation import Participation
from fedmpi.participation.cycle import declared_cycle
from fedmpi.theory.random_participation import sampled_long_run_variance
from fedmpi.theory.weights import Weights, interval_sums

WINDOWS = 16
_MEMORY_IN_A_WINDOW = 20  # in units of the rounds that a chain remembers: variances 5 % too small at most
_SMALL = 1e-3  # of d^2, for weights that sum to 1
_DOUBTLESS = 5.0  # in units of what chance gives; the most that is possible is 11
_MOST_VISITS = 2 * 10**7  # clients times rounds of a cycle
_MOST_ROUNDS, _MOST_WEIGHTS = 40_000, 25 * 10**5


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """What a config's participation tends to."""

    means: np.ndarray  # of q_t^n over rounds, one for each client
    floor: float  # N sum_n (mean_n - mean)^2, of which chance is no part
    is_biased: bool
    means_from: str
    variance: float  # upsilon^2 or upsilon-hat^2, the mean over clients
    variance_from: str
    proposition: str | None  # 4.6 or 4.7, where its conditions hold


def long_run(config: Config, participation: Participation, q: Weights) -> LongRun:
    """Closed forms where the participation has them; `q` is what was examined."""
    per_round = _expected(config, participation, q.num_clients)
    memory = _memory(participation)
    proposition = None
    if per_round is not None and memory is not None and _same_for_all(per_round):
        proposition = "4.7" if memory == 0 else "4.6"
    variance, source = _variance(config, participation, q, proposition, memory)
    if variance == 0:
        proposition = None
    if per_round is None:
        means, floor, is_biased = estimated_bias(q, cycle_of(config) or 1)
        means_from = f"estimated from {q.num_rounds:,} rounds"
    else:
        means, means_from = per_round.mean(axis=0), "exact"
        floor = float(q.num_clients * ((means - means.mean()) ** 2).sum())
        is_biased = floor > _SMALL * float(means.sum()) ** 2
    return LongRun(
        means=means, floor=floor, is_biased=is_biased, means_from=means_from,
        variance=variance, variance_from=source, proposition=proposition,
    )  # fmt: skip


def seen(q: Weights) -> LongRun:
    """The same from weights alone, where nothing is known of how they came about."""
    means, floor, is_biased = estimated_bias(q)
    window = max(1, q.num_rounds // WINDOWS)
    return LongRun(
        means=means, floor=floor, is_biased=is_biased,
        means_from=f"estimated from {q.num_rounds:,} rounds", variance=window_variance(q, window),
        variance_from=_windows_text(window), proposition=None,
    )  # fmt: skip


def estimated_bias(q: Weights, cycle: int = 1) -> tuple[np.ndarray, float, bool]:
    """(mean weights, floor, whether they differ beyond doubt), from windows of whole cycles.

    Chance moves two windows in unrelated directions, bias both in the same. So the products of two windows'
    deviations from equal weights are 0 in the mean without bias, and the floor with it.
    """
    means = np.bincount(q.clients, q.weights, q.num_clients) / q.num_rounds
    window = max(1, q.num_rounds // WINDOWS)
    window = window // cycle * cycle or min(cycle, q.num_rounds)
    averages = _window_averages(q, window)
    deviations = averages - averages.mean(axis=1, keepdims=True)
    count = len(averages)
    products = q.num_clients * (deviations @ deviations.T)[np.triu_indices(count, 1)]
    scale = math.sqrt(float((products**2).sum()))
    if scale == 0:
        return means, 0.0, False
    floor = max(float(products.mean()), 0.0)
    is_certain = float(products.sum()) > _DOUBTLESS * scale
    return means, floor, is_certain and floor > _SMALL * float(means.sum()) ** 2


def window_variance(q: Weights, window: int) -> float:
    """window * Var(qbar) over windows, each client about its own mean; mean over clients."""
    averages = _window_averages(q, window)
    if len(averages) < 2:
        return 0.0
    return float(window * averages.var(axis=0, ddof=1).mean())


def _window_averages(q: Weights, window: int) -> np.ndarray:
    """(windows, clients)"""
    averages = np.zeros((q.num_rounds // window, q.num_clients))
    intervals, clients, sums = interval_sums(q, window)
    averages[intervals, clients] = sums / window
    return averages


def _variance(
    config: Config, participation: Participation, q: Weights, proposition: str | None, memory: float | None
) -> tuple[float, str]:
    """upsilon^2 and where it comes from."""
    who, everybody = config.participation, np.arange(q.num_clients)
    if proposition and who.selection == "all" and who.weighting != "equal" and cycle_of(config) is None:
        # A weight of 0 or w_n: w^2 p (1 - p) (1 + lambda)/(1 - lambda); without memory lambda is 0.
        chances = participation.availability_chances(0, everybody)
        kept = np.asarray(participation.correlation())
        weights = 1 / q.num_clients if who.weighting == "all" else 1 / (q.num_clients * chances)
        each = weights**2 * chances * (1 - chances) * (1 + kept) / (1 - kept)
        return float(each.mean()), "closed form"
    if who.availability == "always" and who.selection == "uniform" and who.weighting == "equal":
        share = who.clients_per_round / q.num_clients
        return share * (1 - share) / who.clients_per_round**2, "closed form"
    if proposition == "4.7":
        return sampled_long_run_variance(q, 1), f"{q.num_rounds:,} rounds, which are independent"
    if proposition == "4.6":
        q = _long_enough(participation, q, memory)
    window = max(1, q.num_rounds // WINDOWS)
    short = ""
    if proposition == "4.6" and window * (1 - memory) < _MEMORY_IN_A_WINDOW / 2:
        short = ", too short for this chain's memory: the true one is larger"
    return window_variance(q, window), _windows_text(window) + short


def _windows_text(window: int) -> str:
    return f"{WINDOWS} windows of {window:,} rounds"


def _long_enough(participation: Participation, q: Weights, memory: float) -> Weights:
    """Rounds of a chain for windows that are long against its memory, as far as that can be afforded."""
    wanted = math.ceil(WINDOWS * _MEMORY_IN_A_WINDOW / (1 - memory))
    per_round = max(len(q.rounds) / q.num_rounds, 1)
    affordable = min(_MOST_ROUNDS, int(_MOST_WEIGHTS / per_round), 10 * _MOST_VISITS // q.num_clients)
    if min(wanted, affordable) <= q.num_rounds:
        return q
    last = min(wanted, affordable)
    return Weights.of_rounds([participation.weights(t) for t in range(last)], q.num_clients)


def _expected(config: Config, participation: Participation, num_clients: int) -> np.ndarray | None:
    """(rounds of a cycle, clients) of E q, or None where it is not known."""
    expected = getattr(participation, "expected", None)  # a schedule has none
    cycle = cycle_of(config) or 1
    if expected is None or cycle * num_clients > _MOST_VISITS:
        return None
    first = expected(0)
    return None if first is None else _stacked([first, *(expected(t) for t in range(1, cycle))])


def _stacked(rows: list[np.ndarray | None]) -> np.ndarray | None:
    return None if any(row is None for row in rows) else np.array(rows)


def _memory(participation: Participation) -> float | None:
    """The slowest client's correlation from round to round; None unless all of them forget."""
    correlation = getattr(participation, "correlation", lambda: None)()
    if correlation is None:
        return None
    most = float(np.abs(correlation).max(initial=0))
    return most if most < 1 else None


def _same_for_all(per_round: np.ndarray) -> bool:
    """E q_t^n is the same number in all rounds for all clients, as Propositions 4.4 to 4.7 ask."""
    return bool(per_round.max() > 0 and np.ptp(per_round) <= 1e-9 * per_round.max())


def cycle_of(config: Config) -> int | None:
    """Rounds after which probabilities repeat, where they change."""
    found = [declared_cycle(config.participation)]
    for one in availabilities_in(config.participation):
        day = one.rounds_per_day if one.availability == "sinusoidal" else None
        found += [] if day is None else [round(day if day == round(day) else 20 * day) or 1]
    return math.lcm(*filter(None, found)) if any(found) else None
