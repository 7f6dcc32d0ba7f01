"""Theorem 3.1 with its constants: conditions, the bound term by term, and the rates of its corollaries."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What the bound is made of, besides what a user chooses."""

    smoothness: float  # L, Assumption 1
    sigma2: float  # sigma^2, Assumption 2
    beta2: float
    nu2: float
    delta2: float  # delta^2(P) for the P at hand
    rho: float
    gap: float  # F = f(x_0) - f*


@dataclass(frozen=True)
class Rates:
    """What a user chooses: gamma, eta and P; and I and T."""

    local_lr: float
    amplification: float
    amplify_every: int
    local_steps: int
    num_rounds: int


def conditions(rates: Rates, smoothness: float | None) -> dict[str, bool]:
    """Of Theorem 3.1, by name; those on learning rates only where L is known."""
    holds = {"P <= T/2": rates.amplify_every <= rates.num_rounds / 2}
    if smoothness is None:
        return holds
    limit = 1 / (smoothness * rates.local_steps * rates.amplify_every)
    slack = 1 + 1e-12  # rates computed as equal to the limit are not above it
    return {
        "gamma <= 1/(12 L I P)": rates.local_lr <= limit / 12 * slack,
        "gamma*eta <= 1/(2 L I P)": rates.local_lr * rates.amplification <= limit / 2 * slack,
        **holds,
    }


def bound_terms(rates: Rates, constants: Constants) -> dict[str, float]:
    """min_t E|grad f(x_t)|^2 <= total, Theorem 3.1 with the constants of its proof in the appendix."""
    gamma, eta, period = rates.local_lr, rates.amplification, rates.amplify_every
    steps, rounds = rates.local_steps, rates.num_rounds
    drift = gamma**2 * constants.smoothness**2 * steps
    noise = 21 * drift + (18 * drift * period + 4 * gamma * eta * constants.smoothness) * constants.rho**2
    terms = {
        "start": 8 * constants.gap / (gamma * eta * steps * rounds),
        "nu": 126 * drift * steps * constants.nu2,
        "beta": 144 * drift * steps * period**2 * constants.beta2,
        "delta": 6 * constants.delta2,
        "noise": noise * constants.sigma2,
    }
    return terms | {"total": math.fsum(terms.values())}


def _small_rate(smoothness: float, local_steps: int, amplify_every: int, num_rounds: int) -> float:
    return 1 / (12 * smoothness * local_steps * amplify_every * math.sqrt(num_rounds))


def rates_3_2(constants: Constants, amplify_every: int, local_steps: int, num_rounds: int) -> Rates:
    """Corollary 3.2: gamma = 1/(12 L I P sqrt(T)), eta = min(12 P sqrt(L I F)/(sigma rho), 6 sqrt(T))."""
    gamma = _small_rate(constants.smoothness, local_steps, amplify_every, num_rounds)
    eta, noise = 6 * math.sqrt(num_rounds), math.sqrt(constants.sigma2) * constants.rho
    wanted = 12 * amplify_every * math.sqrt(constants.smoothness * local_steps * constants.gap)
    if 0 < wanted < eta * noise:  # F = 0: the start is the optimum already, any eta will do
        eta = wanted / noise
    return Rates(gamma, eta, amplify_every, local_steps, num_rounds)


def suits_3_3(constants: Constants, amplify_every: int, local_steps: int, num_rounds: int) -> bool:
    """The condition of Corollary 3.3: sqrt(F)/(rho sqrt(L I T)) <= 1/(2 L I P)."""
    if constants.rho == 0:  # nobody ever takes part
        return False
    left = math.sqrt(constants.gap / (constants.smoothness * local_steps * num_rounds)) / constants.rho
    return 0 < left <= 1 / (2 * constants.smoothness * local_steps * amplify_every)


def rates_3_3(constants: Constants, amplify_every: int, local_steps: int, num_rounds: int) -> Rates:
    """Corollary 3.3: gamma as in 3.2, eta = 12 P sqrt(L I F)/rho; does not need sigma."""
    gamma = _small_rate(constants.smoothness, local_steps, amplify_every, num_rounds)
    eta = 12 * amplify_every * math.sqrt(constants.smoothness * local_steps * constants.gap) / constants.rho
    return Rates(gamma, eta, amplify_every, local_steps, num_rounds)


def stochastic_interval(variance: float, num_clients: int, local_steps: int, num_rounds: int) -> int:
    """P = upsilon^2 N^(5/2) sqrt(I T) of Corollary 4.8, at least 1; see random_participation.py."""
    return max(1, round(variance * num_clients**2.5 * math.sqrt(local_steps * num_rounds)))
