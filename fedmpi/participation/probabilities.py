"""A probability for each client, and who it lets in.

Invariant: probabilities are a pure function of (config, seed, label mix), draws of the stream they are
given; a number for all clients takes no memory, and few expected clients cost no pass over all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config import ParticipationConfig
from fedmpi.data import rng
from fedmpi.errors import UserError

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels

_SPARSE = 0.02  # below this share of clients, drawing who is cheaper than asking everybody


def per_client(config: ParticipationConfig, key: str, num_clients: int) -> np.ndarray:
    """The (num_clients,) values of a config key that holds a number or a list."""
    value = getattr(config, key)
    if isinstance(value, list) and len(value) != num_clients:
        raise UserError(
            f"config participation.{key}: {len(value)} numbers for {num_clients} clients; "
            "expected one number, or one for each client"
        )
    return np.broadcast_to(np.asarray(value, float), num_clients)


def client_probabilities(
    config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None
) -> np.ndarray:
    """(num_clients,) as the config says: a number, a list, or drawn from the labels."""
    if config.probability_from == "labels":
        if labels is None:
            raise UserError('config participation.probability_from = "labels": no labels are known here')
        return label_probabilities(config, seed, labels)
    return per_client(config, "probability", num_clients)


def label_probabilities(config: ParticipationConfig, seed: int, labels: ClientLabels) -> np.ndarray:
    """FedAU's: p_n = max(min, mean * L * sum_l share_{n,l} r_l), at most 1, r ~ Dirichlet over L labels.

    Labels differ in how available their owners are, so that who is away takes some labels along.
    """
    concentrations = np.full(labels.num_classes, config.label_concentration)
    contributions = rng.stream(seed, "label-probability").dirichlet(concentrations)
    wanted = config.mean_probability * labels.num_classes * labels.means(contributions)
    return np.clip(wanted, config.min_probability, 1)


def draw_clients(
    draws: np.random.Generator,
    num_clients: int,
    highest: float,
    probability_of: Callable[[np.ndarray | slice], np.ndarray],
) -> np.ndarray:
    """Each client n independently with probability_of(n) <= highest; ids in ascending order.

    With a small `highest` the candidates are drawn first, a binomial number of places, and thinned out:
    the same law in O(N * highest).
    """
    if highest > _SPARSE:
        return np.flatnonzero(draws.random(num_clients) < probability_of(slice(None)))
    count = draws.binomial(num_clients, highest)
    candidates = np.sort(draws.choice(num_clients, count, replace=False, shuffle=False))
    return candidates[draws.random(count) * highest < probability_of(candidates)]
