"""Who could take part in round t.

Invariant: `available(t)` is a pure function of (seed, t), the same on every rank; it returns the same
array object while the set does not change, which lets a selection work in O(participants) a round. An
availability that must remember something to answer quickly stores it in checkpoints through `state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import ParticipationConfig
from fedmpi.config.registry import AVAILABILITIES
from fedmpi.errors import UserError

if TYPE_CHECKING:
    from fedmpi.data.partition import ClientLabels


class Availability:
    """The available clients of each round."""

    is_independent = True  # whether a client's presence says nothing of another's in the same round

    def available(self, t: int) -> np.ndarray:
        """Ids of the available clients in ascending order."""
        raise NotImplementedError

    def turn(self, t: int) -> int:
        """Number of the turn that round t belongs to; a permutation starts again with each turn.

        By default one turn that never ends: a permutation continues while the set changes.
        """
        return 0

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The chance that each of these clients is available in round t, where it is known."""
        raise NotImplementedError

    def chances(self, t: int, clients: np.ndarray) -> np.ndarray:
        """The same for who knows the run: what its seed settled at the start is no chance any more."""
        return self.probability(t, clients)

    def correlation(self) -> np.ndarray | float | None:
        """How much of a client's state is left in the next round; 0 where rounds are independent.

        One number, or one for each client, of chains that forget at this rate; None for anything else.
        """
        return None

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold to continue quickly; by default nothing."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from an earlier `state`."""

    def digest(self) -> str:
        """Changes when availability would, beyond what is in the config."""
        return ""


# `availability(name, keys...)` registers a class (config, num_clients, seed, labels). Facts that others ask
# for: `knows_probability`; `is_by_chance(config)`, whether chance decides; `is_cheap` to look far ahead;
# `cycle(config)`, rounds after which it repeats; `leaves(config)`, keys
# that are for others of a list.
availability = AVAILABILITIES


@availability("always", knows_probability=True, is_cheap=True)
class Always(Availability):
    """Everybody, in every round."""

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        self._everybody = np.arange(num_clients)

    def available(self, t: int) -> np.ndarray:
        """All clients."""
        return self._everybody

    def probability(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Certainty."""
        return np.ones(len(clients))

    def correlation(self) -> float:
        """Nothing to remember."""
        return 0.0


class UserFunction(Availability):
    """package.module:function(t, num_clients, seed) -> ids of the available clients."""

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: ClientLabels | None = None
    ) -> None:
        from fedmpi.config.user_code import fitting, import_function

        self._name = config.availability
        self._function = import_function(config.availability, "participation.availability")
        self._num_clients = num_clients
        self._given = fitting(self._function, {"t": 0, "num_clients": num_clients, "seed": seed})
        self._last = np.arange(0)

    def available(self, t: int) -> np.ndarray:
        """What the function returns, checked."""
        try:
            answer = self._function(**(self._given | {"t": t}))
            ids = np.asarray(answer)
            if ids.size and ids.dtype.kind not in "iu":
                raise TypeError(f"expected integer ids, got {ids.dtype}")
            clients = np.unique(ids.astype(np.int64))
        except Exception as error:
            raise UserError(
                f'config participation.availability = "{self._name}": round {t} raised '
                f"{type(error).__name__}: {error}"
            ) from error
        if len(clients) and not 0 <= clients[0] <= clients[-1] < self._num_clients:
            raise UserError(
                f'config participation.availability = "{self._name}": round {t} returned client '
                f"{clients[0] if clients[0] < 0 else clients[-1]}; expected 0 to {self._num_clients - 1}"
            )
        if not np.array_equal(clients, self._last):
            self._last = clients
        return self._last
