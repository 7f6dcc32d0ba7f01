"""Loss and metrics of each client, from the pass over the data that an evaluation makes anyway.

A cell is what one client has in one evaluation block. Invariant: a cell is summed by the rank of its block,
in the order of the samples, and cells are added in the order of blocks; so the bits do not depend on ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.data.evaluation import EvalData, rows_of_blocks
from fedmpi.tasks import Task

SAMPLE_BYTES = 6 * 8  # loss and accuracy while they are gathered, and the sample's cell
CELL_BYTES = 6 * 8  # whose it is, its sums here and over all ranks


@dataclass(frozen=True, kw_only=True)
class ByClient:
    """What was found on one set: a row for each client with samples in it."""

    clients: np.ndarray  # ids, ascending
    samples: np.ndarray  # how many each has
    metrics: tuple[np.ndarray, ...]  # (clients,) each: mean loss, and the others of the task


class Cells:
    """The cells of an evaluation set, and which of them the samples of this rank are in."""

    def __init__(self, clients_of: np.ndarray, data: EvalData, task: Task) -> None:
        """`clients_of`: the client of each sample of the whole set."""
        self._task = task
        self.clients, places, self.samples = np.unique(clients_of, return_inverse=True, return_counts=True)
        numbers = _numbers(places, len(self.clients), data.block)
        cells, cell_of = np.unique(numbers, return_inverse=True)
        self._place_of = cells % max(len(self.clients), 1)  # of each cell's client
        self._cell_of_mine = cell_of[rows_of_blocks(data.block_ids, data.block, len(clients_of))]

    def __len__(self) -> int:
        return len(self._place_of)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(sums, cells): of what the task sums over this rank's samples, given (sums, samples).

        0 in cells of others.
        """
        return np.stack([np.bincount(self._cell_of_mine, own, minlength=len(self)) for own in values])

    def metrics(self, sums: np.ndarray) -> ByClient:
        """Of each client, from the sums of all cells."""
        losses, *others = (
            np.bincount(self._place_of, of_cells, minlength=len(self.clients)) for of_cells in sums
        )
        losses = np.where(np.isfinite(losses), losses, np.inf)
        found = self._task.evaluated((losses, *others), self.samples)
        return ByClient(clients=self.clients, samples=self.samples, metrics=found)


def num_cells(clients_of: np.ndarray, block: int) -> int:
    """How many cells a set has.

    >>> num_cells(np.array([4, 4, 7, 7, 7, 4]), 3)
    4
    """
    clients, places = np.unique(clients_of, return_inverse=True)
    return len(np.unique(_numbers(places, len(clients), block)))


def _numbers(places: np.ndarray, num_clients: int, block: int) -> np.ndarray:
    """A number for the cell of each sample, ascending by block, then by client."""
    return np.arange(len(places)) // block * max(num_clients, 1) + places
