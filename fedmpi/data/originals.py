"""The original files of FashionMNIST and CIFAR-10: read, checked, and downloaded on request.

Invariant: bytes from outside are checked against known digests before they are used.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.data.prepared import Dataset, write_dataset
from fedmpi.data.vision import import_torchvision
from fedmpi.errors import UserError

SYSTEM_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist

# MD5 of the unpacked IDX files; gzip wrappers differ between distributors.
_FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
_CIFAR_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def idx_file(folder: Path, name: str) -> Path | None:
    """A file of that name, packed or not; None without one."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None)


def read_fashion_mnist(folder: Path) -> Dataset:
    """The four IDX files of a folder, plain or gzipped, each checked by MD5."""

    def read(name: str) -> np.ndarray:
        path = idx_file(folder, name)
        if path is None:
            raise UserError(f"data set fashion-mnist: {folder / name} is missing")
        try:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"data set fashion-mnist: {path} cannot be read ({error})") from None
        _check_md5(data, _FASHION_MD5[name], path)
        dims = data[3]  # IDX: two zero bytes, type (8 = unsigned byte), number of dimensions
        shape = np.frombuffer(data, ">u4", count=dims, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)

    return Dataset(
        name="fashion-mnist",
        train_inputs=read("train-images-idx3-ubyte")[:, None],
        train_labels=read("train-labels-idx1-ubyte").astype(np.int64),
        test_inputs=read("t10k-images-idx3-ubyte")[:, None],
        test_labels=read("t10k-labels-idx1-ubyte").astype(np.int64),
        num_classes=10,
        mean=(0.1307,),
        std=(0.3081,),
    )


def read_cifar_10(folder: Path) -> Dataset:
    """The six python batches of a folder, each checked by MD5 before it is unpickled."""

    def read(name: str) -> tuple[np.ndarray, np.ndarray]:
        path = folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"data set cifar-10: {path} cannot be read ({error.strerror})") from None
        _check_md5(data, _CIFAR_MD5[name], path)
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
        images = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        return images, np.asarray(batch[b"labels"], dtype=np.int64)

    train = [read(f"data_batch_{i}") for i in range(1, 6)]
    test_inputs, test_labels = read("test_batch")
    return Dataset(
        name="cifar-10",
        train_inputs=np.concatenate([images for images, _ in train]),
        train_labels=np.concatenate([labels for _, labels in train]),
        test_inputs=test_inputs,
        test_labels=test_labels,
        num_classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.empty(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file")


def _check_md5(data: bytes, expected: str, path: Path) -> None:
    actual = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if actual != expected:
        raise UserError(
            f"data file {path}: MD5 is {actual}, expected {expected}; "
            "the file is damaged or another version, get it again"
        )


def prepare(name: str, root: Path, source_folder: Path | None) -> tuple[Path, Dataset]:
    """Import a data set, or download it with torchvision, and store it as ROOT/NAME.h5."""
    readers = {
        "fashion-mnist": (read_fashion_mnist, "FashionMNIST/raw", [SYSTEM_FASHION_MNIST]),
        "cifar-10": (read_cifar_10, "cifar-10-batches-py", []),
    }
    if name not in readers:
        raise UserError(f"data set {name}: cannot be prepared; accepted: {', '.join(readers)}")
    reader, inside, elsewhere = readers[name]
    if source_folder is not None:
        folders = [source_folder, source_folder / inside]
    else:
        folders = [root / inside, *elsewhere]
    probe = "test_batch" if name == "cifar-10" else "train-images-idx3-ubyte"
    folder = next((f for f in folders if idx_file(f, probe)), None)
    if folder is None and source_folder is not None:
        raise UserError(f"data set {name}: no {probe} in {source_folder} or below {inside}")
    if folder is None:
        _download(name, root)
        folder = root / inside
    dataset = reader(folder)
    path = root / f"{name}.h5"
    write_dataset(path, dataset)
    return path, dataset


def _download(name: str, root: Path) -> None:
    """Let torchvision fetch and unpack the original files below `root`."""
    torchvision = import_torchvision(f"data set {name}")
    fetch = {"fashion-mnist": "FashionMNIST", "cifar-10": "CIFAR10"}[name]
    try:
        getattr(torchvision.datasets, fetch)(root=str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"data set {name}: download failed ({error}); run this on a machine with internet, or "
            f"import files you have with `fedmpi data prepare {name} --from DIR`"
        ) from None
