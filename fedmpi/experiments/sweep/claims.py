"""Who does which run: claims as files on a shared file system, for any number of jobs and hosts.

A claim is a file NAME.claim-<number>; the highest number is valid. The process that creates the next
number, which succeeds for one process only, holds the run; it may try only when the previous claim was
released or its holder is dead. Claims are never removed, so that a process with an old view of the folder
cannot create a number that existed before. Invariant: a run has at most one living holder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any

from fedmpi.errors import OutputError
from fedmpi.storage.files import write_contended
from fedmpi.storage.holder import (
    STALE_SECONDS,
    file_server_time,
    identity,
    is_before_requeue,
    process_start,
)

HEARTBEAT_SECONDS = 15.0
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class Claim:
    """A run held by this process, until `release`. A thread keeps touching the file meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Release it for others; call this after the outcome is on disk. Again it does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            write_contended(self.path, json.dumps(identity() | {"released": True}).encode())


def take(folder: Path, name: str) -> Claim | None:
    """Claim a run; None if another living process holds it."""
    number, holder = newest(folder, name)
    if holder is not None and is_alive(holder):
        return None
    path = folder / f"{name}.claim-{number + 1}"
    return Claim(path) if _create(path, json.dumps(identity()).encode()) else None


def is_held(folder: Path, name: str) -> bool:
    """Whether a living process works on it."""
    _, holder = newest(folder, name)
    return holder is not None and is_alive(holder)


def newest(folder: Path, name: str) -> tuple[int, dict[str, Any] | None]:
    """Number of the valid claim, 0 without one; and its contents."""
    # Numbers grow by one: looking for the next name is cheaper than listing thousands.
    number = 0
    while (folder / f"{name}.claim-{number + 1}").exists():
        number += 1
    if number == 0:
        return 0, None
    path = folder / f"{name}.claim-{number}"
    try:
        touched = path.stat().st_mtime
        holder = json.loads(path.read_text())
    except (OSError, ValueError):  # just being written, on a file system without links
        holder, touched = {}, time.time()
    return number, holder | {"touched": touched, "folder": str(folder)}


def is_alive(holder: dict[str, Any]) -> bool:
    """Whether the process behind a claim still works on it."""
    if holder.get("released"):
        return False
    here = identity()
    if holder.get("machine") == here["machine"]:
        return process_start(holder["pid"]) == holder["start"]
    if is_before_requeue(holder, here):
        return False
    return file_server_time(Path(holder["folder"])) - holder["touched"] < STALE_SECONDS


def _create(path: Path, text: bytes) -> bool:
    """Make a file with all its contents; False if it exists. True for one process only."""
    partial = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        partial.write_bytes(text)
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
        # NFS may lose the reply for a link that was made: the link count is reliable.
        return partial.stat().st_nlink == 2
    except OSError as error:
        if error.errno in _NO_LINKS:
            return _create_exclusively(path, text)
        raise OutputError.from_os(error, path) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _create_exclusively(path: Path, text: bytes) -> bool:
    try:
        with open(path, "xb") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise OutputError.from_os(error, path) from None
    return True
