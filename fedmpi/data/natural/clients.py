"""From samples by client to a Dataset: test samples, held-out clients, numbers instead of names.

Invariant: what is drawn (test samples, held-out clients) depends on seed and order of clients alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedmpi.data import rng
from fedmpi.data.prepared import Dataset, checked_dataset
from fedmpi.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may ask of a conversion."""

    test_share: float = 0.2  # of each client's samples, where the source has no test samples of its own
    held_out: float = 0.0  # share of the clients that never train
    min_samples: int = 0  # clients with fewer are left out
    num_classes: int | None = None  # default: the largest label + 1
    seed: int = 1
    length: int = 80  # tokens of a sequence
    vocabulary: int = 10_000  # most frequent words that are kept
    words: str = "sequence"  # of tweets: "sequence" or "bag"
    client_column: str = "client"
    label_column: str = "label"
    standardise: bool = False


@dataclass(frozen=True)
class Client:
    """The samples of one client; `test` None: the source does not tell them apart."""

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    test: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def all_samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Those to train on, then those to test on."""
        if self.test is None:
            return self.inputs, self.labels
        return tuple(
            np.concatenate(pair) for pair in zip((self.inputs, self.labels), self.test, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a converter found."""

    what: str  # "LEAF data PATH", for messages
    clients: Sequence[Client]
    held_out: Sequence[Client] = ()  # where the source has them already
    class_names: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    num_classes: int | None = None  # where it is not known from the labels
    is_ordered: bool = False  # samples of a client follow each other in time, as sentences do


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The data set, and what was left out."""

    dataset: Dataset
    left_out: list[str] = field(default_factory=list)  # names of clients with too few samples


def assembled(source: Source, options: Options, name: str) -> Converted:
    """One data set of all clients."""
    # Clients with enough samples, in a fixed order.
    clients, left_out = _enough(source, source.clients, options)
    others, left_out_too = _enough(source, source.held_out, options)
    if not clients:
        raise UserError(f"{source.what}: no client has at least {options.min_samples} samples")
    _check_alike(source, [*clients, *others])

    # Some of them never train, of the others some samples are for testing.
    staying, held_out = _hold_out(source, clients, options)
    held_out += others
    split = [_with_test(client, number, source, options) for number, client in enumerate(staying)]
    names = tuple(client.name for client in [*split, *held_out])
    train = [(client.inputs, client.labels) for client in split]
    test = [client.test for client in split]
    third = [client.all_samples() for client in held_out]

    # One array of each.
    arrays = _joined("train", train, 0) | _joined("test", test, 0)
    if held_out:
        arrays |= _joined("held_out", third, len(split))
    has_tokens = bool(source.vocabulary) and arrays["train_inputs"].dtype.kind in "iu"
    num_tokens = len(source.vocabulary) if has_tokens else 0
    if not num_tokens:
        arrays |= _normalised(arrays, options)
    num_classes = _num_classes(source, [*split, *held_out], options)
    dataset = Dataset(
        name=name,
        **arrays,
        num_classes=num_classes,
        client_names=names,
        class_names=source.class_names,
        vocabulary=source.vocabulary,
        num_tokens=num_tokens,
    )
    try:
        return Converted(dataset=checked_dataset(dataset), left_out=left_out + left_out_too)
    except UserError as error:
        raise UserError(f"{source.what}: {error}") from None


def _enough(source: Source, clients: Sequence[Client], options: Options) -> tuple[list[Client], list[str]]:
    """Those with enough samples, and the names of the others; nobody without samples is kept."""
    kept, left_out, seen = [], [], set()
    for client in clients:
        if client.name in seen:
            raise UserError(
                f'{source.what}: client "{client.name}" is there twice; expected one of each name'
            )
        seen.add(client.name)
        count = len(client) + (len(client.test[1]) if client.test else 0)
        if len(client) == 0 and options.min_samples == 0:
            raise UserError(
                f'{source.what}: client "{client.name}" has no samples to train on; remove it, or leave '
                "such clients out with --min-samples 1"
            )
        if len(client) == 0 or count < options.min_samples:
            left_out.append(client.name)
        else:
            kept.append(client)
    if all(client.name.isdecimal() and len(client.name) < 19 for client in kept):
        kept.sort(key=lambda client: int(client.name))
    return kept, left_out


def _check_alike(source: Source, clients: Sequence[Client]) -> None:
    """All samples have one shape and type."""
    first = clients[0]
    for client in clients:
        parts = [client.inputs, *([client.test[0]] if client.test else [])]
        for inputs in parts:
            if inputs.shape[1:] != first.inputs.shape[1:] or inputs.dtype != first.inputs.dtype:
                raise UserError(
                    f'{source.what}: a sample of client "{client.name}" has shape {inputs.shape[1:]}, '
                    f'type {inputs.dtype}, those of "{first.name}" {first.inputs.shape[1:]}, '
                    f"{first.inputs.dtype}; expected all alike"
                )


def _hold_out(source: Source, clients: list[Client], options: Options) -> tuple[list[Client], list[Client]]:
    """Clients that train, and those that are held out: drawn, each in their order."""
    if not options.held_out:
        return clients, []
    count = max(1, round(options.held_out * len(clients)))
    if count >= len(clients):
        raise UserError(
            f"{source.what}: --held-out {options.held_out:g} leaves none of {len(clients)} clients to "
            "train; expected a smaller share"
        )
    drawn = set(rng.stream(options.seed, "held-out").permutation(len(clients))[:count].tolist())
    return (
        [client for n, client in enumerate(clients) if n not in drawn],
        [client for n, client in enumerate(clients) if n in drawn],
    )


def _with_test(client: Client, number: int, source: Source, options: Options) -> Client:
    """The client with test samples: of the source, or a share of its own; one stays to train on."""
    if client.test is not None:
        return client
    count = min(round(options.test_share * len(client)), len(client) - 1)
    if source.is_ordered:  # the end of what it says
        order = np.arange(len(client))
    else:
        order = rng.stream(options.seed, "natural-test", number).permutation(len(client))
    train, test = np.sort(order[: len(client) - count]), np.sort(order[len(client) - count :])
    return replace(
        client,
        inputs=client.inputs[train],
        labels=client.labels[train],
        test=(client.inputs[test], client.labels[test]),
    )


def _joined(
    part: str, samples: Sequence[tuple[np.ndarray, np.ndarray]], first: int
) -> dict[str, np.ndarray]:
    """Inputs, labels and clients of a set, client by client."""
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*samples, strict=True))
    clients = np.repeat(first + np.arange(len(samples)), [len(own) for _, own in samples])
    return {f"{part}_inputs": inputs, f"{part}_labels": labels, f"{part}_clients": clients}


def _normalised(arrays: dict[str, np.ndarray], options: Options) -> dict:
    """Mean and std of images; numbers with mean 0 and std 1, if asked for. Both by the training samples."""
    train = arrays["train_inputs"]
    if train.dtype == np.uint8:
        axes = (0, 2, 3) if train.ndim == 4 else None
        mean, std = (
            np.atleast_1d(find(train, axis=axes, dtype=np.float64)) / 255 for find in (np.mean, np.std)
        )
        return {"mean": mean, "std": np.where(std > 0, std, 1.0)}
    if not options.standardise or train.dtype.kind != "f":
        return {}
    mean, std = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    std = np.where(std > 0, std, 1.0)
    return {
        name: ((values - mean) / std).astype(values.dtype)
        for name, values in arrays.items()
        if name.endswith("_inputs")
    }


def _num_classes(source: Source, clients: Sequence[Client], options: Options) -> int:
    """How many labels there are; one out of range is refused, with the client's name."""
    known = options.num_classes or source.num_classes
    largest = 0
    if clients[0].labels.dtype.kind == "f":  # numbers to be predicted
        return 1
    for client in clients:
        labels = client.all_samples()[1]
        lowest = -1 if labels.ndim > 1 else 0  # of sequences, -1 where they are padded
        if labels.min() < lowest or (known is not None and labels.max() >= known):
            wrong = labels.min() if labels.min() < lowest else labels.max()
            raise UserError(
                f'{source.what}: client "{client.name}" has label {wrong}; expected 0 to '
                + (f"{known - 1}" if known is not None else "the number of labels - 1")
            )
        largest = max(largest, int(labels.max()))
    return known or largest + 1


def check_names(what: str, names: Iterable[object], remedy: str) -> None:
    """Refuse client ids of which some are numbers and others are not: likely a damaged or a joined file."""
    numbers = [name for name in names if not isinstance(name, str)]
    texts = [name for name in names if isinstance(name, str)]
    if numbers and texts:
        raise UserError(
            f"{what}: some client ids are numbers ({numbers[0]!r}), others are texts ({texts[0]!r}); "
            f"expected one kind; {remedy}"
        )


def parts_of(path: Path, what: str, pick: Callable[[Path], list[Path]]) -> dict[str, list[Path]]:
    """Files or folders of "train", "test" and "held-out", below folders of these names or `path`."""
    if not path.is_dir():
        return {"train": [path]}
    inside = {part: path / part for part in ("train", "test", "held-out") if (path / part).is_dir()}
    if inside and "train" not in inside:
        raise UserError(f"{what}: has a folder {next(iter(inside))}, but none of the name train")
    found = {part: pick(folder) for part, folder in (inside or {"train": path}).items()}
    for part, files in found.items():
        if not files:
            raise UserError(f"{what}: nothing to read in {inside.get(part, path)}")
    return found
