"""A round's rows of the result file."""

from __future__ import annotations

import numpy as np

from fedmpi.methods import Round
from fedmpi.simulation.outcome import Output
from fedmpi.simulation.server_vectors import norm
from fedmpi.simulation.shares import Reduced


def add_rows(
    output: Output,
    current: Round,
    reduced: Reduced,
    undelivered: tuple[np.ndarray, np.ndarray],
    wall_time: float,
    comm_time: float,
    *,
    is_amplification: bool,
) -> None:
    """What was done in a round, who took part, and whose updates did not come in it."""
    there, t = current.takes_part, current.t
    output.add(
        "train",
        round=t,
        participants=int(there.sum()),
        weighted_sum_norm=norm(reduced.sums["weighted_sum"]),
        is_amplification=is_amplification,
        wall_time_s=wall_time,
        compute_time_s=reduced.compute_time,
        comm_time_s=comm_time,
        idle_time_s=reduced.idle_time,
    )
    output.add(
        "participation",
        round=t,
        client=current.clients[there],
        weight=current.weights[there],
        update_max=reduced.update_max[there],
    )
    away, arrives = undelivered
    if len(away):
        output.add("undelivered", round=t, client=away, arrives=arrives)
