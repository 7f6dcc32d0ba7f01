"""HDF5 files that appear whole or not at all.

A file is built in memory and written by ordinary system calls to a temporary name, synced and renamed.
HDF5 itself never writes to disk: a write that fails inside the library can crash the process, and its
locks trouble network file systems. Invariant: under its own name a file is always complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import h5py

from fedmpi.errors import OutputError, UserError

_SEAL = hashlib.sha256().digest_size


@contextlib.contextmanager
def replacing(path: Path, *, copy: bool = False, seal: bool = False) -> Iterator[h5py.File]:
    """A file in memory, empty or a copy of `path`; it replaces `path` when all went well.

    `seal` appends a SHA-256 of all bytes, which HDF5 passes over and `read_sealed` checks.
    """
    try:
        image = path.read_bytes() if copy else None
    except OSError as error:
        raise OutputError.from_os(error, path) from None
    # v110: attributes above 64 kB (long configs) need it.
    with h5py.File.in_memory(image, libver=("v110", "v110")) as file:
        yield file
        file.flush()
        data = file.id.get_file_image()
    write_whole(path, data + hashlib.sha256(data).digest() if seal else data)


def read_sealed(path: Path) -> bytes:
    """The bytes of a sealed file; UserError if any of them changed.

    A damaged file must not reach the HDF5 library, which may crash on it or never return.
    """
    try:
        sealed = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    data, seal = sealed[:-_SEAL], sealed[-_SEAL:]
    if hashlib.sha256(data).digest() != seal:
        raise UserError(f"{path}: damaged, its contents do not match its checksum")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, sync and rename it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OutputError.from_os(error, path) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
