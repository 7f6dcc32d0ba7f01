"""One writer per result file: a lock that ends with the process, however it ends.

Invariant: two jobs never write the same result file at once where the file system has locks at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from fedmpi.errors import OutputError, UserError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def writer_lock(run_path: Path, enabled: bool = True) -> Iterator[None]:
    """Hold the lock of a result file; a UserError if another job holds it. `enabled` on rank 0 only."""
    if not enabled:
        yield
        return
    path = run_path.with_name(f".{run_path.name}.lock")
    with _open_locked(path, run_path) as file:
        try:
            file.truncate(0)
            # Not through the file's buffer, which would try again when it is closed.
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:
            raise OutputError.from_os(error, run_path) from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _open_locked(path: Path, run_path: Path) -> TextIO:
    """The lock file, locked, and still under that name."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "a+")  # noqa: SIM115, the caller closes it
        except OSError as error:
            raise OutputError.from_os(error, run_path) from None
        _take(file, run_path)
        # The holder before us may have removed the file between our opening and locking it.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()


def _take(file: TextIO, run_path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return  # a file system without locks: continue without one
        file.seek(0)
        holder = file.read() or "unknown"
        file.close()
        raise UserError(
            f"{run_path}: another job is writing this file ({holder}); wait for it, or choose another name"
        ) from None
