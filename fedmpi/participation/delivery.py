"""Whose update reaches the server: of those who train in a round, some may be lost on the way, or be late.

A lost update leaves nothing behind, neither with the server nor with its client, who begins again where it
was. A late one, computed from x_t, arrives k rounds later; until then its client is busy, and trains for
nobody. The round is that of the clients whose updates arrive in it, and the server weighs those. Invariant:
the fate of a round is drawn from one stream addressed by (seed, t), after the choice of clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmpi.config.keys import Config, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.config.registry import METHODS, SELECTIONS, Finding
from fedmpi.data import rng
from fedmpi.participation.probabilities import length_conflicts, per_client

NEVER = -1
_NOBODY = np.arange(0)


def _is_late(config: Config) -> bool:
    return config.participation.late_probability > 0


@dataclass(frozen=True, kw_only=True)
class DeliveryKeys:
    """Of every selection."""

    dropout: float | list[float] = option(
        0.0, "chance that the update of a client that was chosen is lost, one number or one per client",
        at_least=0, at_most=1,
    )  # fmt: skip
    late_probability: float = option(
        0.0, "chance that an update that is not lost arrives in a later round", at_least=0, at_most=1
    )
    late_rounds: int | list[int] = option(
        1, "how many rounds later; of a list one at random", at_least=1, has_effect=_is_late
    )


def delivery_conflicts(config: Config) -> Iterator[Finding]:
    """One number for each client, and a method that hears who is there and when."""
    yield from length_conflicts(config, "dropout")
    method, who = config.algorithm.name, config.participation
    if METHODS.fact(method, "ignores_participants") and np.any(who.dropout):
        yield (
            "participation.dropout",
            f'algorithm.name = "{method}" waits for everybody: no update can be lost; expected 0',
        )
    if not _is_late(config):
        return
    if not METHODS.fact(method, "takes_late"):
        names = ", ".join(part.name for part in METHODS.parts() if part.facts.get("takes_late"))
        yield (
            "participation.late_probability",
            f'algorithm.name = "{method}": only updates are kept until they arrive, not what else its '
            f"clients send or remember; use one of {names}, or participation.dropout",
        )
    if who.weighting == "inverse-probability":
        yield (
            "participation.late_probability",
            'with weighting = "inverse-probability": the chance to be heard in a round depends on those '
            'before it; use weighting = "equal" or "all"',
        )


def keeps_late(config: Config) -> bool:
    """Whether updates may come later than the round in which they are computed."""
    part = SELECTIONS.part(config.participation.selection)
    return _is_late(config) and "late_probability" in part.key_names


@dataclass(frozen=True)
class Late:
    """Of one round: clients that train and are heard later, and those that are heard and do not train."""

    leaving: np.ndarray
    arriving: np.ndarray

    @cached_property
    def leaving_set(self) -> frozenset[int]:
        """The same, to look up."""
        return frozenset(self.leaving.tolist())

    @cached_property
    def arriving_set(self) -> frozenset[int]:
        """The same, to look up."""
        return frozenset(self.arriving.tolist())


class Delivery:
    """Which of the updates of a round arrive in it."""

    def __init__(self, who: ParticipationConfig, num_clients: int, seed: int, *, applies: bool) -> None:
        """`applies`: the selection has losses at all."""
        self._seed = seed
        self._dropout = per_client(who, "dropout", num_clients)
        self.may_lose = applies and bool(self._dropout.any())
        self._late_probability = who.late_probability if applies else 0.0
        self._delays = np.atleast_1d(np.asarray(who.late_rounds))
        self._undelivered = _NOBODY, _NOBODY
        # With late updates: the round in which each client's latest one arrives, and who was free last.
        self.late = Late(_NOBODY, _NOBODY) if self._late_probability > 0 else None
        self._due = np.full(num_clients if self.late else 0, NEVER)
        self._free, self._round = _NOBODY, -1

    def free(self, t: int, available: np.ndarray) -> np.ndarray:
        """Those without an update on its way; the same array while the set does not change."""
        if self.late is None:
            return available
        if t != self._round:
            now = available[self._due[available] < t]
            self._round = t
            if not np.array_equal(now, self._free):
                self._free = now
        return self._free

    def arriving(self, t: int, chosen: np.ndarray) -> np.ndarray:
        """Whose updates arrive in round t, given who is chosen to train in it."""
        if not self.may_lose and self.late is None:
            return chosen
        draws = rng.at(self._seed, "delivery", counter=t)
        is_lost = draws.random(len(chosen)) < self._dropout[chosen] * self.may_lose
        self._undelivered = chosen[is_lost], np.full(int(is_lost.sum()), NEVER)
        if self.late is None:
            return chosen[~is_lost]

        # Some of the others leave their update behind; some of earlier rounds come.
        is_late = ~is_lost & (draws.random(len(chosen)) < self._late_probability)
        due = t + self._delays[draws.integers(len(self._delays), size=len(chosen))]
        self.late = Late(chosen[is_late], np.flatnonzero(self._due == t))
        self._due[chosen[is_late]] = due[is_late]
        away = is_lost | is_late
        self._undelivered = chosen[away], np.where(is_lost, NEVER, due)[away]
        return np.union1d(chosen[~away], self.late.arriving)

    @property
    def undelivered(self) -> tuple[np.ndarray, np.ndarray]:
        """Who trained in the round asked for last and is not heard in it, and in which round it will be."""
        return self._undelivered

    def chances(self, clients: np.ndarray) -> np.ndarray | float:
        """The probability that the update of each of these is not lost."""
        return 1 - self._dropout[clients] if self.may_lose else 1.0

    def state(self) -> dict[str, np.ndarray]:
        """Which updates are on their way."""
        return {} if self.late is None else {"due": self._due.copy(), "free": self._free.copy()}

    def restore(self, t: int, state: dict[str, np.ndarray]) -> None:
        """Continue after round t."""
        if state:
            self._due, self._free, self._round = state["due"].copy(), state["free"], t
