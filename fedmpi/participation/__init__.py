"""Who takes part in round t, and with what weight q_t^n.

Questions: who could take part (availability.py; by chance: chance.py, markov.py, sinusoidal.py; from a
file: traces.py; several at once: composition.py), which of those do (selection.py), whose update arrives
(delivery.py), with what weight (weighting.py); or a file answers all of them (schedule.py). Invariant:
`weights(t)` is the same on every rank without a message, since all randomness is addressed by (seed,
purpose, round).
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.registry import SELECTIONS, WEIGHTINGS
from fedmpi.participation.composition import make_availability
from fedmpi.participation.delivery import Delivery, DeliveryKeys, Late
from fedmpi.participation.expectation import expected_weights

# They register themselves, in the order in which their names are listed.
from fedmpi.participation import chance, markov, sinusoidal, nonstationary, outages, cyclic, traces  # isort: skip # noqa: F401
from fedmpi.participation import selection, schedule, weighting  # isort: skip # noqa: F401

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels

_PREFIX, _POST = "availability.", "delivery."


class Participation(Protocol):
    """Anything that answers who takes part."""

    def available(self, t: int) -> np.ndarray:
        """Ids of the clients that could take part in round t, in ascending order."""

    def weights(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """(clients, weights) of round t: ids in ascending order, and q_t^n > 0 of each.

        The same round again gives the same answer. An earlier one is a RuntimeError where the selection
        depends on the rounds before. The arrays are remembered: do not write into them.
        """

    def undelivered(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """(clients, rounds): whom the server does not hear in round t, and when it will, or NEVER."""

    def late(self, t: int) -> Late | None:
        """Whose updates come later than round t, and whose of earlier rounds arrive; None if none can."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold for `weights` to continue."""

    def restore(self, t: int, state: dict[str, np.ndarray]) -> None:
        """Continue with round t from an earlier `state`."""

    def digest(self) -> str:
        """Changes when participation would, beyond what is in the config."""


class SelectedParticipation:
    """A selection among the available clients, with a weighting."""

    def __init__(self, config: Config, num_clients: int, labels: ClientLabels | None = None) -> None:
        who = config.participation
        self._availability = make_availability(who, num_clients, config.run.seed, labels)
        part = SELECTIONS.part(who.selection)
        others = {"clients_per_round", *(key.name for key in fields(DeliveryKeys))}
        own = {name: getattr(who, name) for name in sorted(part.key_names - others)}
        self._selection = part.make(who.clients_per_round, num_clients, config.run.seed, **own)
        self._delivery = Delivery(who, num_clients, config.run.seed, applies="dropout" in part.key_names)
        self._chances_are_known = not part.facts.get("chance_unknown")
        # A weighting that no one reads is not computed: it may not be defined here.
        self._weighting_name = who.weighting if config.weights_count else "equal"
        self._weighting = WEIGHTINGS[self._weighting_name]
        self._per_round = None if who.selection == "all" else who.clients_per_round
        self._num_clients = num_clients
        self._goes_forward_only = bool(self._selection.state() or self._delivery.state())
        self._round = -1  # last asked for, or the last before a checkpoint, whose answer is not known
        self._answer: tuple[np.ndarray, np.ndarray] | None = None

    def available(self, t: int) -> np.ndarray:
        """Who could take part in round t, and has no update on its way."""
        return self._delivery.free(t, self._availability.available(t))

    def weights(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """(clients, weights) of round t."""
        if t == self._round and self._answer:
            return self._answer
        if t <= self._round and self._goes_forward_only:
            raise RuntimeError(
                f"weights({t}) asked for after round {self._round}: this selection depends on earlier "
                "rounds and only goes forward; ask in ascending order, or create the participation again"
            )
        chosen = self._selection.select(t, self.available(t), self._availability.turn(t))
        clients = self._delivery.arriving(t, chosen)
        weights = self._weighting(clients, self._num_clients, lambda: self._chances(t, clients))
        self._round, self._answer = t, (clients, weights)
        return self._answer

    def undelivered(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Whose update of round t does not arrive in it, and when it does."""
        self.weights(t)
        return self._delivery.undelivered

    def late(self, t: int) -> Late | None:
        """Whose updates come later."""
        self.weights(t)
        return self._delivery.late

    def _chances(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The probability that these clients take part in round t, and that their update arrives.

        Choosing S gives every available client the same chance; the config allows it here only where the
        number of available clients is not random.
        """
        chances = self._availability.probability(t, clients) * self._delivery.chances(clients)
        if self._per_round is None:
            return chances
        return chances * min(1, self._per_round / max(len(self.available(t)), 1))

    def expected(self, t: int) -> np.ndarray | None:
        """E q_t^n of all clients in this run, where it is known (expectation.py)."""
        alone = self._per_round is None and self._weighting_name != "equal"  # others do not matter
        if (
            self._delivery.late
            or not self._chances_are_known
            or not (alone or self._availability.is_independent)
        ):
            return None
        if self._delivery.may_lose and not (alone or self._per_round is None):
            return None  # how many of the chosen are left changes the weights
        everybody = np.arange(self._num_clients)
        arrives = self._delivery.chances(everybody)
        try:
            stated = self._availability.probability(t, everybody) * arrives
            chances = self._availability.chances(t, everybody) * arrives
        except NotImplementedError:
            return None
        if self._weighting_name == "inverse-probability":  # of the one that is stated
            each = expected_weights(stated, self._weighting_name, self._per_round)
            return each * np.divide(chances, stated, out=np.zeros(len(stated)), where=stated > 0)
        if self._goes_forward_only and not np.array_equal(stated, chances):
            return None  # who was there before decides who is taken
        return expected_weights(chances, self._weighting_name, self._per_round)

    def availability_chances(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The probability that these clients are available in round t and are heard, where it is known."""
        return self._availability.probability(t, clients) * self._delivery.chances(clients)

    def correlation(self) -> np.ndarray | float | None:
        """Of rounds, as the availability has it; None if the selection itself remembers.

        Losses are drawn anew in each round: a chain of which some is lost forgets at no single rate.
        """
        kept = None if self._goes_forward_only else self._availability.correlation()
        return None if self._delivery.may_lose and kept is not None and np.any(kept) else kept

    def state(self) -> dict[str, np.ndarray]:
        """The selection's, and the availability's under names with a prefix."""
        own = {_PREFIX + name: value for name, value in self._availability.state().items()}
        own |= {_POST + name: value for name, value in self._delivery.state().items()}
        return self._selection.state() | own

    def restore(self, t: int, state: dict[str, np.ndarray]) -> None:
        """Continue with round t."""
        if not state or t == 0:
            return
        self._round, self._answer = t - 1, None
        own = {name: value for name, value in state.items() if name.startswith(_PREFIX)}
        self._availability.restore({name.removeprefix(_PREFIX): value for name, value in own.items()})
        post = {name: value for name, value in state.items() if name.startswith(_POST)}
        self._delivery.restore(t - 1, {name.removeprefix(_POST): value for name, value in post.items()})
        others = {name: value for name, value in state.items() if name not in own | post}
        if others:
            last = t - 1
            self._selection.restore(others, self.available(last), self._availability.turn(last))

    def digest(self) -> str:
        """The availability's digest: it may come from a file."""
        return self._availability.digest()


def make_participation(
    config: Config, num_clients: int, labels: ClientLabels | None = None
) -> Participation:
    """The participation that a config describes; `labels` for what depends on the clients' label mix."""
    who = config.participation
    if SELECTIONS.fact(who.selection, "gives_weights"):
        return SELECTIONS[who.selection](config, num_clients)
    return SelectedParticipation(config, num_clients, labels)
