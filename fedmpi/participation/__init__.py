"""Who takes part in round t, and with what weight q_t^n.

Three questions, one file each: who could take part (availability.py, trace.py), who of those does
(selection.py), or both answered by a file (schedule.py). Invariant: `weights(t)` is the same on every
rank without a message, since all randomness is addressed by (seed, purpose, round).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedmpi.config import Config
from fedmpi.participation import trace  # noqa: F401  registers itself
from fedmpi.participation.availability import make_availability
from fedmpi.participation.schedule import read_schedule
from fedmpi.participation.selection import SELECTIONS


class Participation(Protocol):
    """Anything that answers who takes part."""

    def weights(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """(clients, weights) of round t: ids in ascending order, and q_t^n > 0 of each."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold for `weights` to go on."""

    def restore(self, t: int, state: dict[str, np.ndarray]) -> None:
        """Go on with round t from an earlier `state`."""

    def digest(self) -> str:
        """Changes when participation would, beyond what the config tells."""


class SelectedParticipation:
    """A selection among the available clients, with a weighting."""

    def __init__(self, config: Config, num_clients: int) -> None:
        who = config.participation
        self._availability = make_availability(who, num_clients, config.run.seed)
        self._selection = SELECTIONS[who.selection](who.clients_per_round, num_clients, config.run.seed)
        self._equal = who.weighting == "equal"
        self._num_clients = num_clients

    def weights(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """(clients, weights) of round t: q = 1/participants, or 1/N."""
        clients = self._selection.select(t, self._availability.available(t), self._availability.turn(t))
        share = 1 / max(len(clients), 1) if self._equal else 1 / self._num_clients
        return clients, np.full(len(clients), share)

    def state(self) -> dict[str, np.ndarray]:
        """The selection's: availability has none."""
        return self._selection.state()

    def restore(self, t: int, state: dict[str, np.ndarray]) -> None:
        """Go on with round t."""
        if state and t > 0:
            last = t - 1
            self._selection.restore(
                state, self._availability.available(last), self._availability.turn(last)
            )

    def digest(self) -> str:
        """The availability's: it may come from a file."""
        return self._availability.digest()


def make_participation(config: Config, num_clients: int) -> Participation:
    """The participation that a config describes."""
    who = config.participation
    if who.selection == "schedule":
        return read_schedule(who.schedule, num_clients)
    return SelectedParticipation(config, num_clients)
