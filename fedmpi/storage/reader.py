"""Reading result files: no torch, no MPI, at any time, even during the run."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.columns import (
    ADDED_LATER,
    FORMAT,
    KEYS_ADDED_LATER,
    OPTIONAL_TABLES,
    PARTS,
    SEGMENTED_VERSION,
    TABLES,
    Column,
    stored_metrics,
    tables,
)
from fedmpi.storage.files import check_harmless
from fedmpi.storage.segments import SegmentError, opened_segments, put_away, segments_of
from fedmpi.storage.sketch import sketch

if TYPE_CHECKING:
    import pandas
    import torch


@dataclass(frozen=True, kw_only=True)
class Run:
    """The results of one run."""

    path: Path
    status: str  # "running", "done", "diverged" or "stopped"
    config: dict[str, Any]  # sections of the resolved config
    attributes: dict[str, Any]  # provenance: versions, hosts, devices, digests, ...
    eval: pandas.DataFrame  # one row per evaluation
    train: pandas.DataFrame  # one row per round
    participation: pandas.DataFrame  # round, client, weight
    clients: pandas.DataFrame  # size, majority_label, rank
    global_params: np.ndarray | None  # x after the last round written
    params: tuple[np.ndarray, np.ndarray] | None  # (rounds, x_t) with run.record_params_every
    theory: pandas.DataFrame | None = None  # with run.record_theory_every
    amplification: pandas.DataFrame | None = None  # with run.eval_at_amplification
    clients_eval: pandas.DataFrame | None = None  # with run.eval_clients_every
    energy: pandas.DataFrame | None = None  # joules, where the nodes tell (RAPL, NVML)
    undelivered: pandas.DataFrame | None = None  # round, client, arrives: where updates were lost or late

    @property
    def name(self) -> str:
        """`run.name` of the config."""
        return self.config["run"]["name"]

    @property
    def metrics(self) -> dict[str, Column]:
        """What is recorded in `eval` of each model: units, description and what is better, by name."""
        return {column.name: column for column in stored_metrics(self.attributes)}

    def __repr__(self) -> str:
        return sketch(self)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's parameters for `module.load_state_dict`, in the precision they were trained in."""
        import torch  # only here: reading needs no torch

        dtype = getattr(torch, self.config["run"].get("dtype", "float32"), torch.float32)
        return {name: torch.tensor(value, dtype=dtype) for name, value in self.parameters().items()}

    def parameters(self) -> dict[str, np.ndarray]:
        """The model's parameters by name, as arrays of their shapes."""
        if self.global_params is None:
            raise UserError(f"run file {self.path}: holds no model")

        # Cut the flat vector by the shapes stored with it.
        result, start = {}, 0
        for name, shape in json.loads(self.attributes["parameters"]):
            size = int(np.prod(shape))
            result[name] = self.global_params[start : start + size].reshape(shape)
            start += size
        return result


def load_run(path: str | Path) -> Run:
    """The results in a file; a file that is not a run is a UserError."""
    return read_run(path, lambda file: _read(Path(path), file))


def _read(path: Path, file: h5py.File) -> Run:
    import pandas

    # Tables; optional ones only where they were recorded.
    present = [*TABLES, *(name for name in OPTIONAL_TABLES if name in file)]
    tables = {name: pandas.DataFrame(read_table(file, name)) for name in present}

    # The latest model and its snapshots, where they were written.
    attributes = dict(file.attrs)
    global_params = params = None
    if "model" in file:
        attributes["parameters"] = file["model"].attrs["parameters"]
        global_params = file["model/global_params"][()]
    if "params" in file:
        parts = [(part["round"][()], part["global_params"][()]) for part in _parts(file, "params")]
        params = tuple(_joined(list(values)) for values in zip(*parts, strict=True))

    return Run(
        path=path,
        status=attributes["status"],
        config=read_config(attributes["config"]),
        attributes=attributes,
        eval=tables["eval"],
        train=tables["train"],
        participation=tables["participation"],
        clients=tables["clients"],
        global_params=global_params,
        params=params,
        theory=tables.get("theory"),
        amplification=tables.get("amplification"),
        clients_eval=_with_part_names(tables.get("clients_eval")),
        energy=tables.get("energy"),
        undelivered=tables.get("undelivered"),
    )


def _with_part_names(table: pandas.DataFrame | None) -> pandas.DataFrame | None:
    """The column `part` as "train", "test" and "held-out" instead of numbers."""
    if table is not None:
        import pandas

        table["part"] = pandas.Categorical.from_codes(table["part"], categories=PARTS)
    return table


def read_config(text: str) -> dict[str, Any]:
    """The sections of a stored config; keys that an older version did not have get their defaults."""
    config = tomllib.loads(text)
    for section, keys in KEYS_ADDED_LATER.items():
        if section in config:
            config[section] |= {key: value for key, value in keys.items() if key not in config[section]}
    return config


def read_table(file: h5py.File, name: str) -> dict[str, np.ndarray]:
    """The columns of a table; one that files of an older version do not have is nan."""
    group, columns = file[name], tables(stored_metrics(file.attrs))[name]
    table = {column.name: [] for column in columns}
    for part in _parts(file, name):
        rows = len(part[columns[0].name])
        for column in columns:
            is_older = column.name in ADDED_LATER and column.name not in group
            table[column.name].append(np.full(rows, np.nan) if is_older else part[column.name][()])
    return {column: _joined(values) for column, values in table.items()}


def _parts(file: h5py.File, name: str) -> Iterator[h5py.Group]:
    """A table in all segments of a file, then in the file itself."""
    for counts, segment in opened_segments(file):
        if name in counts:
            yield segment[name]
    yield file[name]


def _joined(values: list[np.ndarray]) -> np.ndarray:
    return values[0] if len(values) == 1 else np.concatenate(values)


Found = TypeVar("Found")


def read_run(path: str | Path, read: Callable[[h5py.File], Found]) -> Found:
    """What `read` finds in a run file; once more if the file was joined with its segments meanwhile."""
    for is_last in (False, True):
        with open_run(path) as file:
            try:
                return read(file)
            except SegmentError:
                if is_last:
                    raise
            except UserError:
                raise
            except Exception as error:  # a damaged file can fail in any way inside the HDF5 library
                raise UserError(f"run file {path}: damaged, or not complete ({error})") from None
    raise AssertionError  # not reached


def load_table(path: str | Path, name: str) -> dict[str, np.ndarray]:
    """One table of a run file, by column."""
    return read_run(path, lambda file: read_table(file, name))


def read_attributes(path: str | Path) -> dict[str, Any]:
    """The attributes of a run file."""
    with open_run(path) as file:
        try:
            attributes = dict(file.attrs)
        except Exception as error:  # as above
            raise UserError(f"run file {path}: damaged, or not complete ({error})") from None
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in attributes.items()}


def peek(path: str | Path) -> dict[str, Any] | None:
    """Status and rounds written of a run file, or None if it is not one."""
    try:
        with open_run(path) as file:
            rounds = len(file["train/round"]) + put_away(segments_of(file), "train")
            return {"status": str(file.attrs["status"]), "rounds": rounds}
    except Exception:  # whatever is wrong with it, it is not a readable run
        return None


def open_run(path: str | Path) -> h5py.File:
    """A run file, checked to be one this version can read."""
    # Open it, after a check that HDF5 can.
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"run file {path}: is a folder; name a file in it")
        if not path.is_file():
            raise UserError(f"run file {path}: no such file")
        check_harmless(path)
        file = h5py.File(path, "r", locking=False)
        kind, version = file.attrs.get("format"), file.attrs.get("format_version")
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"run file {path}: not a readable HDF5 file ({_reason(path, error)})") from None

    # A run file of this version or an older one.
    is_ours = isinstance(kind, str) and kind == FORMAT and isinstance(version, np.integer)
    if not is_ours or version > SEGMENTED_VERSION:
        file.close()
        remedy = "a newer fedmpi wrote it, update this one" if is_ours else "it holds something else"
        raise UserError(
            f"run file {path}: format {kind!r}, version {version}; accepted is {FORMAT!r} up to "
            f"version {SEGMENTED_VERSION}: {remedy}"
        )
    return file


def _reason(path: Path, error: Exception) -> str:
    """What HDF5 says about a file that it cannot open, in plain words where we know them."""
    sizes = re.search(r"truncated file: eof = (\d+),.* stored_eof = (\d+)", str(error))
    if sizes:
        return f"truncated to {int(sizes[1]):,} of {int(sizes[2]):,} bytes; copy it again"
    if "signature not found" in str(error):
        return "it is some other kind of file" if path.stat().st_size else "it is empty"
    return str(error)
