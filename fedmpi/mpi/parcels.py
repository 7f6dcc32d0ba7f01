"""Objects for all ranks of a group: what is large in them, their arrays, travels as it is, in pieces.

A pickle of an object with its arrays would take twice their memory, and beyond 2 GB older MPIs do not send
it. On one node the arrays can be in memory once for all ranks: in a file without a name, which goes when
the last of them does not use it any more. Invariant: shared arrays are read-only.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import shutil
import tempfile
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_PIECE = 1 << 30  # bytes of a message
_SMALL = 1 << 20
_LINE = 64
_MEMORY = "/dev/shm"


def give(group: Any, value: T) -> T:
    """Collective. The value of the group's first rank, on all its ranks."""
    if group.size == 1:
        return value
    head, parts = _packed(value) if group.rank == 0 else (None, [])
    head, sizes = group.bcast((head, [part.nbytes for part in parts]))
    arrays = parts if group.rank == 0 else [np.empty(size, np.uint8) for size in sizes]
    for array in arrays:
        for start in range(0, len(array), _PIECE):
            group.Bcast(array[start : start + _PIECE], root=0)
    return value if group.rank == 0 else pickle.loads(head, buffers=arrays)


def share(node: Any, value: T) -> T:
    """Collective. As `give`, for ranks of one node: large arrays are in memory once, and read-only."""
    if node.size == 1:
        return value
    path = head = None
    sizes: list[int] = []
    if node.rank == 0:
        head, parts = _packed(value)
        sizes = [part.nbytes for part in parts]
        if sum(sizes) > _SMALL:
            path = _written(parts)
    head, sizes, path = node.bcast((head, sizes, path))
    if path is None:
        return give(node, value)

    # Every rank opens it; then it needs no name.
    opened = _opened(path)
    is_everywhere = all(node.allgather(opened is not None))
    if node.rank == 0:
        os.unlink(path)
    if not is_everywhere:
        return give(node, value)
    starts = np.cumsum([0, *(_padded(size) for size in sizes)]).tolist()
    views = [opened[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    return pickle.loads(head, buffers=views)


def _packed(value: Any) -> tuple[bytes, list[np.ndarray]]:
    """A small pickle, and the bytes of the arrays that belong to it."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return head, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _written(parts: list[np.ndarray]) -> str | None:
    """A file in the node's memory with all parts; None where that does not work."""
    total = sum(_padded(part.nbytes) for part in parts)
    path = None
    try:
        if shutil.disk_usage(_MEMORY).free < 2 * total:
            return None
        handle, path = tempfile.mkstemp(prefix="fedmpi-parcel-", dir=_MEMORY)
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part.data)
                file.write(bytes(_padded(part.nbytes) - part.nbytes))
        return path
    except OSError:
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return None


def _opened(path: str) -> memoryview | None:
    try:
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
