"""What the simulated device has done since `reset`."""

from __future__ import annotations

from collections import Counter

# kernels, graph_launches, graph_kernels, recordings, waits, copies_to_host, bytes_to_host,
# copies_to_device, bytes_to_device, allocations, sorts (radix sorts behind deterministic scatters)
counts: Counter[str] = Counter()
operations: Counter[str] = Counter()  # kernels by name, those outside of graphs


def reset() -> None:
    """Count from zero."""
    counts.clear()
    operations.clear()
