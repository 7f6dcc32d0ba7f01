"""Random participation: variance of averaged weights; delta^2(P) in expectation or with a probability."""

from __future__ import annotations

import math

from fedmpi.theory.weights import Weights, interval_sums


def independent_variance(probability: float, weight: float) -> float:
    """upsilon^2 = Var(q_t^n) of a client that takes part with a probability, with a fixed weight."""
    return weight**2 * probability * (1 - probability)


def markov_long_run_variance(to_active: float, to_inactive: float, weight: float) -> float:
    """upsilon-hat^2 of Lemma 4.5 for the two-state chain with q = weight in its active state.

    Cov(q_t, q_{t+p}) = weight^2 pi (1 - pi) lambda^p with lambda = 1 - to_active - to_inactive, so that
    Var + 2 sum_p Cov = weight^2 pi (1 - pi) (1 + lambda)/(1 - lambda).

    >>> markov_long_run_variance(0.5, 0.5, 1.0)  # without memory: the variance itself
    0.25
    """
    total = to_active + to_inactive
    stationary = to_active / total
    return weight**2 * stationary * (1 - stationary) * (2 - total) / total


def sampled_long_run_variance(q: Weights, period: int) -> float:
    """P Var(qbar) over whole intervals, mean over clients: upsilon-hat^2 / P is what Var(qbar) tends to.

    The mean of qbar is taken as 1/N of the round's weights, as the paper's mu: the same for all clients.
    """
    count = q.num_rounds // period
    intervals, _, sums = interval_sums(q, period)
    mu = q.weights[q.rounds < count * period].sum() / (count * period * q.num_clients)
    squares = ((sums / period - mu) ** 2).sum()
    absent = count * q.num_clients - len(intervals)
    return float(period * (squares + absent * mu**2) / (count * q.num_clients))


def expected_delta2(variance: float, num_clients: int, period: int, d2: float = 1.0) -> float:
    """N^2 d^2 upsilon^2 / P: in expectation, Propositions 4.6 (upsilon-hat^2, large P) and 4.7."""
    return num_clients**2 * d2 * variance / period


def chebyshev_delta2(
    variance: float, num_clients: int, period: int, failure: float, d2: float = 1.0, *, intervals: int = 1
) -> float:
    """N^2 d^2 upsilon-hat^2 / (c P): with probability 1 - c, equation (16), Proposition 4.6.

    (16) is stated for one client, and holds for the sum over clients of (15) as well, by Markov's
    inequality. For all of several intervals at once c is shared among them.
    """
    return expected_delta2(variance, num_clients, period, d2) * intervals / failure


def hoeffding_delta2(
    num_clients: int,
    period: int,
    failure: float,
    d2: float = 1.0,
    *,
    events: int = 1,
    largest: float = 1.0,
) -> float:
    """N^2 d^2 ln(2/c) / (2 P): with probability 1 - c, equation (17), Proposition 4.7, independent t.

    (17) holds for each client with probability 1 - c, and for weights up to 1. The sum over clients of (15)
    needs it for all N at once, and the theorem for all T/P intervals: a union bound, ln(2 events / c) with
    N or N T/P `events`. Weights up to `largest` stretch it by the square of that.
    """
    return num_clients**2 * d2 * largest**2 * math.log(2 * events / failure) / (2 * period)
