"""HDF5 files that appear whole or not at all.

A file is built in memory, or on disk if it is too large for that, by ordinary system calls to a temporary
name, synced and renamed. HDF5 itself never writes to disk: a write that fails inside the library can crash
the process, and its locks cause trouble on network file systems. Nor does the library read a damaged file
in this process, on which it may crash or hang: files end with a seal, a SHA-256 of their bytes, which HDF5
ignores.
Invariant: under its own name a file is always complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from fedmpi.errors import OutputError, UserError
from fedmpi.mpi.watch import pulse

_MAGIC = b"\nfedmpi-sha256:"
_SEAL_SIZE = len(_MAGIC) + hashlib.sha256().digest_size
_PIECE = 1 << 24
_TRIAL_SECONDS = 10
_TRIAL = """
import sys, h5py
def read(name, item):
    dict(item.attrs)
    isinstance(item, h5py.Dataset) and item[()]
with h5py.File(sys.argv[1], "r", locking=False) as file:
    dict(file.attrs)
    file.visititems(read)
"""


@contextlib.contextmanager
def replacing(path: Path, *, copy: bool = False, on_disk: bool = False) -> Iterator[h5py.File]:
    """A file in memory, empty or a copy of `path`; sealed, it replaces `path` unless an error occurs.

    `on_disk`: for what is too large for memory, and stands in other files until this one is complete.
    """
    if on_disk:
        with _replacing_on_disk(path) as file:
            yield file
        return
    try:
        image = path.read_bytes() if copy else None
    except OSError as error:
        raise OutputError.from_os(error, path) from None

    # v110: attributes above 64 kB (long configs) need it.
    with h5py.File.in_memory(image, libver=("v110", "v110")) as file:
        yield file
        file.flush()
        data = file.id.get_file_image()

    # Not reached after an error: the old file stays.
    write_whole(path, data + _seal(data))


@contextlib.contextmanager
def _replacing_on_disk(path: Path) -> Iterator[h5py.File]:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _FileOfHdf5(partial, "w+") as raw:
            try:
                with h5py.File(raw, "w", libver=("v110", "v110")) as file:
                    yield file
            finally:  # what HDF5 says of a disk that failed is only a consequence
                raw.raise_error()

            # Its checksum, piece by piece.
            raw.seek(0)
            sha = hashlib.sha256()
            while piece := raw.read(_PIECE):
                sha.update(piece)
                pulse.here.tick()
            raw.write(_MAGIC + sha.digest())
            raw.raise_error()
            os.fsync(raw.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OutputError.from_os(error, path) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


class _FileOfHdf5(io.FileIO):
    """A file in which no write fails as HDF5 sees it, which may crash on one; the error is raised later."""

    error: OSError | None = None

    def raise_error(self) -> None:
        """The first error, if there was one."""
        if self.error:
            raise self.error from None

    def write(self, data: Any) -> int:
        """All of it, in pieces, since a slow disk is no stall; nothing any more after an error."""
        left = memoryview(data).cast("B")
        while len(left) and not self.error:
            try:
                left = left[super().write(left[:_PIECE]) :]
            except OSError as error:
                self.error = error
            pulse.here.tick()
        return memoryview(data).nbytes

    def readinto(self, room: Any) -> int:
        """All of it; zeros in place of what could not be written."""
        left = memoryview(room).cast("B")
        while len(left) and (count := super().readinto(left)):
            left = left[count:]
        left[:] = bytes(len(left))
        return memoryview(room).nbytes

    def truncate(self, size: int | None = None) -> int:
        """To the size that HDF5 wants."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def _seal(data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(data).digest()


def read_sealed(path: Path) -> bytes | None:
    """The bytes of a file before its seal; None without a seal, UserError if the seal does not match."""
    try:
        sealed = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None

    # The seal is at the end of the file.
    data, seal = sealed[:-_SEAL_SIZE], sealed[-_SEAL_SIZE:]
    if not seal.startswith(_MAGIC):
        return None
    if seal != _seal(data):
        raise UserError(f"{path}: damaged, its contents do not match its checksum")
    return data


def is_sealed(path: Path) -> bool:
    """As `read_sealed`, for files of any size: whether there is a seal, UserError if it does not match."""
    sha = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            left = os.fstat(file.fileno()).st_size - _SEAL_SIZE
            while left > 0 and (piece := file.read(min(left, _PIECE))):
                sha.update(piece)
                left -= len(piece)
                pulse.here.tick()
            seal = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not seal.startswith(_MAGIC) or len(seal) != _SEAL_SIZE:
        return False
    if seal != _MAGIC + sha.digest():
        raise UserError(f"{path}: damaged, its contents do not match its checksum")
    return True


def check_harmless(path: Path) -> None:
    """Refuse a file that would crash or hang HDF5. A file without a seal is tried in a child process.

    HDF5 removes the seal when it writes to a file, so a file that a user edited is tried too.
    """
    if read_sealed(path) is not None or not h5py.is_hdf5(path):
        return  # a file that is not HDF5 at all is refused when it is opened

    # A child process reads everything: only it may crash or hang.
    try:
        code = subprocess.run(
            [sys.executable, "-c", _TRIAL, str(path)], capture_output=True, timeout=_TRIAL_SECONDS
        ).returncode
    except subprocess.TimeoutExpired:
        code = -1
    if code < 0:  # ended by a signal; an ordinary error is reported when the caller reads the file
        raise UserError(f"{path}: damaged, HDF5 cannot read it; copy it again, or use an older one")


def write_contended(path: Path, data: bytes) -> None:
    """As `write_whole`, for files that several processes may write at once: the last one wins."""
    write_whole(path, data, f"{os.uname().nodename}-{os.getpid()}")


def write_whole(path: Path, data: bytes, suffix: str = "partial") -> None:
    """Write a file under a temporary name, sync and rename it."""
    partial = path.with_name(f".{path.name}.{suffix}")
    try:
        with open(partial, "wb") as file:
            for start in range(0, len(data), _PIECE):  # a slow disk is no stall
                file.write(memoryview(data)[start : start + _PIECE])
                pulse.here.tick()
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OutputError.from_os(error, path) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
