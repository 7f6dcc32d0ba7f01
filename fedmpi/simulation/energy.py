"""What the nodes of a job use, in joules: packages and memory by RAPL, GPUs by NVML, where they tell.

A node's counters count everything that runs on it. Invariant: reading them changes nothing in a run, and
all ranks agree at the start whether there are any, since a sum over ranks follows.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmpi.mpi import Comm

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"
_LOOK_SECONDS = 5.0  # a counter of RAPL wraps around after minutes at full load


@dataclass
class Counter:
    """One counter in joules; `wraps_at`: where it begins again at zero."""

    read: Callable[[], float]
    wraps_at: float = 0.0
    last: float = 0.0

    def passed(self) -> float:
        """Joules since the call before."""
        before, self.last = self.last, self.read()
        return self.last - before + (self.wraps_at if self.last < before else 0.0)


class EnergyMeter:
    """The counters of all nodes of a run; the first rank of a node reads those of its node."""

    def __init__(self, comm: Comm, num_packed: int = 1) -> None:
        """Collective. `num_packed`: runs that share the nodes, each of which counts its part."""
        self._comm, self._share = comm, 1 / num_packed
        self._counters = list(_found()) if comm.node_rank == 0 else []
        self.is_there = bool(comm.maximum(np.array([float(len(self._counters))]))[0])
        self._joules, self._next = 0.0, 0.0

    def start(self) -> None:
        """Count from now on."""
        self._look()
        self._joules = 0.0

    def tick(self) -> None:
        """Look at the counters before they wrap around."""
        if self._counters and time.monotonic() >= self._next:
            self._look()

    def take(self) -> float:
        """Collective. Joules of all nodes since the call before."""
        self._look()
        total = np.array([self._joules * self._share])
        self._joules = 0.0
        self._comm.sum_in_place(total)
        return float(total[0])

    def _look(self) -> None:
        self._next = time.monotonic() + _LOOK_SECONDS
        with contextlib.suppress(OSError):  # a GPU that fell off the bus, say: the others still count
            self._joules += sum(counter.passed() for counter in self._counters)


def _found() -> Iterator[Counter]:
    """Every counter that this process may read."""
    for counter in (*_rapl(), *_nvml()):
        with contextlib.suppress(OSError, ValueError):
            counter.passed()
            yield counter


def _rapl() -> Iterator[Counter]:
    """Packages, and memory that they do not count; Linux often lets only root read these files."""
    for zone in sorted(POWERCAP.glob("intel-rapl:*")):
        with contextlib.suppress(OSError, ValueError):
            name = (zone / "name").read_text().strip()
            if name.startswith("package") or name == "dram":
                wraps_at = int((zone / "max_energy_range_uj").read_text()) / 1e6
                yield Counter(lambda file=zone / "energy_uj": int(file.read_text()) / 1e6, wraps_at)


def _nvml() -> Iterator[Counter]:
    """Every GPU that the driver shows; before Volta they do not count."""
    try:
        library = ctypes.CDLL(NVML)
        count = ctypes.c_uint()
        if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
    except (OSError, AttributeError):  # no driver, or another library of that name
        return

    def joules(device: ctypes.c_void_p) -> float:
        value = ctypes.c_ulonglong()
        if library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(value)):
            raise OSError("this GPU does not tell")
        return value.value / 1000

    for index in range(count.value):
        device = ctypes.c_void_p()
        if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            yield Counter(lambda device=device: joules(device))
