"""What must hold between the keys of [participation], and between them and the number of clients.

Invariant: each finding names one key, says what it clashes with and what would do.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedmpi.config import Config

Finding = tuple[str, str]

# What each availability needs besides a probability, and what would do.
_NEEDS = {
    "periodic": {"num_groups": "an integer >= 1", "rounds_per_group": "an integer >= 1"},
    "markov": {"to_active": "a number, or one for each client"},
    "sinusoidal": {"rounds_per_day": "a number > 0", "amplitude": "a number >= 0 <= 1"},
    "trace": {"trace": "a .csv or .h5 file"},
}
BY_PROBABILITY = ("bernoulli", "markov", "sinusoidal", "periodic")
_KNOWN_CHANCE = ("always", *BY_PROBABILITY)


def participation_conflicts(config: Config) -> Iterator[Finding]:
    """Combinations that cannot work, as (key, problem)."""
    who, num_clients = config.participation, config.data.num_clients
    for key, accepted in _NEEDS.get(who.availability, {}).items():
        if getattr(who, key) is None:
            problem = f'missing; availability = "{who.availability}" needs it; expected {accepted}'
            yield f"participation.{key}", problem
    if num_clients and who.availability == "periodic" and (who.num_groups or 0) > num_clients:
        yield "participation.num_groups", f"{who.num_groups} groups for {num_clients} clients"
    if who.availability in BY_PROBABILITY:
        yield from _probability_conflicts(config)
    if who.availability == "markov":
        yield from _markov_conflicts(config)
    yield from _selection_conflicts(config)
    if who.selection != "schedule" and who.weighting == "inverse-probability":
        yield from _weighting_conflicts(config)


def _probability_conflicts(config: Config) -> Iterator[Finding]:
    """Where the probability comes from: one source, no less and no more."""
    who, num_clients = config.participation, config.data.num_clients
    if who.probability is not None and who.probability_from is not None:
        problem = f'"{who.probability_from}" clashes with participation.probability; set one of them'
        yield "participation.probability_from", problem
    needs_one = who.availability in ("bernoulli", "sinusoidal")
    if needs_one and who.probability is None and who.probability_from is None:
        yield (
            "participation.probability",
            f'missing; availability = "{who.availability}" needs it, or probability_from = "labels"; '
            "expected a number, or one for each client",
        )
    if who.probability_from == "labels" and config.data.dataset == "quadratic":
        problem = '"labels" needs data with labels, which "quadratic" has not; use probability'
        yield "participation.probability_from", problem
    if who.probability_from == "labels" and who.min_probability > who.mean_probability:
        yield (
            "participation.min_probability",
            f"{who.min_probability} exceeds mean_probability = {who.mean_probability}",
        )
    for key in ("probability", "to_active", "to_inactive"):
        value = getattr(who, key)
        if num_clients and isinstance(value, list) and len(value) != num_clients:
            yield (
                f"participation.{key}",
                f"{len(value)} numbers for data.num_clients = {num_clients}; expected one number, or "
                "one for each client",
            )


def _markov_conflicts(config: Config) -> Iterator[Finding]:
    """to_active, and one thing that says how long clients stay."""
    who = config.participation
    long_run = who.probability is not None or who.probability_from is not None
    if long_run and who.to_inactive is not None:
        yield (
            "participation.to_inactive",
            "follows from to_active and the probability in the long run, which is given too; "
            "set to_inactive, or probability (or probability_from)",
        )
    if not long_run and who.to_inactive is None:
        yield (
            "participation.to_inactive",
            'missing; availability = "markov" needs it, or the share of rounds in the long run as '
            "probability or probability_from; expected a number, or one for each client",
        )
    if who.to_active is None:
        return
    # A chain that never moves has no law to start in.
    active = _as_list(who.to_active)
    if long_run and 0 in active:
        problem = "0 with a probability: the client would never change; expected above 0"
        yield "participation.to_active", problem
    elif not long_run and who.to_inactive is not None:
        inactive = _as_list(who.to_inactive)
        length = max(len(active), len(inactive))
        pairs = zip(_stretched(active, length), _stretched(inactive, length), strict=False)
        if (0, 0) in pairs:
            yield (
                "participation.to_active",
                "0 together with to_inactive = 0: the client would never change; expected one above 0",
            )


def _as_list(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def _stretched(values: list[float], length: int) -> list[float]:
    return values * length if len(values) == 1 else values


def _selection_conflicts(config: Config) -> Iterator[Finding]:
    who, num_clients = config.participation, config.data.num_clients
    if who.selection in ("uniform", "permutation", "least-recent"):
        if who.clients_per_round is None:
            yield (
                "participation.clients_per_round",
                f'missing; selection = "{who.selection}" needs it; expected an integer >= 1',
            )
        elif num_clients and who.clients_per_round > num_clients:
            yield (
                "participation.clients_per_round",
                f"{who.clients_per_round} exceeds data.num_clients = {num_clients}",
            )
    if who.selection == "schedule":
        if who.schedule is None:
            yield "participation.schedule", 'missing; selection = "schedule" needs a .csv or .h5 file'
        if who.availability != "always":
            yield (
                "participation.availability",
                f'"{who.availability}" cannot be combined with selection = "schedule", '
                'which says itself who takes part; use "always"',
            )


def _weighting_conflicts(config: Config) -> Iterator[Finding]:
    """1 / (N * probability) needs to know the probability of taking part."""
    who = config.participation
    if who.availability not in _KNOWN_CHANCE:
        names = ", ".join(f'"{name}"' for name in _KNOWN_CHANCE)
        yield (
            "participation.weighting",
            f'"inverse-probability" needs a known probability, which availability = "{who.availability}" '
            f'has not; use one of {names}, or weighting = "equal" or "all"',
        )
        return
    by_chance = who.availability in ("bernoulli", "markov", "sinusoidal") or (
        who.probability is not None or who.probability_from is not None
    )
    if who.selection != "all" and who.availability != "always" and by_chance:
        yield (
            "participation.weighting",
            f'"inverse-probability" with selection = "{who.selection}": the chance to be chosen depends on '
            'how many others are available by chance; use selection = "all", or an availability without '
            'chance ("always", "periodic" without probability)',
        )
