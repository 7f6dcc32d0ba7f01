"""The runs of a pack: each a simulation, on one set of shards and with one trainer of clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedmpi.config import Config
from fedmpi.data.loading import load_pack
from fedmpi.mpi import Comm
from fedmpi.simulation.loop import Simulation
from fedmpi.simulation.stopping import StopRequest


def make_pack(
    comm: Comm, configs: Sequence[Config], device: torch.device, stops: Sequence[StopRequest | None]
) -> list[Simulation]:
    """Collective. Runs that share a data set and what trains their clients; PackError if they cannot."""
    shards, made = load_pack(comm, configs, device), []
    for config, stop, own in zip(configs, stops, shards, strict=True):
        beside = made[0] if made else None
        made.append(
            Simulation(comm, config, device, stop, shards=own, beside=beside, num_packed=len(configs))
        )
    return made
