"""A probability for each client, and who is drawn with it.

Invariant: probabilities are a pure function of (config, seed, label mix), draws of the stream they are
given; one number for all clients takes no memory, and drawing few clients needs no pass over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import Config, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.data import rng
from fedmpi.errors import UserError

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels

PROBABILITY = ("probability", "probability_from")  # keys that say it
_SPARSE = 0.02  # below this share, drawing the clients is cheaper than one draw for each client


def _by(*names: str) -> Callable[[Config], bool]:
    return lambda config: config.participation.probability_from in names


@dataclass(frozen=True, kw_only=True)
class ProbabilityKeys:
    """Of every availability by chance."""

    probability: float | list[float] | None = option(
        None,
        "chance that a client is available, one number or one per client: bernoulli; periodic, in its "
        "turn, and outages (both default 1); sinusoidal, mean of the day; markov, in the long run; "
        "cyclic, as share of the cycle",
        at_least=0,
        at_most=1,
    )
    probability_from: str | None = option(
        None,
        "each client's probability from its labels, as FedAU (labels), FedAWE (label-halves) or MIFA "
        "(min-label); from its number of samples; or drawn",
        choices=("labels", "label-halves", "min-label", "size", "lognormal"),
    )
    mean_probability: float = option(
        0.1, "labels: mean over an even mix of labels", above=0, at_most=1, has_effect=_by("labels")
    )
    min_probability: float = option(
        0.02, "labels, min-label: lower limit of a probability", above=0, at_most=1,
        has_effect=_by("labels", "min-label"),
    )  # fmt: skip
    label_concentration: float = option(
        0.1,
        "labels: Dirichlet parameter of what labels contribute; small = uneven",
        above=0,
        has_effect=_by("labels"),
    )
    probability_skew: float = option(
        0.5, "size, lognormal: how uneven clients are; 0 = all alike", at_least=0, at_most=0.99,
        has_effect=_by("size", "lognormal"),
    )  # fmt: skip


def probability_conflicts(config: Config, *, is_needed: bool = True) -> Iterator[Finding]:
    """Where the probability comes from: exactly one source, or none where none is needed."""
    who = config.participation
    if who.probability is not None and who.probability_from is not None:
        problem = f'"{who.probability_from}" clashes with participation.probability; set one of them'
        yield "participation.probability_from", problem
    if is_needed and who.probability is None and who.probability_from is None:
        yield (
            "participation.probability",
            f'missing; availability = "{who.availability}" needs it, or probability_from = "labels"; '
            "expected a number, or one for each client",
        )
    if who.probability_from not in (None, "lognormal") and config.data.dataset == "quadratic":
        problem = (
            f'"{who.probability_from}" needs data with labels, which "quadratic" does not have; '
            "use probability"
        )
        yield "participation.probability_from", problem
    if who.probability_from == "labels" and who.min_probability > who.mean_probability:
        yield (
            "participation.min_probability",
            f"{who.min_probability} exceeds mean_probability = {who.mean_probability}",
        )
    yield from length_conflicts(config, "probability")


def length_conflicts(config: Config, key: str) -> Iterator[Finding]:
    """A list has one number for each client."""
    value, num_clients = getattr(config.participation, key), config.data.num_clients
    if num_clients and isinstance(value, list) and len(value) != num_clients:
        yield (
            f"participation.{key}",
            f"{len(value)} numbers for data.num_clients = {num_clients}; expected one number, or "
            "one for each client",
        )


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
    """(num_clients,) as the config says: a number, a list, or drawn from the labels; 1 without any."""
    if config.probability_from is None and config.probability is None:
        return np.broadcast_to(np.array(1.0), num_clients)
    if config.probability_from is None:
        return per_client(config, "probability", num_clients)
    if config.probability_from == "lognormal":
        return lognormal_probabilities(config, num_clients, seed)
    if labels is None or (labels.labels is None and config.probability_from != "size"):
        problem = "no labels are known here" if labels is None else "labels of these data are no classes"
        raise UserError(f'config participation.probability_from = "{config.probability_from}": {problem}')
    rules = {
        "labels": label_probabilities,
        "label-halves": halves_probabilities,
        "min-label": min_label_probabilities,
        "size": size_probabilities,
    }
    return rules[config.probability_from](config, seed, labels)


def label_probabilities(config: ParticipationConfig, seed: int, labels: ClientLabels) -> np.ndarray:
    """FedAU's: p_n = max(min, mean * L * sum_l share_{n,l} r_l), at most 1, r ~ Dirichlet over L labels.

    Labels differ in how available their owners are, so some labels are missing when clients are absent.
    """
    concentrations = np.full(labels.num_classes, config.label_concentration)
    contributions = rng.stream(seed, "label-probability").dirichlet(concentrations)
    wanted = config.mean_probability * labels.num_classes * labels.means(contributions)
    return np.clip(wanted, config.min_probability, 1)


def halves_probabilities(config: ParticipationConfig, seed: int, labels: ClientLabels) -> np.ndarray:
    """FedAWE's: p_n = sum_l share_{n,l} r_l, r uniform up to 1, for the second half of labels to 1/2."""
    highest = np.where(np.arange(labels.num_classes) < labels.num_classes / 2, 1.0, 0.5)
    return labels.means(highest * rng.stream(seed, "label-probability").random(labels.num_classes))


def min_label_probabilities(config: ParticipationConfig, seed: int, labels: ClientLabels) -> np.ndarray:
    """MIFA's: from `min_probability` for a client that has label 0 to 1 where the last is its smallest."""
    part, smallest = labels.partition, np.full(labels.partition.num_clients, labels.num_classes - 1)
    client_of = np.repeat(np.arange(part.num_clients), part.sizes)
    np.minimum.at(smallest, client_of, labels.labels[part.order])
    smallest[part.sizes == 0] = 0
    least = config.min_probability
    return least + (1 - least) * smallest / max(labels.num_classes - 1, 1)


def size_probabilities(config: ParticipationConfig, seed: int, labels: ClientLabels) -> np.ndarray:
    """FLGo's: (samples / most samples of a client) ** skew."""
    sizes = labels.partition.sizes
    return (sizes / max(sizes.max(), 1)) ** config.probability_skew


def lognormal_probabilities(config: ParticipationConfig, num_clients: int, seed: int) -> np.ndarray:
    """FLGo's: draws of a lognormal distribution with sigma = -ln(1 - skew), over the largest."""
    sigma = -np.log1p(-config.probability_skew)
    draws = rng.stream(seed, "lognormal-probability").lognormal(0.0, sigma, num_clients)
    return draws / draws.max()


def draw_clients(
    draws: np.random.Generator,
    num_clients: int,
    highest: float,
    probability_of: Callable[[np.ndarray | slice], np.ndarray],
) -> np.ndarray:
    """Each client n independently with probability_of(n) <= highest; ids in ascending order.

    With a small `highest` the candidates are drawn first, a binomial number of places, and then thinned
    out: the same distribution in O(N * highest).
    """
    if highest > _SPARSE:
        return np.flatnonzero(draws.random(num_clients) < probability_of(slice(None)))
    count = draws.binomial(num_clients, highest)
    candidates = np.sort(draws.choice(num_clients, count, replace=False, shuffle=False))
    return candidates[draws.random(count) * highest < probability_of(candidates)]
