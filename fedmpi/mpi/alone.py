"""A process by itself as a `Comm` of one rank, without MPI: for work that needs no launcher."""

from __future__ import annotations

import socket
from typing import Any

from fedmpi.mpi.comm import Comm


class _Nobody:
    """The communicator of one rank: what it sends comes back."""

    rank, size = 0, 1

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def gather(self, value: Any, root: int) -> list[Any]:
        return [value]

    def bcast(self, value: Any, root: int) -> Any:
        return value

    def allreduce(self, value: Any) -> Any:
        return value

    def Bcast(self, values: Any, root: int) -> None:
        """Nothing to do."""

    def Barrier(self) -> None:
        """Nothing to do."""


class Alone(Comm):
    """All collectives of one rank."""

    def __init__(self) -> None:
        self.is_part, self.is_root = False, True
        self._world = self._node = _Nobody()
        self.rank = self.node_rank = self.device_rank = 0
        self.size = self.node_size = self.node_ranks = 1

    @property
    def library(self) -> str:
        """No MPI."""
        return "no MPI"

    @property
    def host(self) -> str:
        """Name of this host."""
        return socket.gethostname()
