"""Which rank computes where: a table printed at the start of a run and stored in its file.

Invariant: pure functions of what each rank reports; nothing is decided here.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_MOST_LINES = 16


@dataclass(frozen=True, kw_only=True)
class Place:
    """What one rank reports about itself."""

    rank: int
    host: str
    node_rank: int
    device: str  # "cpu", "cuda:1"
    name: str  # "cpu", "NVIDIA A100"
    cores: tuple[int, ...]  # that it may run on
    core_quota: float | None  # cores that its container may use at a time; None without a limit
    threads: int
    visible_gpus: int
    note: str = ""  # a likely mistake
    gpu: str = ""  # identifies the device, as each rank may see its own as cuda:0
    takes_turns: bool = False  # a GPU that computes for one rank at a time


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on: what the launcher bound it to, and SLURM's cgroup allows."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def to_json(places: Sequence[Place]) -> str:
    """For an attribute of the result file."""
    return json.dumps([asdict(place) for place in places])


def from_json(text: str) -> list[Place]:
    """What `to_json` wrote."""
    return [Place(**entry | {"cores": tuple(entry["cores"])}) for entry in json.loads(text)]


def core_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many cores the control group lets this process use at a time; None without a limit."""
    for name, divide in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = (root / name).read_text().split()
            quota = words[0]
            period = words[1] if divide is None else (root / divide).read_text()
            return None if quota in ("max", "-1") else float(quota) / float(period)
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            continue
    return None


def table(places: Sequence[Place]) -> list[str]:
    """One line for each device of each host: which ranks compute there."""
    # The ranks of each device.
    by_device: dict[tuple[str, str, str, str], list[Place]] = defaultdict(list)
    for place in places:
        by_device[place.host, place.device, place.name, place.gpu].append(place)

    # A line for each; a long table is cut.
    width = max((len(host) for host, *_ in by_device), default=0)
    lines = []
    for (host, device, name, gpu), here in by_device.items():
        threads = f", {here[0].threads} threads each" if here[0].threads > 1 else ""
        what = (
            f"{device} ({name}{f', {gpu}' if gpu else ''})"
            if device != name
            else f"{device}, {_cores(here)}{threads}"
        )
        lines.append(
            f"{host:<{width}}  rank{'s' * (len(here) > 1)} {_ranges([p.rank for p in here])}: {what}"
        )
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"... and {len(lines) - _MOST_LINES + 1} more devices: `fedmpi info`"]
    return lines


def notes(places: Sequence[Place]) -> list[str]:
    """Likely mistakes, one sentence each."""
    problems = [place.note for place in places if place.note]
    by_host: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        by_host[place.host].append(place)

    # On each host: more threads than cores, or unused GPUs.
    for host, here in by_host.items():
        computing = sum(place.threads for place in here if place.device == "cpu")
        cores = _num_cores(here)
        if computing > cores:
            problems.append(
                f"{computing} threads of {len(here)} ranks share {_cores(here)} of {host}: "
                "use fewer ranks, or ask for more cores (SLURM: --cpus-per-task)"
            )
        used = {(place.device, place.gpu) for place in here if place.device != "cpu"}
        if used and len(used) < max(place.visible_gpus for place in here):
            problems.append(
                f"{host}: {max(place.visible_gpus for place in here)} GPUs are visible, {len(used)} used: "
                "each rank uses one GPU"
            )

    # Over all hosts: shared GPUs, and mixed devices.
    problems += _shared_gpus(places)
    kinds = sorted({"CPU" if place.device == "cpu" else place.name for place in places})
    if len(kinds) > 1:
        how = "with `run.device`" if "CPU" in kinds else "(SLURM: --constraint, --gpus-per-node=KIND:N)"
        problems.append(
            f"ranks on {' and '.join(kinds)}: different kinds of devices round differently, so the bits "
            f"depend on which rank trains which client; choose one kind {how}"
        )
    return list(dict.fromkeys(problems))


def _shared_gpus(places: Sequence[Place]) -> list[str]:
    """A sentence on the GPU with the most ranks, if there are several."""
    by_gpu: dict[tuple[str, str, str], list[Place]] = defaultdict(list)
    for place in places:
        if place.device != "cpu":
            by_gpu[place.host, place.device, place.gpu].append(place)
    here = max(by_gpu.values(), key=len, default=[])
    if len(here) < 2:
        return []
    shared = f"{len(here)} ranks share a GPU ({here[0].device} of {here[0].host})"
    if not here[0].takes_turns:
        return [shared]
    return [
        f"{shared}; without MPS they take turns: use one rank a GPU, or start "
        "`nvidia-cuda-mps-control -d` on each node"
    ]


def _num_cores(here: Sequence[Place]) -> float:
    """Cores that the ranks of a host share."""
    cores = len(set(itertools.chain.from_iterable(place.cores for place in here)))
    return cores if here[0].core_quota is None else min(cores, here[0].core_quota)


def _cores(here: Sequence[Place]) -> str:
    cores = _num_cores(here)
    return f"{cores:g} core{'s' * (cores != 1)}"


def _ranges(numbers: Sequence[int]) -> str:
    """Integers as readable ranges.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
