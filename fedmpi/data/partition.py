"""Assigning the training samples to clients.

Invariant: every sample goes to exactly one client, as a pure function of (labels, config, seed), so that
all ranks compute the same partition without a message.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import Config, DataConfig
from fedmpi.config.options import option
from fedmpi.config.registry import DATASETS, PARTITIONS, Finding
from fedmpi.data import rng
from fedmpi.errors import UserError


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

    def samples(self, client: int) -> np.ndarray:
        """Sample ids of a client."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def majority_labels(self, labels: np.ndarray) -> np.ndarray:
        """The most frequent label of each client (the lowest in a tie); -1 without samples."""
        client_of = np.repeat(np.arange(self.num_clients), self.sizes)
        # Count (client, label) pairs, then keep each client's largest count.
        classes = int(labels.max()) + 1
        pairs, counts = np.unique(client_of * classes + labels[self.order], return_counts=True)
        clients, candidates = pairs // classes, pairs % classes
        by_count = np.lexsort((-candidates, counts, clients))
        result = np.full(self.num_clients, -1, dtype=np.int64)
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
    labels: np.ndarray  # (samples,)
    num_classes: int

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean over each client's samples of a value for each label; 0 without samples."""
        part = self.partition
        client_of = np.repeat(np.arange(part.num_clients), part.sizes)
        sums = np.bincount(client_of, values[self.labels[part.order]], minlength=part.num_clients)
        return sums / np.maximum(part.sizes, 1)


# `partition(name, keys...)` registers a rule (labels, num_classes, num_clients, config, seed) -> client of
# each sample.
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
    if config.partition == "natural" or DATASETS.fact(config.dataset, "names_clients"):
        client_of, num_clients = natural(clients, config)
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
        if client_of.shape != labels.shape:
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


@partition("iid")
def iid(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """Shuffled samples in equal parts (sizes differ by one at most)."""
    order = rng.stream(seed, "partition").permutation(len(labels))
    client_of = np.empty(len(labels), np.int64)
    client_of[order] = np.arange(len(labels)) % num_clients
    return client_of


@dataclass(frozen=True, kw_only=True)
class MajorityLabelKeys:
    """Of majority-label."""

    similarity: float = option(
        0.05, "majority-label: share of samples assigned at random", at_least=0, at_most=1
    )


@partition("majority-label", MajorityLabelKeys)
def majority_label(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """The paper's split: blocks of contiguous clients have one majority label each.

    Walking through the samples, each goes with probability `similarity` to a uniformly random client,
    else to the least filled client of its label's block (the lowest id in a tie).
    """
    draws = rng.stream(seed, "partition")
    at_random = draws.random(len(labels)) < config.similarity
    anyone = draws.integers(num_clients, size=len(labels))
    fill = [0] * num_clients
    # A heap of (fill, client) per label. A random arrival leaves a stale entry, recognised by its fill.
    heaps = [
        [(0, client) for client in _block(label, num_classes, num_clients)] for label in range(num_classes)
    ]
    client_of = np.empty(len(labels), np.int64)
    for sample, (label, random, stranger) in enumerate(
        zip(labels.tolist(), at_random.tolist(), anyone.tolist(), strict=True)
    ):
        if random:
            client = stranger
            fill[client] += 1
        else:
            heap = heaps[label]
            while heap[0][0] != fill[heap[0][1]]:
                stale = heap[0][1]
                heapq.heapreplace(heap, (fill[stale], stale))
            client = heap[0][1]
            fill[client] += 1
            heapq.heapreplace(heap, (fill[client], client))
        client_of[sample] = client
    return client_of


def _block(label: int, num_classes: int, num_clients: int) -> range:
    """The contiguous clients whose majority label this is; one client where labels outnumber them.

    >>> _block(1, 10, 250)
    range(25, 50)
    >>> _block(9, 10, 5)
    range(4, 5)
    """
    if num_clients < num_classes:
        client = label * num_clients // num_classes
        return range(client, client + 1)
    first = -(-label * num_clients // num_classes)
    return range(first, -(-(label + 1) * num_clients // num_classes))


@dataclass(frozen=True, kw_only=True)
class DirichletKeys:
    """Of dirichlet."""

    alpha: float = option(0.1, "dirichlet: concentration", above=0)


@partition("dirichlet", DirichletKeys)
def dirichlet(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """Each label's samples are split over the clients in proportions drawn from Dirichlet(alpha)."""
    client_of = np.empty(len(labels), np.int64)
    for label in range(num_classes):
        draws = rng.stream(seed, "partition", counter=label)
        members = draws.permutation(np.flatnonzero(labels == label))
        # A Dirichlet draw is a normalised vector of gamma draws; tiny alpha may underflow to zeros.
        shares = draws.gamma(config.alpha, size=num_clients)
        if shares.sum() == 0:
            shares[draws.integers(num_clients)] = 1
        ends = np.cumsum(shares) / shares.sum()
        # The k-th member goes to the client whose share of [0, 1) holds (k + 1/2) / members.
        places = (np.arange(len(members)) + 0.5) / max(len(members), 1)
        client_of[members] = np.minimum(np.searchsorted(ends, places, side="right"), num_clients - 1)
    return client_of


@dataclass(frozen=True, kw_only=True)
class ClassesPerClientKeys:
    """Of classes-per-client."""

    classes_per_client: int = option(2, "classes-per-client: labels a client holds", at_least=1)


def _classes_conflicts(config: Config) -> Iterator[Finding]:
    data = config.data
    classes = DATASETS.fact(data.dataset, "classes")
    if classes and data.classes_per_client > classes(data):
        problem = f"{data.classes_per_client} exceeds data.num_classes = {classes(data)}"
        yield "data.classes_per_client", problem


@partition("classes-per-client", ClassesPerClientKeys, conflicts=_classes_conflicts)
def classes_per_client(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """Every client holds `classes_per_client` labels; a label's holders share its samples evenly."""
    count = config.classes_per_client
    if count > num_classes:
        raise UserError(
            f"config data.classes_per_client = {count}: the data have {num_classes} labels; "
            f"expected at most {num_classes}"
        )
    draws = rng.stream(seed, "partition")
    # Clients in random order take the next `count` labels of a cycle: distinct within a client.
    clients = draws.permutation(num_clients)
    relabel = draws.permutation(num_classes)
    slots = np.arange(num_clients * count)
    label_of_slot, client_of_slot = relabel[slots % num_classes], clients[slots // count]
    client_of = np.empty(len(labels), np.int64)
    for label in range(num_classes):
        members = draws.permutation(np.flatnonzero(labels == label))
        holders = client_of_slot[label_of_slot == label]
        if not len(holders):
            raise UserError(
                f"config data.classes_per_client = {count}: {num_clients} clients leave label {label} "
                f"without a holder; expected clients x classes_per_client >= {num_classes}"
            )
        client_of[members] = holders[np.arange(len(members)) % len(holders)]
    return client_of


def _natural_conflicts(config: Config) -> Iterator[Finding]:
    dataset = config.data.dataset
    if dataset in DATASETS and not DATASETS.fact(dataset, "names_clients"):
        yield (
            "data.partition",
            f'"natural" needs a client column, which "{dataset}" does not have; '
            "use a prepared .h5 file with one, or another partition",
        )


@partition("natural", conflicts=_natural_conflicts, knows_clients=True)
def natural(clients: np.ndarray | None, config: DataConfig) -> tuple[np.ndarray, int]:
    """Samples belong to the client named in the data."""
    if clients is None:
        raise UserError(
            f'config data.partition = "natural": {config.dataset} has no client column '
            "(train/client); use another partition"
        )
    if len(clients) and clients.min() < 0:
        raise UserError(f"data file {config.dataset}: negative client id {clients.min()}")
    needed = int(clients.max()) + 1
    num_clients = config.num_clients or needed
    if num_clients < needed:
        raise UserError(
            f"config data.num_clients = {num_clients}: {config.dataset} has client ids up to "
            f"{needed - 1}; expected {needed}, or leave the key out"
        )
    return clients.astype(np.int64), num_clients
