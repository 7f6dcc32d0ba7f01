"""Assigning the training samples to clients.

Invariant: every sample goes to exactly one client, as a pure function of (labels, config, seed), so that
all ranks compute the same partition without a message.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import DataConfig
from fedmpi.config.registry import DATASETS, PARTITIONS
from fedmpi.errors import UserError

_FEW_PAIRS = 1 << 20


@dataclass(frozen=True)
class Partition:
    """Client n has the samples `order[offsets[n] : offsets[n + 1]]`."""

    order: np.ndarray  # (samples,) sample ids, client by client
    offsets: np.ndarray  # (num_clients + 1,)

    @classmethod
    def from_clients(cls, client_of: np.ndarray, num_clients: int) -> Partition:
        """From the client of each sample; a client's samples keep their order."""
        sizes = np.bincount(client_of, minlength=num_clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(np.argsort(client_of, kind="stable"), offsets)

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Samples of each client."""
        return np.diff(self.offsets)

    def client_of(self) -> np.ndarray:
        """The client of each sample."""
        owners = np.empty(len(self.order), np.int64)
        owners[self.order] = np.repeat(np.arange(self.num_clients), self.sizes)
        return owners

    def samples(self, client: int) -> np.ndarray:
        """Sample ids of a client."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def majority_labels(self, labels: np.ndarray) -> np.ndarray:
        """The most frequent label of each client (the lowest in a tie); -1 without samples, or classes."""
        if not are_classes(labels):
            return np.full(self.num_clients, -1, dtype=np.int64)
        client_of = np.repeat(np.arange(self.num_clients), self.sizes)
        classes = int(labels.max()) + 1
        result = np.full(self.num_clients, -1, dtype=np.int64)
        if self.num_clients * classes <= max(2 * len(labels), _FEW_PAIRS):
            counts = np.bincount(
                client_of * classes + labels[self.order], minlength=self.num_clients * classes
            ).reshape(self.num_clients, classes)
            return np.where(self.sizes > 0, counts.argmax(axis=1), result)

        # Of many pairs (client, label) most do not occur: count those that do, keep each client's largest.
        pairs, counts = np.unique(client_of * classes + labels[self.order], return_counts=True)
        clients, candidates = pairs // classes, pairs % classes
        by_count = np.lexsort((-candidates, counts, clients))
        result[clients[by_count]] = candidates[by_count]  # the last write, the largest count, stays
        return result

    def digest(self) -> str:
        """SHA-256 of the samples of each client."""
        sha = hashlib.sha256(self.order.astype("<i8").tobytes())
        sha.update(self.offsets.astype("<i8").tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class ClientLabels:
    """The labels that each client holds, for what depends on its label mix."""

    partition: Partition
    labels: np.ndarray | None  # (samples,); None where labels are no classes
    num_classes: int

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean over each client's samples of a value for each label; 0 without samples."""
        part = self.partition
        client_of = np.repeat(np.arange(part.num_clients), part.sizes)
        sums = np.bincount(client_of, values[self.labels[part.order]], minlength=part.num_clients)
        return sums / np.maximum(part.sizes, 1)


def are_classes(labels: np.ndarray) -> bool:
    """Whether these are labels by which samples and clients can be told apart: one integer for each."""
    return labels.ndim == 1 and labels.dtype.kind in "iu"


def client_labels(partition: Partition, labels: np.ndarray, num_classes: int) -> ClientLabels:
    """The clients' sizes, and their label mix where labels are classes."""
    return ClientLabels(partition, labels if are_classes(labels) else None, num_classes)


# `partition(name, keys...)` registers a rule (labels, num_classes, num_clients, config, seed) -> client of
# each sample; `by_label=True` if it needs labels that are classes.
Rule = Callable[[np.ndarray, int, int, DataConfig, int], np.ndarray]
partition = PARTITIONS


def make_partition(
    labels: np.ndarray,
    clients: np.ndarray | None,
    num_classes: int,
    config: DataConfig,
    seed: int,
) -> Partition:
    """The partition a config asks for. `clients` is the client column of the data, where it has one."""
    if PARTITIONS.fact(config.partition, "by_label") and not are_classes(labels):
        raise UserError(
            f'config data.partition = "{config.partition}": deals samples by their labels, and labels of '
            f'{config.dataset} are not one integer each; use "natural", "iid" or a function of your own'
        )
    if config.partition == "natural" or DATASETS.fact(config.dataset, "names_clients"):
        client_of, num_clients = PARTITIONS["natural"](clients, config)
    else:
        num_clients = config.num_clients
        rule = PARTITIONS[config.partition] if config.partition in PARTITIONS else _user_rule(config)
        client_of = rule(labels, num_classes, num_clients, config, seed)
    result = Partition.from_clients(client_of, num_clients)
    empty = np.flatnonzero(result.sizes == 0)
    if len(empty) and not config.allow_empty:
        names = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        raise UserError(
            f'config data.partition = "{config.partition}": {len(empty)} of {num_clients} clients have '
            f"no samples (client {names}); use fewer clients or another partition, or accept it with "
            "data.allow_empty = true"
        )
    return result


def _user_rule(config: DataConfig) -> Rule:
    """package.module:function(labels, num_clients, seed) -> the client of each sample."""
    from fedmpi.config.user_code import call_function

    def deal(
        labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
    ) -> np.ndarray:
        given = {"labels": labels.copy(), "num_clients": num_clients, "seed": seed}
        client_of = np.asarray(call_function(config.partition, "data.partition", given))
        problem = ""
        if client_of.shape != labels.shape[:1]:
            problem = f"an array of shape {client_of.shape}"
        elif client_of.dtype.kind not in "iu":
            problem = f"values of type {client_of.dtype}"
        elif len(client_of) and not 0 <= client_of.min() <= client_of.max() < num_clients:
            problem = f"clients from {client_of.min()} to {client_of.max()}"
        if problem:
            raise UserError(
                f'config data.partition = "{config.partition}": returned {problem}; expected a client from '
                f"0 to {num_clients - 1} for each of {len(labels)} samples"
            )
        return client_of.astype(np.int64)

    return deal
