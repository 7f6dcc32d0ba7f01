"""Who holds a file: a process, so named that others can tell whether it lives, here or on another host.

Invariant: no clock of another host is believed. Ages are taken by the file server's clock; what a holder
says of its own time are durations.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import Any

# On another host a holder counts as dead when its file was not touched for this long.
STALE_SECONDS = float(os.environ.get("FEDMPI_CLAIM_TIMEOUT", "600"))


def identity() -> dict[str, Any]:
    """Identifies this process, so that others can tell whether it is alive."""
    restart = os.environ.get("SLURM_RESTART_COUNT", "")
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "start": process_start(os.getpid()),
        "machine": machine(),
        "slurm_job": os.environ.get("SLURM_JOB_ID", ""),
        "slurm_restart": int(restart) if restart.isdecimal() else 0,
    }


def machine() -> str:
    """The scope in which a process id is unique: one boot of one host, one namespace."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()} {secrets.token_hex(8)}"  # unknown: never the same


def process_start(pid: int) -> str | None:
    """When a process began, None if there is none; process ids are reused."""
    values = _process_values(pid)
    return None if not values or values[0] in "ZX" else values[19]


def is_stopped(pid: int) -> bool:
    """Whether a process of this host is stopped by a signal."""
    return _process_values(pid)[:1] in (["T"], ["t"])


def _process_values(pid: int) -> list[str]:
    """What the system says of a process, from its state on; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return re.sub(r"^.*\)", "", stat, flags=re.DOTALL).split()


def is_before_requeue(holder: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether it is this SLURM job before a requeue, on hosts that it no longer has."""
    same_job = here["slurm_job"] and holder.get("slurm_job") == here["slurm_job"]
    return bool(same_job) and holder["slurm_restart"] < here["slurm_restart"]


def file_server_time(folder: Path) -> float:
    """Time by the file server's clock, which may differ from ours."""
    probe = folder / f".clock-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
