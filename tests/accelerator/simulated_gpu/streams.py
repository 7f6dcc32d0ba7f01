"""Streams of the simulated device: who waited for whom, and who touches memory without having waited.

Work is done at once and in the order of the program; what a stream may rely on is followed by counters: a
stream knows how far it has waited for every other one. Two streams that touch the same bytes, one of them
writing, without one having waited for the other, are a race.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator

import torch

from tests.accelerator.simulated_gpu import memory
from tests.accelerator.simulated_gpu.counting import counts

_MOST_TOUCHES = 256  # remembered of each storage

_numbers = itertools.count()
_current: list[Stream] = []
_waits = [0]  # so far
# Of each storage: (first byte, last byte, stream, its counter, whether it wrote).
_touches: dict[int, list[tuple[int, int, int, int, bool]]] = defaultdict(list)


class Stream:
    """torch.cuda.Stream"""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.number = next(_numbers)
        self.done = 0  # kernels
        self.knows: dict[int, int] = {}  # kernels of other streams that come before all later work here

    def wait_stream(self, other: Stream) -> None:
        """Later work here comes after all earlier work there."""
        for number, done in other.knows.items():
            self.knows[number] = max(self.knows.get(number, 0), done)
        self.knows[other.number] = max(self.knows.get(other.number, 0), other.done)

    def synchronize(self) -> None:
        """The host waits."""
        wait("Stream.synchronize")


class Event:
    """torch.cuda.Event"""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work so far."""
        self._waits = _waits[0]

    def synchronize(self) -> None:
        """The host waits."""
        wait("Event.synchronize")

    def query(self) -> bool:
        """Whether the host is sure to find the work complete."""
        return _waits[0] > self._waits


_default = Stream()


def current() -> Stream:
    """torch.cuda.current_stream"""
    return _current[-1] if _current else _default


@contextlib.contextmanager
def on(stream: Stream) -> Iterator[None]:
    """torch.cuda.stream"""
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


def wait(what: str) -> None:
    """The host waits for the device."""
    from tests.accelerator.simulated_gpu import graphs

    counts["waits"] += 1
    if graphs.recording() is not None:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")
    memory.settle()
    _waits[0] += 1
    _touches.clear()


def touched(tensors: list[torch.Tensor], written: list[torch.Tensor]) -> None:
    """A kernel on the current stream: refuse a race with another stream."""
    stream = current()
    stream.done += 1
    writes = {id(tensor) for tensor in written}
    for tensor in tensors:
        if not memory.is_here(tensor) or not tensor.numel():
            continue
        first = tensor.data_ptr()
        last = first + memory.span(tensor.shape, tensor.stride()) * tensor.element_size()
        is_write = id(tensor) in writes
        seen = _touches[tensor.untyped_storage().data_ptr()]
        for begin, end, other, done, wrote in seen:
            overlaps = begin < last and first < end
            is_conflict = other != stream.number and overlaps and (wrote or is_write)
            if is_conflict and stream.knows.get(other, 0) < done:
                raise RuntimeError(
                    f"simulated device: streams {other} and {stream.number} touch the same memory "
                    f"{tuple(tensor.shape)} without waiting for each other"
                )
        seen.append((first, last, stream.number, stream.done, is_write))
        del seen[:-_MOST_TOUCHES]


def all_done() -> None:
    """Nothing is under way: torch waits before a recording, and recording executes nothing."""
    _touches.clear()


def forget(tensor: torch.Tensor) -> None:
    """Memory that is new: nobody touched it."""
    _touches.pop(tensor.untyped_storage().data_ptr(), None)
