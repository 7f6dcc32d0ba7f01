"""With what weight q a participant enters the sum.

Invariant: one weight for each client given, all above 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedmpi.config.compositions import availability_facts
from fedmpi.config.keys import Config
from fedmpi.config.registry import AVAILABILITIES, SELECTIONS, WEIGHTINGS, Finding

Chances = Callable[[], np.ndarray]
Weighting = Callable[[np.ndarray, int, Chances], np.ndarray]
weighting = WEIGHTINGS  # `weighting(name, keys...)` registers a function (clients, num_clients, chances)


@weighting("equal")
def equal(clients: np.ndarray, num_clients: int, chances: Chances) -> np.ndarray:
    """1 / participants."""
    return np.full(len(clients), 1 / max(len(clients), 1))


@weighting("all")
def by_all(clients: np.ndarray, num_clients: int, chances: Chances) -> np.ndarray:
    """1 / N."""
    return np.full(len(clients), 1 / num_clients)


def _inverse_conflicts(config: Config) -> Iterator[Finding]:
    """1 / (N * probability) needs to know the probability of taking part."""
    who = config.participation
    unknown = [one.availability for one, knows in availability_facts(who, "knows_probability") if not knows]
    if unknown:
        known = [p.name for p in AVAILABILITIES.parts() if p.facts.get("knows_probability")]
        names = ", ".join(f'"{name}"' for name in known)
        yield (
            "participation.weighting",
            f'"inverse-probability" needs a known probability, which availability = "{unknown[0]}" '
            f'does not have; use one of {names}, or weighting = "equal" or "all"',
        )
        return
    if SELECTIONS.fact(who.selection, "chance_unknown"):
        yield (
            "participation.weighting",
            f'"inverse-probability" with selection = "{who.selection}": the chance to be chosen depends on '
            'the rounds before; use weighting = "equal" or "all", or algorithm.name = "debiasing-fedavg" '
            'or "fedau", which estimate it',
        )
        return
    by_chance = any(rule(one) for one, rule in availability_facts(who, "is_by_chance") if rule)
    if who.selection != "all" and by_chance:
        yield (
            "participation.weighting",
            f'"inverse-probability" with selection = "{who.selection}": the chance to be chosen depends on '
            'how many others happen to be available; use selection = "all", or an availability without '
            'chance ("always", "periodic" without probability)',
        )


@weighting("inverse-probability", conflicts=_inverse_conflicts)
def inverse_probability(clients: np.ndarray, num_clients: int, chances: Chances) -> np.ndarray:
    """1 / (N * probability of taking part): 1/N in expectation, for every client that ever takes part."""
    return 1 / (num_clients * chances())
