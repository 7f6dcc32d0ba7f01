"""A disk that fails at one operation of those that write below a folder: the k-th."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class BadDisk:
    """Counts operations of the main thread; the one with the number `fails_at` goes wrong."""

    def __init__(self, folder: Path, fails_at: int) -> None:
        self.folder, self.fails_at = folder, fails_at
        self.count = 0
        self.failed = ""  # the operation

    def _is_bad(self, name: str) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return False
        self.count += 1
        if self.count == self.fails_at:
            self.failed = name
        return self.count == self.fails_at

    def is_below(self, path: Any) -> bool:
        """Whether a path is on this disk."""
        return isinstance(path, str | os.PathLike) and Path(os.fspath(path)).resolve().is_relative_to(
            self.folder
        )

    def operation(self, name: str, real: Any, number: int) -> Any:
        """A function of `os` that may fail before it has done anything."""

        def attempt(*arguments: Any, **options: Any) -> Any:
            if self._is_bad(name):
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        return attempt

    def open(self, real: Any) -> Any:
        """`open`, whose files may be full after half of what is written to them."""

        def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if mode == "wb" and self.is_below(path):
                return io.BufferedWriter(_File(path, self))
            return real(path, mode, *arguments, **options)

        return opened


class _File(io.FileIO):
    def __init__(self, path: Any, disk: BadDisk) -> None:
        super().__init__(path, "w")
        self._disk = disk

    def write(self, data: Any) -> int:
        if self._disk._is_bad("write"):
            super().write(memoryview(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@contextlib.contextmanager
def bad_disk(folder: Path, fails_at: int) -> Iterator[BadDisk]:
    """ENOSPC in a write, EIO in fsync and rename, whatever is the k-th; afterwards all is well again."""
    disk = BadDisk(folder.resolve(), fails_at)
    kept = builtins.open, io.open, os.fsync, os.replace, os.pwrite
    builtins.open = io.open = disk.open(builtins.open)
    os.fsync = disk.operation("fsync", os.fsync, errno.EIO)
    os.replace = disk.operation("replace", os.replace, errno.EIO)
    os.pwrite = disk.operation("pwrite", os.pwrite, errno.ENOSPC)
    try:
        yield disk
    finally:
        builtins.open, io.open, os.fsync, os.replace, os.pwrite = kept
