"""Where the time goes, by phase."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from fedmpi.mpi.watch import pulse
from fedmpi.storage.columns import DEVICE_MEMORY, IN_ALL, MEMORY

if TYPE_CHECKING:
    import torch


class Phase:
    """Counts the time of `with` blocks, and shows other ranks where this one is.

    A class of its own: a round has ten such blocks.
    """

    __slots__ = ("_begin", "_code", "_name", "_seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name, self._code = seconds, name, pulse.CODES.get(name, 0)

    def __enter__(self) -> None:
        pulse.here.at(self._code)
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        pulse.here.at(0)
        self._seconds[self._name] += time.perf_counter() - self._begin


class Stopwatch:
    """Seconds spent in named phases."""

    def __init__(self, offset: float = 0.0, shared: Stopwatch | None = None) -> None:
        """`shared`: the phases of another run in the same pack."""
        self.offset = offset  # the time of earlier legs of a run
        self._begin = time.perf_counter()
        self.seconds: dict[str, float] = shared.seconds if shared else defaultdict(float)
        self._phases: dict[str, Phase] = {}

    def start(self) -> None:
        """Count from now on: the time before this was preparation."""
        self._begin = time.perf_counter()

    def __call__(self, phase: str) -> Phase:
        """Count the time of a `with` block towards a phase; blocks of one phase are not nested."""
        if phase not in self._phases:
            self._phases[phase] = Phase(self.seconds, phase)
        return self._phases[phase]

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run, earlier legs included."""
        return self.offset + self.elapsed_here

    @property
    def elapsed_here(self) -> float:
        """Seconds of this leg."""
        return time.perf_counter() - self._begin

    def phases(self, device: torch.device) -> dict[str, float]:
        """Where this rank's time went, and the most memory it took."""
        return {
            **self.seconds,
            IN_ALL: self.elapsed_here,
            MEMORY: peak_memory_mb(),
            DEVICE_MEMORY: peak_device_memory_mb(device),
        }


def peak_memory_mb() -> float:
    """Peak memory of this process."""
    try:
        with open("/proc/self/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["VmHWM"].split()[0]) / 1024
    except (OSError, KeyError):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_device_memory_mb(device: torch.device) -> float:
    """The most memory that tensors of this process took on a GPU; 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    import torch  # loaded already, by whoever made the device

    return torch.cuda.max_memory_allocated(device) / 2**20
