"""What a user should know about a valid config before it runs, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from fedmpi.config import Config
from fedmpi.config.effects import unused_keys
from fedmpi.config.registry import METHODS, SELECTIONS
from fedmpi.participation.cycle import phase_notes


def notes_on(config: Config) -> list[str]:
    """Keys and weights without effect, and evaluations that see the same phases of every cycle."""
    return [*unused_keys(config), *_ignored(config), *phase_notes(config)]


def _ignored(config: Config) -> Iterator[str]:
    """What participation says and the method does not hear, where no warm-up of FedAvg hears it."""
    method, who = config.algorithm.name, config.participation
    if config.warmup is None and METHODS.fact(method, "ignores_participants"):
        if who.selection != "all":
            yield f'participation.selection = "{who.selection}" has no effect: {method} takes everybody'
    elif not config.weights_count and SELECTIONS.fact(who.selection, "gives_weights"):
        yield f"the weights of participation.{who.selection} have no effect: {method} weighs by itself"
