"""A data set in memory, and as one HDF5 file that is checked when it is read.

Invariant: a file appears whole or not at all, and a Dataset read from a file has the digest it was
written with.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from fedmpi.data.problems import problem_of
from fedmpi.errors import UserError
from fedmpi.storage.files import check_harmless, replacing

FORMAT = "fedmpi-data"
FORMAT_VERSION = 2
_SIMPLE_VERSION = 1  # of a file of numbers, with one integer label a sample, and nothing of what follows

# What a data set may have besides, by its name in a file.
_OPTIONAL = {
    "train/client": "train_clients",
    "test/client": "test_clients",
    "held_out/inputs": "held_out_inputs",
    "held_out/labels": "held_out_labels",
    "held_out/client": "held_out_clients",
}
_NAMES = ("client_names", "class_names", "vocabulary")
_SIMPLE_ARRAYS = {"train/inputs", "train/labels", "test/inputs", "test/labels", "train/client"}
_INPUTS = ("train_inputs", "test_inputs", "held_out_inputs")
_LABELS = ("train_labels", "test_labels", "held_out_labels",
           "train_clients", "test_clients", "held_out_clients")  # fmt: skip


@dataclass(frozen=True)
class Dataset:
    """Training and test samples. Images stay uint8; float inputs and token ids are taken as they are.

    Integer inputs are token ids if `num_tokens` says how many there are. It does so by itself for (n, L)
    integers that cannot be images, those that are not uint8 or have neither mean nor std: there are as many
    as the vocabulary has, or else `num_classes`.
    """

    name: str
    train_inputs: np.ndarray  # (samples, *shape), uint8, floating point, or integer token ids
    train_labels: np.ndarray  # (samples,) int64; or what a task takes: (samples, ...) numbers
    test_inputs: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    mean: tuple[float, ...] = ()  # per channel, of uint8 inputs scaled to [0, 1]
    std: tuple[float, ...] = ()
    train_clients: np.ndarray | None = None  # (samples,), for the natural partition
    test_clients: np.ndarray | None = None  # whose the test samples are, where that is known
    # Samples of clients that never train, whose ids nobody else has.
    held_out_inputs: np.ndarray | None = None
    held_out_labels: np.ndarray | None = None
    held_out_clients: np.ndarray | None = None
    # For people: names of clients and of labels, texts of tokens, each by number.
    client_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    num_tokens: int = 0  # how many token ids there are; 0: inputs are numbers

    def __post_init__(self) -> None:
        """Convert what users pass (lists, numpy numbers, small integers) to one form."""
        for name in _NAMES:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("num_classes", "num_tokens"):
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(v) for v in getattr(self, name)))
        for name in _LABELS:
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _as_labels(np.asarray(values)))
        if not self.num_tokens and self._look_like_tokens():
            object.__setattr__(self, "num_tokens", len(self.vocabulary) or self.num_classes)
        for name in _INPUTS if self.num_tokens else ():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _as_tokens(getattr(self, name)))

    def _look_like_tokens(self) -> bool:
        """Whether inputs are sequences of integers that cannot be images."""
        kind, is_byte = self.train_inputs.dtype.kind, self.train_inputs.dtype == np.uint8
        has_scale = len(self.mean) or len(self.std)
        return kind in "iu" and self.train_inputs.ndim == 2 and not (is_byte and has_scale)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_inputs.shape[1:]

    def digest(self) -> str:
        """SHA-256 of everything in the data set."""
        header = (self.num_classes, self.mean, self.std)
        sha = hashlib.sha256(repr((*header, self.num_tokens) if self.num_tokens else header).encode())
        if any(self.names().values()):
            sha.update(_as_json(self.names()).encode())
        for part in self.arrays().values():
            sha.update(f"{part.shape}{part.dtype.str}".encode())
            sha.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
        return sha.hexdigest()

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by their name in a prepared file."""
        parts = {
            "train/inputs": self.train_inputs,
            "train/labels": self.train_labels,
            "test/inputs": self.test_inputs,
            "test/labels": self.test_labels,
        }
        values = {place: getattr(self, name) for place, name in _OPTIONAL.items()}
        return parts | {place: array for place, array in values.items() if array is not None}

    def names(self) -> dict[str, tuple[str, ...]]:
        """What is for people."""
        return {name: getattr(self, name) for name in _NAMES}


def _as_json(names: dict[str, tuple[str, ...]]) -> str:
    return json.dumps(names)


def _as_labels(values: np.ndarray) -> np.ndarray:
    """Integers as int64, but 0 and 1 of several labels as they are; other numbers as they are."""
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    is_small = values.dtype == np.uint8 and values.ndim > 1
    return np.asarray(values, dtype=np.int64) if values.dtype.kind in "iu" and not is_small else values


def _as_tokens(values: np.ndarray) -> np.ndarray:
    """Token ids in an integer type that torch has, as small as they are."""
    wider = {("u", 2): np.int32, ("u", 4): np.int64, ("u", 8): np.int64}
    kind = wider.get((values.dtype.kind, values.dtype.itemsize), values.dtype.newbyteorder("="))
    return values.astype(kind, copy=False)


def write_dataset(path: str | Path, dataset: Dataset) -> None:
    """Store a data set as one HDF5 file, for `data.dataset = "PATH.h5"`."""
    path = Path(path)
    checked_dataset(dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.attrs.update(
            format=FORMAT,
            format_version=_SIMPLE_VERSION if _is_simple(dataset) else FORMAT_VERSION,
            name=dataset.name,
            num_classes=dataset.num_classes,
            mean=np.array(dataset.mean, dtype=np.float64),
            std=np.array(dataset.std, dtype=np.float64),
            digest=dataset.digest(),
        )
        if dataset.num_tokens:
            file.attrs["num_tokens"] = dataset.num_tokens
        for name, array in dataset.arrays().items():
            packing = {"compression": "gzip", "shuffle": True} if array.size else {}
            file.create_dataset(name, data=array, **packing)
        if any(dataset.names().values()):
            file.create_dataset("names", data=_as_json(dataset.names()))


def _is_simple(dataset: Dataset) -> bool:
    """Whether the first version of the format has a place for all of it."""
    labels = dataset.train_labels
    return (
        not any(dataset.names().values())
        and set(dataset.arrays()) <= _SIMPLE_ARRAYS
        and labels.ndim == 1
        and labels.dtype.kind in "iu"
        and not dataset.num_tokens
    )


def read_dataset(path: str | Path) -> Dataset:
    """The data set in a prepared file; any other file, or a damaged one, is a UserError."""
    path = Path(path)
    try:
        if not path.exists():
            raise UserError(f"data file {path}: no such file; make it with `fedmpi data prepare`")
        check_harmless(path)
        with h5py.File(path, "r", locking=False) as file:
            kind, version = file.attrs.get("format"), file.attrs.get("format_version")
            if kind != FORMAT or version is None or version > FORMAT_VERSION:
                raise UserError(
                    f"data file {path}: format {kind!r}, version {version}; "
                    f"accepted is {FORMAT!r} up to version {FORMAT_VERSION}"
                )
            dataset = Dataset(
                name=str(file.attrs["name"]),
                train_inputs=file["train/inputs"][()],
                train_labels=file["train/labels"][()],
                test_inputs=file["test/inputs"][()],
                test_labels=file["test/labels"][()],
                num_classes=file.attrs["num_classes"],
                mean=file.attrs["mean"],
                std=file.attrs["std"],
                num_tokens=file.attrs.get("num_tokens", 0),
                **{name: file[place][()] for place, name in _OPTIONAL.items() if place in file},
                **(json.loads(file["names"].asstr()[()]) if "names" in file else {}),
            )
            expected = file.attrs["digest"]
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way inside the HDF5 library
        raise UserError(f"data file {path}: cannot be read as prepared data ({error})") from None
    problem = problem_of(dataset)
    if not problem and dataset.digest() != expected:
        problem = "contents do not match the stored digest, the file was changed or damaged"
    if problem:
        raise UserError(f"data file {path}: {problem}; prepare it again")
    return dataset


def checked_dataset(dataset: Dataset) -> Dataset:
    """The same data set, or a UserError that says why it cannot be used."""
    problem = problem_of(dataset)
    if problem:
        raise UserError(f"data set {dataset.name}: {problem}")
    return dataset
