"""What each rank brings to the sums of a round, and what all ranks know after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedmpi.errors import ClientError
from fedmpi.simulation.rank_report import RankReport
from fedmpi.simulation.running_total import RunningTotal

Vector = np.ndarray | Tensor  # float64, one entry for each parameter


class NonFiniteUpdateError(Exception):
    """Some client's update holds inf or nan. Raised on all ranks."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} gave a non-finite update")
        self.client = client


@dataclass(kw_only=True, slots=True)
class Share:
    """A rank's part in the sums of one run."""

    clients: np.ndarray  # all participants
    weights: np.ndarray
    mine: np.ndarray | slice  # those that this rank trained, in the order of the rows
    rows: dict[str, Tensor]  # "weighted_sum": their updates; and what else is summed, without weights
    peaks: list[np.ndarray]  # the largest magnitude in each row of each, at its client's place
    report: RankReport
    failure: ClientError | None = None
    totals: Mapping[str, RunningTotal] = field(default_factory=dict)  # in place of rows: added as they came
    numbers: dict[str, np.ndarray] = field(default_factory=dict)  # at their clients' places, zero elsewhere


@dataclass(kw_only=True, slots=True)
class Reduced:
    """What all ranks know after a reduction."""

    sums: dict[str, Vector]  # "weighted_sum", and the method's own sums
    update_max: np.ndarray  # largest magnitude in each client's update
    compute_time: float  # of the slowest rank
    idle_time: float  # waiting for the slowest rank, mean over ranks
    stop: int  # 0, or the reason why a rank wants to stop
    checkpoint: bool  # whether a rank wants one after this round
    numbers: dict[str, np.ndarray] = field(default_factory=dict)  # of each client


def placed(values: np.ndarray, count: int, places: np.ndarray | slice) -> np.ndarray:
    """The values of this rank among those of all `count` clients.

    inf for a nan, which a maximum over ranks would lose.
    """
    if isinstance(places, slice):
        return values
    everybody = np.zeros(count)
    everybody[places] = values
    everybody[np.isnan(everybody)] = np.inf
    return everybody


def among(own: np.ndarray, count: int, places: np.ndarray | slice) -> np.ndarray:
    """One number for each of `count` clients: this rank's at their places, zero elsewhere."""
    everybody = np.zeros(count)
    everybody[places] = own
    return everybody


def non_finite(clients: np.ndarray, peaks: np.ndarray) -> NonFiniteUpdateError | None:
    """The error, the same on all ranks, if some client's row holds inf or nan."""
    if np.isfinite(peaks).all():
        return None
    return NonFiniteUpdateError(int(clients[~np.isfinite(peaks)][0]))
