"""Where data sets come from: files on disk, the package itself, a formula; a download only on request.

Invariant: bytes from outside are checked against known digests before they are used, and a simulation
never touches the network.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.config.keys import Config, DataConfig
from fedmpi.config.options import option
from fedmpi.config.registry import DATASETS, Finding
from fedmpi.data import rng
from fedmpi.data.prepared import Dataset, checked_dataset, read_dataset
from fedmpi.data.staging import read_staged
from fedmpi.errors import UserError

DOWNLOADED = ("fashion-mnist", "cifar-10")  # prepared on the login node as NAME.h5 in data.root
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

dataset = DATASETS  # `dataset(name, keys...)` registers a function (config) -> Dataset


def load_dataset(config: DataConfig, *, on_node: bool = False) -> Dataset:
    """The data set that `data.dataset` names, whole; `on_node`: through `data.stage`."""
    prepared = prepared_file(config)
    if config.stage is not None and prepared is not None:
        if on_node:
            return _checked(read_staged(prepared, config.stage), config)
    elif config.stage is not None and config.dataset in DOWNLOADED:
        raise UserError(
            f'config data.stage = "{config.stage}": needs a prepared file, and '
            f"{config.root}/{config.dataset}.h5 is not there; make it with "
            f"`fedmpi data prepare {config.dataset} --root {config.root}`"
        )
    if prepared:
        return _checked(read_dataset(prepared), config)
    return _checked(DATASETS.get(config.dataset, _user_dataset)(config), config)


def _user_dataset(config: DataConfig) -> Dataset:
    """package.module:function() -> Dataset."""
    from fedmpi.config.user_code import call_function

    made = call_function(config.dataset, "data.dataset", {})
    if not isinstance(made, Dataset):
        raise UserError(
            f'config data.dataset = "{config.dataset}": returned {type(made).__name__}; '
            "expected fedmpi.data.prepared.Dataset"
        )
    return checked_dataset(made)


def _checked(data: Dataset, config: DataConfig) -> Dataset:
    if config.augment and len(data.shape) != 3:
        raise UserError(
            f"config data.augment = true: samples have shape {data.shape}; "
            "crop and flip need (channels, height, width)"
        )
    return data


def prepared_file(config: DataConfig) -> Path | None:
    """The prepared file that `data.dataset` names or that is in `data.root`; None without one."""
    if config.dataset not in DATASETS:
        return None if ":" in config.dataset else Path(config.dataset)
    path = Path(config.root) / f"{config.dataset}.h5"
    return path if config.dataset in DOWNLOADED and path.exists() else None


@dataset("fashion-mnist")
def fashion_mnist(config: DataConfig) -> Dataset:
    """FashionMNIST from IDX files below `data.root`, or from Debian's package."""
    root = Path(config.root)
    folders = [root / "FashionMNIST" / "raw", root / "fashion-mnist", SYSTEM_FASHION_MNIST]
    for folder in folders:
        if _idx_file(folder, "train-images-idx3-ubyte"):
            return read_fashion_mnist(folder)
    raise _not_found("fashion-mnist", [root / "fashion-mnist.h5", *folders])


@dataset("cifar-10", defaults={"augment": True})
def cifar_10(config: DataConfig) -> Dataset:
    """CIFAR-10 from the python batches below `data.root`."""
    root = Path(config.root)
    folder = root / "cifar-10-batches-py"
    if folder.is_dir():
        return read_cifar_10(folder)
    raise _not_found("cifar-10", [root / "cifar-10.h5", folder])


@dataset("fashion-mini", has_no_file=True)
def fashion_mini(config: DataConfig) -> Dataset:
    """6,000 + 1,000 images of FashionMNIST, the first 600 + 100 of each label; shipped with fedmpi."""
    return read_dataset(Path(__file__).with_name("fashion_mini.h5"))


def _not_found(name: str, places: list[Path]) -> UserError:
    looked = ", ".join(map(str, places))
    return UserError(
        f"data set {name}: not found (looked for {looked}); on a machine with internet run "
        f"`fedmpi data prepare {name} --root {places[0].parent}`"
    )


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None)


def read_fashion_mnist(folder: Path) -> Dataset:
    """The four IDX files of a folder, plain or gzipped, each checked by MD5."""

    def read(name: str) -> np.ndarray:
        path = _idx_file(folder, name)
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


@dataclass(frozen=True, kw_only=True)
class SyntheticKeys:
    """Of synthetic."""

    train_samples: int = option(6000, "synthetic: training samples", at_least=1)
    test_samples: int = option(1000, "synthetic: test samples", at_least=0)
    num_classes: int = option(10, "synthetic: labels", at_least=2, at_most=1000)
    shape: list[int] = option([1, 28, 28], "synthetic: shape of a sample", at_least=1)


@dataclass(frozen=True, kw_only=True)
class NoiseKeys:
    """Of synthetic and quadratic."""

    noise_std: float | None = option(
        None,
        "noise around a class prototype (synthetic, default 0.25), or in each gradient "
        "coordinate (quadratic, default 0)",
        at_least=0,
        otherwise=0.0,
    )


@dataset(
    "synthetic", SyntheticKeys, NoiseKeys,
    defaults={"noise_std": 0.25}, has_no_file=True, classes=lambda data: data.num_classes,
)  # fmt: skip
def synthetic(config: DataConfig) -> Dataset:
    """Class prototypes plus noise, as uint8 images of any shape. The same for every `run.seed`."""
    shape = tuple(config.shape)
    size = int(np.prod(shape))
    seed = config.num_classes  # any fixed number; the data are part of the problem, not of the run
    prototypes = rng.stream(seed, "prototypes").random((config.num_classes, size), np.float32)

    def draw(part: str, samples: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(samples) % config.num_classes
        inputs = np.empty((samples, size), np.uint8)
        for block, start in enumerate(range(0, samples, 4096)):  # blocks bound the memory
            chosen = prototypes[labels[start : start + 4096]]
            noise = rng.stream(seed, f"noise-{part}", counter=block).standard_normal(
                chosen.shape, np.float32
            )
            noisy = np.clip(chosen + config.noise_std * noise, 0, 1)
            inputs[start : start + 4096] = np.rint(255 * noisy)
        return inputs.reshape(samples, *shape), labels

    train_inputs, train_labels = draw("train", config.train_samples)
    test_inputs, test_labels = draw("test", config.test_samples)
    channels = shape[0] if len(shape) == 3 else 1
    return Dataset(
        name="synthetic",
        train_inputs=train_inputs,
        train_labels=train_labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        num_classes=config.num_classes,
        mean=(0.5,) * channels,
        std=(0.3,) * channels,
    )


@dataclass(frozen=True, kw_only=True)
class QuadraticKeys:
    """Of quadratic."""

    centers: list[list[float]] | None = option(None, "quadratic: one z_n per client")


def quadratic_misfit(config: Config) -> Iterator[Finding]:
    """Data and model are both "quadratic", or neither is."""
    if (config.data.dataset == "quadratic") != (config.model.name == "quadratic"):
        yield (
            "model.name",
            f'"{config.model.name}" does not fit data.dataset = "{config.data.dataset}"; '
            'data and model are both "quadratic" or neither is',
        )


def _quadratic_conflicts(config: Config) -> Iterator[Finding]:
    yield from quadratic_misfit(config)
    data, model = config.data, config.model
    if data.centers is None:
        yield "data.centers", "missing; quadratic data needs one list of numbers per client"
        return
    lengths = sorted({len(center) for center in data.centers})
    if len(lengths) > 1:
        yield "data.centers", f"centers have different lengths {lengths}; expected all the same"
    if data.num_clients != len(data.centers):
        yield (
            "data.num_clients",
            f"{data.num_clients} clients, but data.centers has {len(data.centers)}",
        )
    if model.name == "quadratic" and model.initial is not None and len(model.initial) != lengths[0]:
        yield "model.initial", f"{len(model.initial)} numbers, but centers have {lengths[0]}"


@dataset(
    "quadratic", QuadraticKeys, NoiseKeys,
    conflicts=_quadratic_conflicts, has_no_file=True, names_clients=True,
    defaults={"noise_std": 0.0, "num_clients": lambda data: len(data.centers) if data.centers else None},
)  # fmt: skip
def quadratic(config: DataConfig) -> Dataset:
    """One sample per client, its center z_n: F_n(x) = |x - z_n|^2 / 2. There is no test set."""
    centers = np.array(config.centers, dtype=np.float64)
    return Dataset(
        name="quadratic",
        train_inputs=centers,
        train_labels=np.zeros(len(centers), np.int64),
        test_inputs=centers[:0],
        test_labels=np.zeros(0, np.int64),
        num_classes=1,
        train_clients=np.arange(len(centers)),
    )


def prepare(name: str, root: Path, source_folder: Path | None) -> tuple[Path, Dataset]:
    """Import a data set, or download it with torchvision, and store it as ROOT/NAME.h5."""
    from fedmpi.data.prepared import write_dataset

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
    folder = next((f for f in folders if _idx_file(f, probe)), None)
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
    import torch

    # torchvision needs these two operators at import; CPU-only builds of torch may lack them.
    library = None
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    fetch = {"fashion-mnist": "FashionMNIST", "cifar-10": "CIFAR10"}[name]
    try:
        getattr(torchvision.datasets, fetch)(root=str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"data set {name}: download failed ({error}); run this on a machine with internet, or "
            f"import files you have with `fedmpi data prepare {name} --from DIR`"
        ) from None
