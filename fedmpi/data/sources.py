"""Where data sets come from: files on disk, the package itself, a formula; a download only on request.

Invariant: bytes from outside are checked against known digests before they are used, and a simulation
never touches the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmpi.config.keys import Config, DataConfig
from fedmpi.config.options import option
from fedmpi.config.registry import DATASETS, Finding
from fedmpi.data import originals, rng
from fedmpi.data.prepared import Dataset, checked_dataset, read_dataset
from fedmpi.data.staging import read_staged
from fedmpi.errors import UserError
from fedmpi.tasks import Task
from fedmpi.tasks.next_character import PADDING

DOWNLOADED = ("fashion-mnist", "cifar-10")  # prepared on the login node as NAME.h5 in data.root


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


def load_fitting(config: Config, task: Task, *, on_node: bool = False) -> Dataset:
    """As `load_dataset`; a data set that the task cannot work on is a UserError."""
    data = load_dataset(config.data, on_node=on_node)
    problem = task.problem(data)
    if problem:
        raise UserError(f'config task.name = "{config.task.name}" does not fit {data.name}: {problem}')
    return data


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
    if config.augment and data.num_tokens:
        raise UserError("config data.augment = true: inputs are token ids; crop and flip need images")
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
    folders = [root / "FashionMNIST" / "raw", root / "fashion-mnist", originals.SYSTEM_FASHION_MNIST]
    for folder in folders:
        if originals.idx_file(folder, "train-images-idx3-ubyte"):
            return originals.read_fashion_mnist(folder)
    raise _not_found("fashion-mnist", [root / "fashion-mnist.h5", *folders])


@dataset("cifar-10", defaults={"augment": True})
def cifar_10(config: DataConfig) -> Dataset:
    """CIFAR-10 from the python batches below `data.root`."""
    root = Path(config.root)
    folder = root / "cifar-10-batches-py"
    if folder.is_dir():
        return originals.read_cifar_10(folder)
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


@dataclass(frozen=True, kw_only=True)
class CountKeys:
    """Of synthetic and synthetic-text."""

    train_samples: int = option(6000, "synthetic, synthetic-text: training samples", at_least=1)
    test_samples: int = option(1000, "synthetic, synthetic-text: test samples", at_least=0)
    num_classes: int = option(10, "synthetic: labels; synthetic-text: tokens", at_least=2, at_most=1000)


@dataclass(frozen=True, kw_only=True)
class SyntheticKeys:
    """Of synthetic."""

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
    "synthetic", CountKeys, SyntheticKeys, NoiseKeys,
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
class TextKeys:
    """Of synthetic-text."""

    sequence_length: int = option(20, "synthetic-text: tokens of a sequence, padding included", at_least=2)


@dataset("synthetic-text", CountKeys, TextKeys, has_no_file=True)
def synthetic_text(config: DataConfig) -> Dataset:
    """Walks of a Markov chain over tokens, half to whole as long as a sequence, then padding.

    The next tokens are the labels. The same for every `run.seed`.
    """
    count, length, seed = config.num_classes, config.sequence_length, config.num_classes
    # Few tokens follow each one: there is something to learn.
    ends = np.cumsum(rng.stream(seed, "text-chain").dirichlet(np.full(count, 0.1), size=count), axis=1)

    def draw(part: str, samples: int) -> tuple[np.ndarray, np.ndarray]:
        draws = rng.stream(seed, f"text-{part}")
        walks = np.empty((samples, length + 1), np.int64)
        walks[:, 0] = draws.integers(count, size=samples)
        for place in range(length):
            further = draws.random(samples)[:, None] > ends[walks[:, place]]
            walks[:, place + 1] = np.minimum(further.sum(axis=1), count - 1)
        is_there = np.arange(length) < draws.integers(-(-length // 2), length + 1, size=samples)[:, None]
        return np.where(is_there, walks[:, :-1], 0), np.where(is_there, walks[:, 1:], PADDING)

    train_inputs, train_labels = draw("train", config.train_samples)
    test_inputs, test_labels = draw("test", config.test_samples)
    return Dataset(
        name="synthetic-text",
        train_inputs=train_inputs,
        train_labels=train_labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        num_classes=count,
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
