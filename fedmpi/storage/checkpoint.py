"""Checkpoints: everything a run needs to continue on any number of ranks, by client and never by rank.

A checkpoint is an HDF5 file beside the result file, RUN.h5.checkpoint-<rounds>. It is written after the
results that it names (`rows` of each table), so that no round can appear twice or be missing. Invariants:
it appears whole (temporary name, sync, rename); a checksum covers every byte; the two newest are kept,
and a damaged one is skipped with a note. It holds only numbers and text, nothing executable.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.files import is_sealed, read_sealed, replacing

FORMAT = "fedmpi-checkpoint"
FORMAT_VERSION = 1
_PART_FORMAT = "fedmpi-checkpoint-part"
_KEPT = 2
_IN_MEMORY = 1 << 26  # larger parts go to the disk without a copy of them in memory
_ROWS_BYTES = 1 << 26
_GROUPS = ("participation", "method")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run after `completed` rounds."""

    run_id: str
    completed: int
    anchor_round: int
    rows: dict[str, int]  # rows of each table of the result file
    wall_time_s: float
    digests: dict[str, str]  # of what must not change: data, model, participation
    global_params: np.ndarray
    accumulated: np.ndarray
    minibatches_drawn: np.ndarray  # by client
    participation: dict[str, np.ndarray]  # state of the selection
    method: dict[str, np.ndarray] = field(default_factory=dict)  # the method's state, the same on all ranks
    parts: int = 0  # files with the clients' tables, one for each rank that wrote

    def _header(self) -> dict[str, Any]:
        names = ("run_id", "completed", "anchor_round", "rows", "wall_time_s", "digests", "parts")
        return {name: getattr(self, name) for name in names}

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("global_params", "accumulated", "minibatches_drawn")
        own = {name: getattr(self, name) for name in names}
        for group in _GROUPS:
            own |= {f"{group}/{name}": value for name, value in getattr(self, group).items()}
        return own


def write_checkpoint(run_path: Path, checkpoint: Checkpoint) -> Path:
    """Store a checkpoint beside a result file and remove all but the two newest."""
    # A header as JSON, the arrays as datasets.
    path = run_path.with_name(f"{run_path.name}.checkpoint-{checkpoint.completed}")
    header, arrays = json.dumps(checkpoint._header(), sort_keys=True), checkpoint._arrays()
    with replacing(path) as file:
        file.attrs.update(format=FORMAT, format_version=FORMAT_VERSION, header=header)
        for name, array in arrays.items():
            file.create_dataset(name, data=array)

    # Older ones go only after the new one is complete.
    for old in find_checkpoints(run_path)[_KEPT:]:
        _remove(old)
    return path


def write_part(
    run_path: Path, run_id: str, completed: int, rank: int, parts: int, arrays: dict[str, np.ndarray]
) -> None:
    """Store the tables of one rank's clients, of so many parts; before the checkpoint that counts them."""
    on_disk = sum(array.nbytes for array in arrays.values()) > _IN_MEMORY
    with replacing(_part_path(run_path, completed, rank), on_disk=on_disk) as file:
        file.attrs.update(format=_PART_FORMAT, run_id=run_id, parts=parts)
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def check_part(run_path: Path, checkpoint: Checkpoint, rank: int) -> Path:
    """Where `write_part` stored the tables of a rank; a missing or damaged part is a UserError."""
    path = _part_path(run_path, checkpoint.completed, rank)
    if not is_sealed(path):
        raise UserError(f"{path}: not a part of a checkpoint, or truncated")

    # It must belong to the same run as the checkpoint, and have all clients that the checkpoint expects in
    # it: a job on other ranks that went back to an older checkpoint may have written parts for this one.
    with h5py.File(path, "r", locking=False) as file:
        if file.attrs.get("format") != _PART_FORMAT or file.attrs.get("run_id") != checkpoint.run_id:
            raise UserError(f"{path}: not a part of this run's checkpoint")
        of = int(file.attrs.get("parts", checkpoint.parts))
        if of != checkpoint.parts:
            raise UserError(f"{path}: one of {of} parts, the checkpoint has {checkpoint.parts}")
    return path


def read_part(run_path: Path, checkpoint: Checkpoint, rank: int) -> Iterator[dict[str, np.ndarray]]:
    """What `write_part` stored, some rows at a time; its checksum was looked at by `newest_checkpoint`."""
    with h5py.File(_part_path(run_path, checkpoint.completed, rank), "r", locking=False) as file:
        names = _dataset_names(file)
        widths = [file[name].dtype.itemsize * int(np.prod(file[name].shape[1:])) for name in names]
        at_once = max(_ROWS_BYTES // max(sum(widths), 1), 1)
        for first in range(0, len(file["clients"]), at_once):
            yield {name: file[name][first : first + at_once] for name in names}


def _part_path(run_path: Path, completed: int, rank: int) -> Path:
    return run_path.with_name(f"{run_path.name}.checkpoint-{completed}.part-{rank}")


def _remove(path: Path) -> None:
    """A checkpoint and its parts."""
    for part in [path, *path.parent.glob(f"{glob.escape(path.name)}.part-*")]:
        with contextlib.suppress(OSError):
            part.unlink()


def find_checkpoints(run_path: Path) -> list[Path]:
    """The checkpoints of a result file, newest first."""
    pattern = re.compile(re.escape(run_path.name) + r"\.checkpoint-(\d+)")
    numbered = []
    with contextlib.suppress(OSError):
        for path in run_path.parent.iterdir():
            if match := pattern.fullmatch(path.name):
                numbered.append((int(match[1]), path))
    return [path for _, path in sorted(numbered, reverse=True)]


def remove_checkpoints(run_path: Path) -> None:
    """Remove an earlier run's checkpoints, before its result file is overwritten."""
    for path in find_checkpoints(run_path):
        _remove(path)


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, checked; a damaged or foreign file is a UserError."""
    data = read_sealed(path)
    if data is None:
        raise UserError(f"{path}: not a checkpoint, or truncated")

    try:
        # Header and arrays, if the format is known.
        with h5py.File.in_memory(data) as file:
            kind, version = file.attrs.get("format"), file.attrs.get("format_version")
            if kind != FORMAT or int(version) > FORMAT_VERSION:
                raise UserError(
                    f"checkpoint {path}: format {kind!r}, version {version}; accepted is {FORMAT!r} "
                    f"up to version {FORMAT_VERSION}"
                )
            header = str(file.attrs["header"])
            arrays = {name: file[name][()] for name in _dataset_names(file)}

        # Arrays of a group become a dict, all others fields of the checkpoint.
        groups = {
            group: {
                name.removeprefix(f"{group}/"): array
                for name, array in arrays.items()
                if name.startswith(f"{group}/")
            }
            for group in _GROUPS
        }
        own = {name: array for name, array in arrays.items() if "/" not in name}
        return Checkpoint(**json.loads(header), **own, **groups)
    except UserError:
        raise
    except Exception as error:  # not damaged, but not what this version writes
        raise UserError(f"checkpoint {path}: cannot be read ({error})") from None


def _dataset_names(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def newest_checkpoint(run_path: Path, run_id: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest good checkpoint of a run, None without one; and a note on each that was skipped."""
    notes = []
    for path in find_checkpoints(run_path):
        # Readable with all its parts?
        try:
            checkpoint = read_checkpoint(path)
            for rank in range(checkpoint.parts):
                check_part(run_path, checkpoint, rank)
        except UserError as error:
            notes.append(f"{error}; going back to an older one")
            continue

        # And of this run?
        if checkpoint.run_id == run_id:
            return checkpoint, notes
        notes.append(f"checkpoint {path} belongs to another run; skipped")
    return None, notes
