"""The rules by which training samples are given to clients, one function each.

Invariant: a rule is a pure function of (labels, config, seed).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmpi.config.keys import Config, DataConfig
from fedmpi.config.options import option
from fedmpi.config.registry import DATASETS, Finding
from fedmpi.data import rng
from fedmpi.data.partition import partition
from fedmpi.errors import UserError


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

    alpha: float = option(0.1, "dirichlet, dirichlet-per-client: concentration; small = uneven", above=0)


@partition("dirichlet", DirichletKeys)
def dirichlet(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """Each label's samples are split over the clients by a draw of Dirichlet(alpha), as NIID-Bench does.

    Clients differ in size too; at small alpha some have hardly a sample.
    """
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


@partition("dirichlet-per-client", DirichletKeys)
def dirichlet_per_client(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """Each client draws its label mix from Dirichlet(alpha), as FedAU, FedAWE and FedPBC do.

    A label's samples are split in proportion to the clients' shares of it: sizes stay near each other.
    """
    draws = rng.stream(seed, "partition")
    mixes = draws.dirichlet(np.full(num_classes, config.alpha), size=num_clients)
    client_of = np.empty(len(labels), np.int64)
    for label in range(num_classes):
        members = draws.permutation(np.flatnonzero(labels == label))
        # Tiny shares may underflow; a label that nobody wants is split evenly.
        shares = mixes[:, label] if mixes[:, label].sum() > 0 else np.ones(num_clients)
        ends = np.round(len(members) * np.cumsum(shares) / shares.sum())
        client_of[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
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
