"""Waiting for everybody: the paper's baselines wait-minibatch and wait-full.

Once in a cycle of availability all N clients take I steps from the same x, and x moves by their plain
average. Waiting counts: a cycle of P rounds counts as P rounds, of which all but the last have no
participant. The warm-up uses the configured participation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.methods.base import Method, ServerState, method
from fedmpi.participation.cycle import declared_cycle


@dataclass(frozen=True, kw_only=True)
class WaitKeys:
    """Of wait-minibatch and wait-full."""

    wait_rounds: int | None = option(
        None, "wait-*: rounds of a cycle; default: that of periodic availability", at_least=1
    )


def cycle_length(config: Config) -> int | None:
    """Rounds of a cycle: as given, or the rounds after which availability repeats."""
    if config.algorithm.wait_rounds is not None:
        return config.algorithm.wait_rounds
    return declared_cycle(config.participation)


def _conflicts(config: Config) -> Iterator[Finding]:
    if cycle_length(config) is None:
        yield (
            "algorithm.wait_rounds",
            f'missing; "{config.algorithm.name}" needs the rounds of a cycle; expected an integer >= 1, '
            'or participation.availability = "periodic"',
        )


@method(
    "wait-minibatch", WaitKeys, conflicts=_conflicts,
    ignores_weights=True, ignores_participants=True,
    start={"wait_rounds": 20, "participation.selection": "all"},
)  # fmt: skip
class WaitMinibatch(Method):
    """Waits for everybody: all clients, on minibatches, in the last round of each cycle."""

    def __init__(self, config: Config, num_clients: int) -> None:
        super().__init__(config, num_clients)
        self.cycle = cycle_length(config)

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Everybody with 1/N when the cycle is over, nobody before."""
        waited = t - self.config.warmup_rounds + 1
        if waited <= 0:
            return clients, weights
        if waited % self.cycle:
            return clients[:0], weights[:0]
        return np.arange(self.num_clients), np.full(self.num_clients, 1 / self.num_clients)


@method(
    "wait-full", WaitKeys, conflicts=_conflicts,
    ignores_weights=True, ignores_participants=True, ignores_batch_size=True,
    start={"wait_rounds": 20, "participation.selection": "all"},
)  # fmt: skip
class WaitFull(WaitMinibatch):
    """As wait-minibatch, with all of a client's data in each step."""

    def uses_full_data(self, t: int) -> bool:
        """After the warm-up."""
        return t >= self.config.warmup_rounds
