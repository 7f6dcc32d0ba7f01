"""What clients remember between rounds: a vector for each table of the method, kept by the client's owner.

A client's row is created when it is first used; before that its vectors are zero. Invariant: rows are
addressed by client id, never by rank, so that a checkpoint can be loaded on any number of ranks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedmpi.data.ownership import owner_of, place_of
from fedmpi.errors import UserError


class ClientMemory:
    """The tables of a rank's own clients, in working precision on its device."""

    def __init__(self, names: tuple[str, ...], num_owned: int, num_ranks: int, like: Tensor) -> None:
        self._names = names
        self._num_ranks = num_ranks
        self._like = like
        self._row_of = np.full(num_owned if names else 0, -1)
        self._clients: list[int] = []
        self._tables = {name: like.new_zeros((0, len(like))) for name in names}

    def fetch(self, clients: np.ndarray) -> dict[str, Tensor]:
        """Copies of the rows of some of this rank's clients, in that order."""
        if not self._names:
            return {}
        rows = self._rows(clients)
        return {name: table[rows] for name, table in self._tables.items()}

    def store(self, clients: np.ndarray, local: dict[str, Tensor]) -> None:
        """Put rows back."""
        if self._names:
            rows = self._rows(clients)
            for name, table in self._tables.items():
                table[rows] = local[name]

    def dump(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint: the client ids, and their rows of each table."""
        count = len(self._clients)
        tables = {name: table[:count].cpu().numpy() for name, table in self._tables.items()}
        return {"clients": np.array(self._clients, np.int64), **tables}

    def load(self, dumped: dict[str, np.ndarray], rank: int) -> None:
        """Load the rows of this rank's clients from one part of a checkpoint."""
        own = owner_of(dumped["clients"], self._num_ranks) == rank
        if own.any():
            rows = {name: torch.from_numpy(dumped[name][own]).to(self._like) for name in self._names}
            self.store(dumped["clients"][own], rows)

    def _rows(self, clients: np.ndarray) -> Tensor:
        """The clients' row numbers; missing rows are created."""
        # Append a row for each client that has none.
        places = place_of(clients, self._num_ranks)
        new = np.unique(clients[self._row_of[places] < 0])
        if len(new):
            first = len(self._clients)
            self._row_of[place_of(new, self._num_ranks)] = np.arange(first, first + len(new))
            self._clients += new.tolist()
            self._grow(len(self._clients))
        return torch.from_numpy(self._row_of[places]).to(self._like.device)

    def _grow(self, count: int) -> None:
        # Doubling keeps the cost of copying linear.
        for name, table in self._tables.items():
            if count > len(table):
                size = min(max(count, 2 * len(table)), len(self._row_of))
                larger = table.new_zeros((size, table.shape[1]))
                larger[: len(table)] = table
                self._tables[name] = larger


def table_bytes(num_tables: int, num_owned: int, num_params: int, item_size: int = 4) -> int:
    """Memory of the tables once every client has taken part."""
    return num_tables * num_owned * num_params * item_size


def check_room(name: str, num_tables: int, num_owned: int, num_params: int, item_size: int) -> None:
    """Refuse a method whose tables do not fit into this node's memory, and show the arithmetic."""
    needed, room = table_bytes(num_tables, num_owned, num_params, item_size), available_bytes()
    if room is not None and needed > room:
        raise UserError(
            f'config algorithm.name = "{name}": keeps {num_tables} x {num_owned:,} clients x '
            f"{num_params:,} parameters x {item_size} bytes = {needed / 1e9:.1f} GB on a rank, "
            f"{room / 1e9:.1f} GB are available; use more ranks, fewer clients or a smaller model"
        )


def available_bytes() -> int | None:
    """Memory still available on this node; None where the system does not report it."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None
