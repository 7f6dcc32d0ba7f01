"""Availability by a chain of two states for each client: clients tend to keep their state.

Invariant: the chain starts from its stationary distribution, and step t is drawn from one stream addressed
by (seed, t); rounds are asked for in ascending order, an earlier one is computed again from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import Config, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.data import rng
from fedmpi.errors import UserError
from fedmpi.participation.availability import Availability, availability
from fedmpi.participation.probabilities import (
    PROBABILITY,
    ProbabilityKeys,
    client_probabilities,
    draw_clients,
    length_conflicts,
    per_client,
    probability_conflicts,
)

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


@dataclass(frozen=True, kw_only=True)
class MarkovKeys:
    """Of markov."""

    to_active: float | list[float] | None = option(
        None,
        "markov: chance that an absent client comes back in a round; with probability the highest one",
        at_least=0,
        at_most=1,
        needed="a number, or one for each client",
    )
    to_inactive: float | list[float] | None = option(
        None, "markov: chance that a present client leaves in a round", at_least=0, at_most=1
    )


def _markov_conflicts(config: Config) -> Iterator[Finding]:
    """to_active, and one thing that says how long clients stay."""
    yield from probability_conflicts(config, is_needed=False)
    for key in ("to_active", "to_inactive"):
        yield from length_conflicts(config, key)
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
    # A chain that never moves has no distribution to start from.
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


def _left_to_others(who: ParticipationConfig) -> tuple[str, ...]:
    """With both rates it needs no probability, which may be for another availability of a list."""
    return PROBABILITY if who.to_inactive is not None else ()


def _as_list(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def _stretched(values: list[float], length: int) -> list[float]:
    return values * length if len(values) == 1 else values


@availability(
    "markov", MarkovKeys, ProbabilityKeys, conflicts=_markov_conflicts,
    knows_probability=True, is_by_chance=lambda who: True, leaves=_left_to_others,
    start={"to_active": 0.1, "to_inactive": 0.2},
)  # fmt: skip
class Markov(Availability):
    """Absent clients return with probability to_active in a round, present ones leave with to_inactive.

    Costs O(changes) a round where both are small, plus a scan of N flags.
    """

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        self._num_clients = num_clients
        self._seed = seed
        self._to_active = per_client(config, "to_active", num_clients)
        if config.to_inactive is not None:
            self._to_inactive = per_client(config, "to_inactive", num_clients)
            _refuse_stuck(self._to_active + self._to_inactive)
            self._stationary = self._to_active / (self._to_active + self._to_inactive)
        else:
            self._stationary = client_probabilities(config, num_clients, seed, labels)
            self._to_active, self._to_inactive = rates_of(self._stationary, self._to_active)
        self._highest = float(max(self._to_active.max(), self._to_inactive.max()))
        self._round: int | None = None
        self._is_active = np.zeros(num_clients, bool)
        self._available = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """Those in the active state."""
        if self._round is None or t < self._round:
            draws = rng.stream(self._seed, "availability")
            self._is_active = draws.random(self._num_clients) < self._stationary
            self._round = 0
            self._note()
        while self._round < t:
            self._step()
        return self._available

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The stationary probability, which holds in each round."""
        return self._stationary[clients]

    def correlation(self) -> np.ndarray:
        """1 - to_active - to_inactive, the second eigenvalue of each chain."""
        return 1 - self._to_active - self._to_inactive

    def state(self) -> dict[str, np.ndarray]:
        """Who is active, and in which round."""
        if self._round is None:
            return {}
        return {"active": self._is_active.copy(), "round": np.array(self._round)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue after the round of the state."""
        if state:
            self._is_active, self._round = state["active"].astype(bool), int(state["round"])
            self._note()

    def _step(self) -> None:
        """Advance one round: draw the clients that change state."""
        self._round += 1
        draws = rng.at(self._seed, "availability", counter=self._round)
        changed = draw_clients(draws, self._num_clients, self._highest, self._rate)
        if len(changed):
            self._is_active[changed] ^= True
            self._note()

    def _rate(self, clients: np.ndarray | slice) -> np.ndarray:
        """Each client's chance to change state."""
        return np.where(self._is_active[clients], self._to_inactive[clients], self._to_active[clients])

    def _note(self) -> None:
        self._available = np.flatnonzero(self._is_active)


def rates_of(probability: np.ndarray, to_active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(to_active, to_inactive) with this stationary probability: to_inactive = to_active * (1/p - 1).

    Where that would exceed 1, to_active is lowered to p / (1 - p), which keeps the probability exact.
    """
    absent = 1 - probability
    # Present for at least one round: p * to_inactive <= p.
    to_active = np.where(absent * to_active > probability, probability / np.maximum(absent, 0.5), to_active)
    to_inactive = np.where(probability > 0, to_active * absent / np.maximum(probability, 1e-300), 1.0)
    return to_active, np.minimum(to_inactive, 1.0)


def _refuse_stuck(total: np.ndarray) -> None:
    if (total == 0).any():
        client = int(np.flatnonzero(total == 0)[0])
        raise UserError(
            f"config participation.to_active: client {client} has to_active = to_inactive = 0, a chain "
            "without a stationary distribution; expected one of them above 0"
        )
