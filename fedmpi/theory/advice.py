"""What theory says about a config: evenness of its participation, its bound, better settings.

Invariant: pure functions; weights alone determine evenness; the bound needs constants (`Known`), exact or
measured, and is left out without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmpi import theory
from fedmpi.config import METHODS, Config
from fedmpi.config.compositions import availability_facts
from fedmpi.participation import Participation
from fedmpi.participation.cycle import declared_cycle
from fedmpi.participation.delivery import keeps_late
from fedmpi.theory.chance_report import bias_report, proposition_report
from fedmpi.theory.long_run import LongRun, cycle_of, seen

_MOST_WEIGHTS = 25 * 10**5
_MOST_VISITS = 2 * 10**8  # clients times rounds, where each round involves all clients
_FEWEST_ROUNDS, _MOST_ROUNDS = 2000, 40_000
_SMALL = 1e-3  # of d^2: as good as regularized
_OF_WEIGHTS = (
    "rho", "regularized_P", "delta2", "conditions", "bound", "suggested", "bound_suggested", "delta2_mean",
    "upsilon2", "upsilon2_from", "bias", "nearly_regularized", "proposition", "constants",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Known:
    """Constants besides those of the weights, and where they come from."""

    source: str
    smoothness: float
    sigma2: float
    gap: float
    d2: float
    deviations: np.ndarray | None  # None: d^2 stands in for beta^2 and nu^2 (Proposition 4.1)


def known_of_quadratic(config: Config) -> Known:
    """Exact for F_n(x) = |x - z_n|^2 / 2: L = 1, and grad F_n - grad f does not depend on x."""
    centers = np.array(config.data.centers)
    optimum = centers.mean(axis=0)
    initial = np.array(config.model.initial or np.zeros(len(optimum)))
    deviations = optimum - centers
    return Known(
        source="exact, quadratic problem",
        smoothness=1.0,
        sigma2=(config.data.noise_std or 0.0) ** 2 * len(optimum),
        gap=float(((initial - optimum) ** 2).sum() / 2),
        d2=float((deviations**2).sum(axis=1).max()),
        deviations=deviations,
    )


def look_ahead(config: Config, participation: Participation, num_clients: int) -> theory.Weights:
    """The weights after the warm-up, for as many rounds as can be examined in seconds."""
    first, last = config.warmup_rounds, config.run.num_rounds
    last = min(last, first + max(_rounds_to_see(config, num_clients), 2))
    examined, count = [], 0
    for t in range(last):  # from the start: who takes part may depend on earlier rounds
        clients, weights = participation.weights(t)
        if t >= first:
            examined.append((clients, weights))
            count += len(clients)
        if count > _MOST_WEIGHTS and len(examined) > 1:
            break
    return theory.Weights.of_rounds(examined, num_clients)


def _rounds_to_see(config: Config, num_clients: int) -> int:
    """Enough for several intervals of this config, and for two of those that could be regularized."""
    who = config.participation
    cycle = declared_cycle(who) or 1
    if who.clients_per_round:
        cycle = max(cycle, math.ceil(num_clients / who.clients_per_round))
    wanted = min(max(_FEWEST_ROUNDS, 4 * config.algorithm.amplify_every, 2 * cycle), _MOST_ROUNDS)
    is_cheap = who.selection == "schedule" or all(fact for _, fact in availability_facts(who, "is_cheap"))
    return wanted if is_cheap else min(wanted, _MOST_VISITS // num_clients)


class Adviser:
    """Answers about one config."""

    def __init__(
        self, config: Config, q: theory.Weights, known: Known | None, process: LongRun | None = None
    ) -> None:
        options = config.algorithm
        self.config, self.q, self.known = config, q, known
        self.process = process or seen(q)
        self.rates = theory.Rates(
            options.local_lr, options.amplification, options.amplify_every, options.mean_local_steps,
            max(config.run.num_rounds - config.warmup_rounds, 1),
        )  # fmt: skip
        self.rho = theory.rho(q)
        self.regularized = theory.regularized_interval(q)
        self.curve = list(self._curve())
        self.upsilon2 = self.process.variance
        self.divergence = None
        if known and known.deviations is not None:
            self.divergence = theory.divergence(q, known.deviations)

    def _curve(self) -> Iterator[tuple[int, float, float]]:
        """(P, worst, mean) of delta^2(P)/d^2 over intervals, from weights alone."""
        cycle = cycle_of(self.config)
        for period in theory.interval_grid(
            self.q.num_rounds, self.rates.amplify_every, self.regularized, cycle
        ):
            factors = theory.delta2_factors(self.q, period)
            yield period, float(factors.max()), float(factors.mean())

    @property
    def weights_count(self) -> bool:
        """After the warm-up, of which this is not: some methods weigh participants themselves."""
        return not METHODS.fact(self.config.algorithm.name, "ignores_weights")

    @property
    def is_biased(self) -> bool:
        """Clients have other mean weights in the long run, and no P helps. Never where some P is even."""
        return self.process.is_biased and not self.regularized

    @property
    def nearly_regularized(self) -> tuple[int, float] | None:
        """The least P seen with delta^2(P) small in all intervals, where that is not by chance."""
        if self.regularized or self.is_biased or self.process.proposition:
            return None
        return next(((period, worst) for period, worst, _ in self.curve if worst <= _SMALL), None)

    def delta2(self, period: int) -> float:
        """delta^2(P), exact for the known gradients or bounded by d^2; P is at most the rounds examined."""
        period = min(period, self.q.num_rounds)
        if self.known.deviations is not None:
            return float(theory.exact_delta2(self.q, self.known.deviations, period).max())
        return float(theory.delta2_factors(self.q, period).max()) * self.known.d2

    def constants(self, period: int) -> theory.Constants:
        """Everything that the bound needs, for one P."""
        known, measured = self.known, self.divergence
        return theory.Constants(
            known.smoothness, known.sigma2,
            measured.beta2 if measured else known.d2, measured.nu2 if measured else known.d2,
            self.delta2(period), self.rho, known.gap,
        )  # fmt: skip

    def conditions(self) -> dict[str, bool]:
        """Of Theorem 3.1, and the paper's normalisation of weights."""
        sums = self.q.sums()
        holds = theory.conditions(self.rates, self.known.smoothness if self.known else None)
        holds |= {"sum of q = 1": bool(np.allclose(sums, 1, rtol=1e-9))}
        return holds | ({"updates count in their own round": False} if keeps_late(self.config) else {})

    def bound(self, rates: theory.Rates) -> dict[str, float] | None:
        """Theorem 3.1 for some rates, or None where constants are unknown."""
        if self.known is None:
            return None
        return theory.bound_terms(rates, self.constants(rates.amplify_every))

    def suggested(self) -> tuple[theory.Rates | None, int | None, str]:
        """(rates where constants are known, P, the corollary that gives them); no P if none would help."""
        steps, rounds = self.rates.local_steps, self.rates.num_rounds
        if self.is_biased:
            return None, None, "none: participation is biased, which no P removes"
        if self.regularized and self.regularized <= rounds / 2:
            period, name = self.regularized, "3.2 (with 4.3: regularized participation)"
            rates = self.known and theory.rates_3_2(self.constants(period), period, steps, rounds)
            return rates, period, name
        period = theory.stochastic_interval(self.upsilon2, self.q.num_clients, steps, rounds)
        if self.process.proposition and period <= rounds / 2:
            name = f"3.3 (with 4.8: stochastic participation, Proposition {self.process.proposition})"
            if self.known is None:
                return None, period, name
            of = self.constants(period)
            if theory.suits_3_3(of, period, steps, rounds):
                return theory.rates_3_3(of, period, steps, rounds), period, name
        return self._best_of_3_2(steps, rounds)

    def _best_of_3_2(self, steps: int, rounds: int) -> tuple[theory.Rates | None, int, str]:
        """Among the lengths examined, the one whose rates of Corollary 3.2 have the lowest bound."""
        lengths = [period for period, _, _ in self.curve if period <= max(rounds / 2, 1)]
        if self.known is None:
            worst = {period: value for period, value, _ in self.curve}
            small = [period for period in lengths if worst[period] <= _SMALL]
            period = small[0] if small else min(lengths, key=worst.get)
            return None, period, f"3.2 (P with the least delta^2 seen, or below {_SMALL:g} d^2)"
        tried = [theory.rates_3_2(self.constants(p), p, steps, rounds) for p in lengths]
        best = min(tried, key=lambda rates: self.bound(rates)["total"])
        return best, best.amplify_every, "3.2 (P with the lowest bound seen)"

    def report(self) -> dict[str, Any]:
        """The object that `advise --json` prints; null where weights q say nothing of the method."""
        if not self.weights_count:
            return dict.fromkeys(_OF_WEIGHTS) | {
                "longest_absence": self.q.longest_absence(), "rounds_seen": self.q.num_rounds,
                "weights_count": False,
            }  # fmt: skip
        rates, period, name = self.suggested()
        known = self.known and {
            "source": self.known.source, "L": self.known.smoothness, "sigma2": self.known.sigma2,
            "F": self.known.gap, "d2": self.known.d2,
            "beta2": self.constants(1).beta2, "nu2": self.constants(1).nu2,
        }  # fmt: skip
        return {
            "rho": self.rho,
            "regularized_P": self.regularized,
            "delta2": [[p, worst] for p, worst, _ in self.curve],
            "conditions": self.conditions(),
            "bound": self.bound(self.rates),
            "suggested": {
                "amplify_every": period,
                "local_lr": rates and rates.local_lr,
                "amplification": rates and rates.amplification,
                "corollary": name,
            },
            "bound_suggested": rates and self.bound(replace(rates, amplify_every=period)),
            "delta2_mean": [[p, mean] for p, _, mean in self.curve],
            "upsilon2": self.upsilon2,
            "upsilon2_from": self.process.variance_from,
            "bias": bias_report(self),
            "nearly_regularized": self.nearly_regularized,
            "proposition": proposition_report(self),
            "longest_absence": self.q.longest_absence(),
            "rounds_seen": self.q.num_rounds,
            "constants": known,
            "weights_count": True,
        }
