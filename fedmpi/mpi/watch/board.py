"""The pulses of all ranks, where each rank can read them: in memory that the ranks of a node share.

The slots of other nodes are filled in by one rank of this node, from small files beside the result: each
node's first living rank writes what its node shows (`Courier`). Shared memory costs nothing to write and
outlives no job, since the file is removed as soon as all ranks have opened it; files need no help from MPI,
which may be what hangs. Invariant: a file system that does not answer stops the courier alone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from fedmpi.mpi.comm import Comm
from fedmpi.mpi.watch.pulse import BEATS, SLOT

_BYTES = 8 * SLOT
_NO_TRIES_LEFT = 3  # cycles without a file of a node, after which a warning is due


class Board:
    """Collective to make. The slot of each rank, and where it is."""

    def __init__(self, comm: Comm) -> None:
        self.rank, self.size = comm.rank, comm.size
        node = comm.share_on_node(comm.rank)  # its first rank
        places = comm.gather_on_all((comm.host, node))
        self.hosts = [host for host, _ in places]
        self.nodes = [first for _, first in places]
        self.token = comm.on_root(lambda: secrets.token_hex(8)).encode()

        # One slot more than ranks: the courier's count of exchanges.
        memory = self._shared(comm) if comm.size > 1 else None
        self.is_shared = memory is not None or comm.size == 1
        cells = memoryview(memory if memory is not None else bytearray(_BYTES * (comm.size + 1))).cast("q")
        self.slots = [cells[SLOT * rank : SLOT * (rank + 1)] for rank in range(comm.size + 1)]

    def _shared(self, comm: Comm) -> mmap.mmap | None:
        """Memory of this node's ranks; None where there is none to be had."""
        length = _BYTES * (comm.size + 1)
        path = comm.share_on_node(_make_file(length) if comm.node_rank == 0 else None)
        memory = None
        with contextlib.suppress(OSError, ValueError, TypeError), open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), length)
        comm.barrier()
        if comm.node_rank == 0 and path:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return memory

    @property
    def own(self) -> memoryview:
        """The slot of this rank."""
        return self.slots[self.rank]

    @property
    def exchanges(self) -> int:
        """How often the courier of this node has been at all files."""
        return self.slots[self.size][0]

    def is_far(self, rank: int) -> bool:
        """Whether a rank is on another node."""
        return self.nodes[rank] != self.nodes[self.rank]


def _make_file(length: int) -> str | None:
    """An empty file in memory, or at least on a local disk; None if neither can be written."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            descriptor, path = tempfile.mkstemp(prefix="fedmpi-pulse-", dir=folder)
            try:
                os.truncate(descriptor, length)
            finally:
                os.close(descriptor)
            return path
    return None


class Courier(threading.Thread):
    """Carries pulses between nodes through files, while this rank is the first living one of its node."""

    def __init__(
        self, board: Board, run_path: Path, period: float, is_my_turn: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__(name="fedmpi courier", daemon=True)
        self._board, self._period, self._is_my_turn, self._warn = board, period, is_my_turn, warn
        self._folder, self._name = run_path.parent, run_path.name
        self._ended = threading.Event()
        self._here = board.nodes[board.rank]
        self._missed: dict[int, int] = {}
        self._has_warned = False

    def end(self) -> None:
        """No more exchanges; the file of this node is removed by its first rank."""
        self._ended.set()
        self.join(timeout=1.0)  # a file system that hangs keeps it
        if self._board.rank == self._here and not self.is_alive():
            with contextlib.suppress(OSError):
                self._path(self._here).unlink()

    def run(self) -> None:
        """Again and again."""
        while not self._ended.wait(self._period):
            if self._is_my_turn():
                self._write()
                self._read()
                self._board.slots[self._board.size][0] += 1

    def _path(self, node: int) -> Path:
        return self._folder / f".{self._name}.pulse-{node}"

    def _ranks(self, node: int) -> list[int]:
        return [rank for rank in range(self._board.size) if self._board.nodes[rank] == node]

    def _write(self) -> None:
        """What this node shows, in one write of a few bytes."""
        slots = b"".join(self._board.slots[rank].tobytes() for rank in self._ranks(self._here))
        try:
            self._path(self._here).write_bytes(self._board.token + slots)
        except OSError as error:
            self._tell(f"heartbeats cannot be written to {self._folder} ({error.strerror})")

    def _read(self) -> None:
        """What the other nodes show."""
        token = self._board.token
        for node in sorted(set(self._board.nodes) - {self._here}):
            ranks = self._ranks(node)
            try:
                data = self._path(node).read_bytes()
            except OSError:
                data = b""
            if data[: len(token)] == token and len(data) == len(token) + _BYTES * len(ranks):
                cells = memoryview(data[len(token) :]).cast("q")
                for place, rank in enumerate(ranks):
                    self._board.slots[rank][:] = cells[SLOT * place : SLOT * (place + 1)]
            elif self._board.slots[node][BEATS] == 0:
                self._missed[node] = self._missed.get(node, 0) + 1
                if self._missed[node] == _NO_TRIES_LEFT:
                    host = self._board.hosts[node]
                    self._tell(f"no heartbeats of {host} appear in {self._folder}: is it on a shared disk?")

    def _tell(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{text}; a rank of another node that stalls is noticed later, and not named")
