"""One writer per result file: a lock that ends with the process, however it ends.

The system's lock decides (flock); the lock file also says who holds it, and, every few seconds, that the
process lives and since when it has made no progress. Where a holder on another host cannot be asked, its
heartbeat decides: dead after ten minutes without one, and then only on request. Invariant: two jobs never
write the same result file at once where the file system has locks at all; a process whose lock was taken
over ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from fedmpi.errors import EXIT_FAILURE, OutputError, UserError
from fedmpi.errors.wording import command, option
from fedmpi.mpi.watch import pulse
from fedmpi.storage import holder
from fedmpi.storage.holder import file_server_time, identity, is_before_requeue, is_stopped, process_start

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_BEAT_SECONDS = 5.0
_HANGS_SECONDS = 60.0  # without progress, after which it is said how to end the holder
_RETRY_SECONDS = 0.2


@contextlib.contextmanager
def writer_lock(
    run_path: Path,
    enabled: bool = True,
    *,
    wait: float = 0.0,
    force: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Hold the lock of a result file; a UserError if another job holds it. `enabled` on rank 0 only.

    `wait`: seconds to wait for another job, about which `tell` is told once; `force`: take the lock over
    from a process on another host that gives no sign of life.
    """
    if not enabled:
        yield
        return
    path = run_path.with_name(f".{run_path.name}.lock")
    with _wait_for(path, run_path, wait, force, tell) as file:
        beat = _Heartbeat(path, file)
        try:
            file.truncate(0)
            beat.write()
        except OSError as error:
            raise OutputError.from_os(error, run_path) from None
        beat.start()
        try:
            yield
        finally:
            beat.end()
            if _is_in_place(file, path):  # not the lock of one who has taken it over
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)


class _Heartbeat(threading.Thread):
    """Writes into the lock file who holds it, for how long, and how long it has made no progress."""

    def __init__(self, path: Path, file: TextIO) -> None:
        super().__init__(name="fedmpi lock", daemon=True)
        self._path, self._file, self._who = path, file, identity()
        self._begin = self._changed = time.monotonic()
        self._progress = 0
        self._ended = threading.Event()

    def write(self) -> None:
        """Once; not through the file's buffer, which would try again when it is closed."""
        now, progress = time.monotonic(), pulse.here.slot[pulse.PROGRESS]
        if progress != self._progress:
            self._progress, self._changed = progress, now
        says = {"held": round(now - self._begin, 1), "silent": round(now - self._changed, 1)}
        text = f"process {self._who['pid']} on {self._who['host']}\n{json.dumps(self._who | says)}"
        os.pwrite(self._file.fileno(), f"{text:<600}".encode(), 0)

    def run(self) -> None:
        """Every few seconds, until the lock is released or somebody has taken it."""
        while not self._ended.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):
                self.write()
            if self._is_taken():
                text = f"fedmpi: error: {self._path}: another job has taken this lock over; this one ends\n"
                with contextlib.suppress(OSError):
                    os.write(2, text.encode())
                os._exit(EXIT_FAILURE)

    def end(self) -> None:
        """No more beats; a file system that hangs does not keep the caller."""
        self._ended.set()
        self.join(timeout=1.0)

    def _is_taken(self) -> bool:
        """Whether another process's lock file is in the place of ours."""
        if _is_in_place(self._file, self._path):
            return False
        who = _read(self._path)  # empty if it was removed by somebody; nobody else holds it
        return bool(who) and any(who.get(key) != self._who[key] for key in ("machine", "pid"))


def _is_in_place(file: TextIO, path: Path) -> bool:
    """Whether an open file is still the one under its name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _wait_for(path: Path, run_path: Path, wait: float, force: bool, tell: Callable[[str], None]) -> TextIO:
    """The lock file, locked, before the time is up."""
    limit, has_told = time.monotonic() + wait, False
    while True:
        try:
            return _open_locked(path, run_path, force=force)
        except _HeldError as error:
            if time.monotonic() >= limit:
                raise UserError(str(error)) from None
            if not has_told:
                tell(f"{run_path}: waiting up to {wait:g} s for {error.who}, which writes this file")
            has_told = True
        pulse.here.tick()  # to wait is what was asked for, and no stall
        time.sleep(_RETRY_SECONDS)


class _HeldError(UserError):
    """Another job holds the lock."""

    who = ""


def _open_locked(path: Path, run_path: Path, *, force: bool) -> TextIO:
    """The lock file, locked, and still under that name."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "a+")  # noqa: SIM115, the caller closes it
        except OSError as error:
            raise OutputError.from_os(error, run_path) from None
        if not _take(file, path, run_path, force=force):
            continue
        # The holder before us may have removed the file between our opening and locking it.
        if _is_in_place(file, path):
            _reopen_for_writing(file)
            return file
        file.close()


def _reopen_for_writing(file: TextIO) -> None:
    """A file that was opened to append ignores the place at which to write."""
    flags = fcntl.fcntl(file.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(file.fileno(), fcntl.F_SETFL, flags & ~os.O_APPEND)


def _take(file: TextIO, path: Path, run_path: Path, *, force: bool) -> bool:
    """Lock it; False to try again with a new file, since the old one was a dead process's."""
    has_locks = True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        has_locks = error.errno not in _NO_LOCKS

    # Somebody holds it; or the file system has no locks, and only what the file says counts.
    who = _read(path)
    if not has_locks and (not who or not _may_live(who)):
        return True
    file.close()
    if force and who and not _may_live(who):
        with contextlib.suppress(OSError):
            path.unlink()
        return False
    error = _HeldError(_refusal(run_path, who))
    error.who = f"process {who.get('pid', 'unknown')} on {who.get('host', 'unknown')}"
    raise error


def _read(path: Path) -> dict[str, Any]:
    """What a lock file says of its holder, and `age`, seconds since it said so; empty without that."""
    try:
        text = path.read_text()
        who = json.loads(text.partition("\n")[2] or "{}")
        age = max(file_server_time(path.parent) - path.stat().st_mtime, 0.0)
    except (OSError, ValueError):
        return {}
    return who | {"age": age} if isinstance(who, dict) and "pid" in who else {}


def _is_here(who: dict[str, Any]) -> bool:
    """Whether the holder is a process of this machine, which can be asked."""
    return who["machine"] == holder.machine()


def _may_live(who: dict[str, Any]) -> bool:
    """Whether the holder lives, as far as that can be known."""
    if _is_here(who):
        return process_start(who["pid"]) == who["start"]
    return not is_before_requeue(who, identity()) and who["age"] < holder.STALE_SECONDS


def _refusal(run_path: Path, who: dict[str, Any]) -> str:
    """Who holds the lock, since when, whether it makes progress, and what to do."""
    text = f"{run_path}: another job is writing this file"
    remedy = (
        f"wait for it ({command('resume', run_path)} with {option('wait', 60)}), or choose another name"
    )
    if not who:
        return f"{text} (unknown); {remedy}"
    silent, pid = who["silent"] + who["age"], who["pid"]
    text += (
        f" (process {pid} on {who['host']}, for {_seconds(who['held'] + who['age'])}, since {who['time']} "
        f"by its clock; it made progress {_seconds(silent)} ago)"
    )

    # A holder that will not end by itself.
    if not _is_here(who):
        if _may_live(who):
            return f"{text}; its last heartbeat is {_seconds(who['age'])} old; {remedy}"
        return (
            f"{text}; it is on another host, has given no sign of life for {_seconds(who['age'])}, and "
            f"counts as dead; make sure that it is, then take the file over with {option('force-lock')}"
        )
    if is_stopped(pid):
        return f"{text}; that process is stopped: `kill -CONT {pid}` continues it, `kill -9 {pid}` ends it"
    if silent > _HANGS_SECONDS:
        return f"{text}; it may hang: `kill {pid}` ends it with a checkpoint, `kill -9 {pid}` in any case"
    return f"{text}; {remedy}"


def _seconds(seconds: float) -> str:
    """A duration in words.

    >>> _seconds(4.2), _seconds(200), _seconds(90000)
    ('4 s', '3 min', '25 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
