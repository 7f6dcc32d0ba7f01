"""Checkpoints: everything a run needs to go on, by client and never by rank, so on any number of ranks.

A checkpoint is an HDF5 file beside the result file, RUN.h5.checkpoint-<rounds>. It is written after the
results that it names (`rows` of each table), so that no round can appear twice or be missing. Invariants:
it appears whole (temporary name, sync, rename); a checksum covers every byte; the two newest are kept,
and a damaged newest one is passed over with a note. It holds numbers and text only, nothing executable.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.files import read_sealed, replacing

FORMAT = "fedmpi-checkpoint"
FORMAT_VERSION = 1
_KEPT = 2


@dataclass(frozen=True)
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

    def _header(self) -> dict[str, Any]:
        names = ("run_id", "completed", "anchor_round", "rows", "wall_time_s", "digests")
        return {name: getattr(self, name) for name in names}

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("global_params", "accumulated", "minibatches_drawn")
        own = {name: getattr(self, name) for name in names}
        return own | {f"participation/{name}": value for name, value in self.participation.items()}


def write_checkpoint(run_path: Path, checkpoint: Checkpoint) -> Path:
    """Store a checkpoint beside a result file and remove all but the two newest."""
    path = run_path.with_name(f"{run_path.name}.checkpoint-{checkpoint.completed}")
    header, arrays = json.dumps(checkpoint._header(), sort_keys=True), checkpoint._arrays()
    with replacing(path) as file:
        file.attrs.update(format=FORMAT, format_version=FORMAT_VERSION, header=header)
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    for old in find_checkpoints(run_path)[_KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def find_checkpoints(run_path: Path) -> list[Path]:
    """The checkpoints of a result file, newest first."""
    pattern = re.compile(re.escape(run_path.name) + r"\.checkpoint-(\d+)")
    found = []
    with contextlib.suppress(OSError):
        for path in run_path.parent.iterdir():
            if match := pattern.fullmatch(path.name):
                found.append((int(match[1]), path))
    return [path for _, path in sorted(found, reverse=True)]


def remove_checkpoints(run_path: Path) -> None:
    """Forget an earlier run's checkpoints, when its result file is to be overwritten."""
    for path in find_checkpoints(run_path):
        path.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, checked; a damaged or foreign file is a UserError."""
    data = read_sealed(path)
    if data is None:
        raise UserError(f"{path}: no checkpoint, or cut off")
    try:
        with h5py.File.in_memory(data) as file:
            kind, version = file.attrs.get("format"), file.attrs.get("format_version")
            if kind != FORMAT or int(version) > FORMAT_VERSION:
                raise UserError(
                    f"checkpoint {path}: format {kind!r}, version {version}; accepted is {FORMAT!r} "
                    f"up to version {FORMAT_VERSION}"
                )
            header = str(file.attrs["header"])
            arrays = {name: file[name][()] for name in _dataset_names(file)}
        prefix = "participation/"
        state = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        own = {k: v for k, v in arrays.items() if not k.startswith(prefix)}
        return Checkpoint(**json.loads(header), **own, participation=state)
    except UserError:
        raise
    except Exception as error:  # not damaged, but not what this version writes
        raise UserError(f"checkpoint {path}: cannot be read ({error})") from None


def _dataset_names(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def newest_checkpoint(run_path: Path, run_id: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest good checkpoint of a run, None without one; and a note on each that was passed over."""
    notes = []
    for path in find_checkpoints(run_path):
        try:
            checkpoint = read_checkpoint(path)
        except UserError as error:
            notes.append(f"{error}; going back to an older one")
            continue
        if checkpoint.run_id == run_id:
            return checkpoint, notes
        notes.append(f"checkpoint {path} belongs to another run; passed over")
    return None, notes
