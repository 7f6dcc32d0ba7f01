"""`fedmpi participation`: write who takes part and with what weight, without training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmpi.config import validate
from fedmpi.experiments.advising import participation_of
from fedmpi.participation import Participation
from fedmpi.participation.delivery import keeps_late
from fedmpi.participation.tables import table_target, write_table


def write_participation(
    config_path: str, overrides: Sequence[str], out: str, rounds: int | None, *, force: bool
) -> int:
    """Store the realised Q; `selection = "schedule"` reads it again, for any other method."""
    config = validate.load(config_path, overrides)
    target = table_target(out, force=force)
    participation, num_clients = participation_of(config)
    rounds = rounds or config.run.num_rounds
    columns = realised(participation, rounds)
    write_table(
        target,
        "participation",
        columns,
        {
            "format": "fedmpi-participation",
            "num_rounds": rounds,
            "num_clients": num_clients,
            "config": config.to_toml(),
        },
    )
    print(
        f"{target}: {rounds:,} rounds of {num_clients:,} clients, {len(columns['round']):,} weights\n"
        'use it with participation.availability = "always", participation.selection = "schedule", '
        f'participation.schedule = "{target}"'
    )
    if keeps_late(config):
        print(
            "note: late updates stand in the round in which they arrive; a schedule trains their clients "
            "then, from another model"
        )
    return 0


def realised(participation: Participation, rounds: int) -> dict[str, np.ndarray]:
    """All weights of the first rounds, as columns round, client, weight."""
    pairs = [participation.weights(t) for t in range(rounds)]
    return {
        "round": np.repeat(np.arange(rounds), [len(clients) for clients, _ in pairs]),
        "client": np.concatenate([clients for clients, _ in pairs]),
        "weight": np.concatenate([weights for _, weights in pairs]),
    }
