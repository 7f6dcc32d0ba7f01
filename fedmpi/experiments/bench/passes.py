"""What a round costs on the host beside training and messages: passes over vectors, measured here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.simulation import exact
from fedmpi.simulation.running_total import RunningTotal


@dataclass(frozen=True)
class Passes:
    """Seconds."""

    kept: float  # to add the update of a client that waited
    streamed: float  # to add one as it comes
    server: float  # once a round: the sum as numbers, x and u


def host_passes(num_params: int) -> Passes:
    """The quickest of a few."""
    row = torch.ones(1, num_params)
    words, weights = np.zeros((2, num_params), np.int64), np.ones(1)
    total, x = RunningTotal(words, 10_000), np.ones(num_params)
    total.add(row, weights, 1.0)

    def server() -> None:
        added = exact.to_float(words[0], 40)
        x + added, x + added  # x and u

    def kept() -> None:
        exact.magnitudes(row.numpy())
        exact.add_contributions(words[0], row.numpy(), [1.0], 40)

    def streamed() -> None:
        exact.magnitudes(row.numpy())
        total.add(row, weights, 1.0)

    return Passes(_quickest(kept), _quickest(streamed), _quickest(server))


def _quickest(function: Callable[[], None], times: int = 5) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
