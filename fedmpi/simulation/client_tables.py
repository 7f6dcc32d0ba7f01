"""What clients remember between rounds: a vector for each table of the method, kept by the client's owner.

A client gets a row when it is first used; before that its vectors are zero. Invariant: rows are
addressed by client id, never by rank, so that a checkpoint can be loaded on any number of ranks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedmpi.data.ownership import owner_of, place_of
from fedmpi.errors import UserError
from fedmpi.models.flat import together
from fedmpi.mpi.node_memory import room_for_rank
from fedmpi.mpi.pinned import Upload

_MOST_RUNS = 32


class ClientMemory:
    """The tables of a rank's own clients, in working precision on its device.

    Each is allocated once, for all clients that the rank owns, and never grows: tables x clients x
    parameters x bytes, what `check_room` counts. To grow by doubling would take up to twice that for a
    table while it is copied. On the host only rows that were used take memory.
    """

    def __init__(self, names: tuple[str, ...], num_owned: int, num_ranks: int, like: Tensor) -> None:
        self._names = names
        self._num_ranks = num_ranks
        self._like = like
        self._row_of = np.full(num_owned if names else 0, -1)
        self._clients: list[int] = []
        self._tables = {name: _zeros(num_owned, like) for name in names}
        self._sent = Upload(torch.int64, like.device) if like.device.type == "cuda" else None
        self._last: tuple[np.ndarray, Tensor] | None = None  # row numbers, and the same on the device

    def fetch(self, clients: np.ndarray) -> dict[str, Tensor]:
        """Copies of the rows of some of this rank's clients, in that order."""
        if not self._names:
            return {}
        rows = self._on_device(self._rows(clients))
        return {name: table.index_select(0, rows) for name, table in self._tables.items()}

    def store(self, clients: np.ndarray, local: dict[str, Tensor]) -> None:
        """Put rows back."""
        if self._names:
            rows = self._rows(clients)
            runs = _runs(rows) if self._sent else []
            for name, table in self._tables.items():
                if 0 < len(runs) <= _MOST_RUNS:  # on a GPU; setting rows by index is a sort there
                    for here, there in runs:
                        table[there].copy_(local[name][here])
                else:
                    table[self._on_device(rows)] = local[name]

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

    def _rows(self, clients: np.ndarray) -> np.ndarray:
        """The clients' row numbers; who has none gets the next one."""
        # The next rows for clients that have none.
        places = place_of(clients, self._num_ranks)
        new = np.unique(clients[self._row_of[places] < 0])
        if len(new):
            first = len(self._clients)
            self._row_of[place_of(new, self._num_ranks)] = np.arange(first, first + len(new))
            self._clients += new.tolist()
        return self._row_of[places]

    def _on_device(self, rows: np.ndarray) -> Tensor:
        """Row numbers beside the tables; a round stores the rows that it fetched."""
        if self._sent is None:
            return torch.from_numpy(rows)
        if self._last is None or not np.array_equal(rows, self._last[0]):
            self._last = rows, self._sent.put(rows)
        return self._last[1]


def _runs(rows: np.ndarray) -> list[tuple[slice, slice]]:
    """Neighbouring rows as slices: where they are in the list, and in the table.

    >>> _runs(np.array([4, 5, 6, 2]))
    [(slice(0, 3, None), slice(4, 7, None)), (slice(3, 4, None), slice(2, 3, None))]
    """
    ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    begins = [0, *ends[:-1]]
    return [
        (slice(a, b), slice(int(rows[a]), int(rows[a]) + b - a)) for a, b in zip(begins, ends, strict=True)
    ]


def _zeros(count: int, like: Tensor) -> Tensor:
    """(count, length of `like`) of zeros; on the host the system gives the memory when it is written to."""
    if like.device.type != "cpu":
        return like.new_zeros((count, len(like)))
    return torch.from_numpy(np.zeros((count, len(like)), like.numpy().dtype))


def table_bytes(num_tables: int, num_owned: int, num_params: int, item_size: int = 4) -> int:
    """Memory of the tables once every client has taken part."""
    return num_tables * num_owned * num_params * item_size


def check_vectors(
    num_params: int, item_size: int, *, device: torch.device | None = None, sharing: int = 1
) -> None:
    """Refuse a model whose vectors do not fit into this rank's part of the memory; show the arithmetic."""
    whole, rows = 7, 2 + 2 * together(16, num_params)
    needed, room = num_params * (8 * whole + item_size * rows), room_for_rank(device, sharing)
    if room is not None and needed > room:
        raise UserError(
            f"config model.name: {num_params:,} parameters x ({whole} x 8 bytes for x, u, a round's sum "
            f"and a total of integers + {rows} x {item_size} bytes for clients in training) = "
            f"{needed / 1e9:.1f} GB on a rank, {room / 1e9:.1f} GB are available to each of {sharing}; use "
            "fewer ranks a node, or a smaller model"
        )


def check_room(
    name: str,
    num_tables: int,
    num_owned: int,
    num_params: int,
    item_size: int,
    *,
    device: torch.device | None = None,
    sharing: int = 1,
) -> None:
    """Refuse a method whose tables do not fit into this rank's part of the memory; show the arithmetic.

    `sharing`: how many ranks share the memory of `device`, a GPU or by default the node.
    """
    needed, room = table_bytes(num_tables, num_owned, num_params, item_size), room_for_rank(device, sharing)
    if room is not None and needed > room:
        on_gpu = device is not None and device.type == "cuda"
        where = f" on {device}" if on_gpu else " on this node" if sharing > 1 else ""
        shared = f" to each of its {sharing} ranks" if sharing > 1 else ""
        more = "GPUs" if on_gpu else "nodes" if sharing > 1 else "ranks"
        raise UserError(
            f'config algorithm.name = "{name}": keeps {num_tables} x {num_owned:,} clients x '
            f"{num_params:,} parameters x {item_size} bytes = {needed / 1e9:.1f} GB on a rank, "
            f"{room / 1e9:.1f} GB are available{where}{shared}; use more {more}, fewer clients or "
            "a smaller model"
        )
