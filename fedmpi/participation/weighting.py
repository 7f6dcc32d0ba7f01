"""With what weight q a participant enters the sum.

Invariant: one weight for each client given, all above 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Chances = Callable[[], np.ndarray]
Weighting = Callable[[np.ndarray, int, Chances], np.ndarray]


def equal(clients: np.ndarray, num_clients: int, chances: Chances) -> np.ndarray:
    """1 / participants."""
    return np.full(len(clients), 1 / max(len(clients), 1))


def by_all(clients: np.ndarray, num_clients: int, chances: Chances) -> np.ndarray:
    """1 / N."""
    return np.full(len(clients), 1 / num_clients)


def inverse_probability(clients: np.ndarray, num_clients: int, chances: Chances) -> np.ndarray:
    """1 / (N * probability of taking part): 1/N in expectation, for every client that ever comes."""
    return 1 / (num_clients * chances())


WEIGHTINGS: dict[str, Weighting] = {
    "equal": equal,
    "all": by_all,
    "inverse-probability": inverse_probability,
}
