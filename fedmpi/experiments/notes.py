"""What a user should know about a valid config before it runs, one sentence each."""

from __future__ import annotations

from fedmpi.config import Config
from fedmpi.config.effects import unused_keys
from fedmpi.participation.cycle import phase_notes


def notes_on(config: Config) -> list[str]:
    """Keys without effect, and evaluations that see the same phases of every cycle."""
    return unused_keys(config) + phase_notes(config)
