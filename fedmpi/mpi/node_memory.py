"""How much memory there is to be had: on the host, within the limits of SLURM and containers, and on a GPU.

Invariant: reads only. What the system does not tell limits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Limit, use, and the name in memory.stat of files that were read and can be dropped: versions 2 and 1.
_NAMES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


_WORKSPACES = 512 << 20  # of a rank: cuBLAS's for each stream, and those of recordings


def room_for_rank(device: torch.device | None = None, sharing: int = 1) -> int | None:
    """Bytes that each of the `sharing` ranks may still take on a device; None where nobody knows.

    A device other than a GPU, or none, means the memory of the node.
    """
    if device is not None and device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # What torch keeps for later is free for this process too.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(free // sharing + kept - min(_WORKSPACES, total // 16), 0)
    room = available_bytes()
    return None if room is None else room // sharing


def available_bytes() -> int | None:
    """Memory still available to the job on this node; None where the system does not report it.

    The least of what the machine has and what each control group above this process allows.
    """
    rooms = [*_of_machine(), *_of_groups()]
    return max(min(rooms), 0) if rooms else None


def _of_machine(path: Path = Path("/proc/meminfo")) -> Iterator[int]:
    try:
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
        yield 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return


def _of_groups(root: Path = _GROUPS, own: Path = _OWN_GROUPS) -> Iterator[int]:
    """What is left in this process's control group and in those above it: SLURM limits job and step."""
    try:
        entries = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for number, kinds, path in (entry for entry in entries if len(entry) == 3):
        # Version 2 has one tree, version 1 one for each kind. Inside a container a part may not be there.
        if number == "0" or "memory" in kinds.split(","):
            names = _NAMES[number != "0"]
            top = root if number == "0" else root / "memory"
            group = top / path.lstrip("/")
            for folder in [group, *group.parents]:
                yield from _left_in(folder, *names)
                if folder == top:
                    break


def _left_in(folder: Path, limit: str, used: str, files: str) -> Iterator[int]:
    """What one control group leaves; nothing if it has no limit."""
    try:
        numbers = [int((folder / name).read_text()) for name in (limit, used)]  # "max" is no number
        lines = (folder / "memory.stat").read_text().splitlines()
        dropped = int(dict(line.split() for line in lines).get(files, 0))
        yield numbers[0] - numbers[1] + dropped
    except (OSError, ValueError):
        return
