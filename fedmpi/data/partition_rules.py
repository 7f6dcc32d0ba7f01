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


@partition("majority-label", MajorityLabelKeys, by_label=True)
def majority_label(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """The paper's split: blocks of contiguous clients have one majority label each.

    Walking through the samples, each goes with probability `similarity` to a uniformly random client,
    else to the least filled client of its label's block (the lowest id in a tie).
    """
    draws = rng.stream(seed, "partition")
    at_random = draws.random(len(labels)) < config.similarity
    client_of = draws.integers(num_clients, size=len(labels))  # of those dealt at random

    # Blocks share no client, so each is dealt by itself; where labels outnumber clients a block is one.
    strangers = np.flatnonzero(at_random)
    strangers = strangers[np.argsort(client_of[strangers], kind="stable")]  # client by client, in order
    for label in range(num_classes):
        block = _block(label, num_classes, num_clients)
        dealt = np.flatnonzero((labels == label) & ~at_random)
        first, last = np.searchsorted(client_of[strangers], [block.start, block.stop])
        arrivals = strangers[first:last]
        if len(block) == 1:
            client_of[dealt] = block.start
        else:
            deal = _deal_by_levels if _is_quicker_by_levels(dealt, arrivals, block) else _deal_one_by_one
            client_of[dealt] = deal(dealt, arrivals, client_of[arrivals] - block.start, len(block))
            client_of[dealt] += block.start
    return client_of


def _is_quicker_by_levels(dealt: np.ndarray, arrivals: np.ndarray, block: range) -> bool:
    """For many clients, if arrivals at random seldom decide who is the least filled."""
    return len(block) >= 128 and 2 * len(arrivals) <= len(dealt)


def _deal_one_by_one(
    dealt: np.ndarray, arrivals: np.ndarray, clients: np.ndarray, count: int
) -> np.ndarray:
    """Who of `count` clients gets each dealt sample: the least filled, the first in a tie.

    `arrivals` are samples that come to `clients` at random, client by client; the number of a sample is its
    time.
    """
    # In the order of time; -1 for a sample to be dealt.
    times = np.concatenate([dealt, arrivals])
    events = np.concatenate([np.full(len(dealt), -1), clients])[np.argsort(times, kind="stable")]
    # A heap of (fill, client). A random arrival leaves a stale entry, recognised by its fill.
    fill, heap, takers = [0] * count, [(0, client) for client in range(count)], []
    for client in events.tolist():
        if client >= 0:
            fill[client] += 1
            continue
        while heap[0][0] != fill[heap[0][1]]:
            stale = heap[0][1]
            heapq.heapreplace(heap, (fill[stale], stale))
        client = heap[0][1]
        fill[client] += 1
        heapq.heapreplace(heap, (fill[client], client))
        takers.append(client)
    return np.array(takers, np.int64)


def _deal_by_levels(dealt: np.ndarray, arrivals: np.ndarray, clients: np.ndarray, count: int) -> np.ndarray:
    """As `_deal_one_by_one`, without a loop over samples.

    The samples dealt fill the clients level by level, on each level in the order of clients. A client is
    passed over if an arrival took its place on this level before. Who is passed over decides when the
    others get theirs, which decides who is passed over: repeated until it agrees, each time right for one
    more client at least, in practice for all after a few times.
    """
    never = np.iinfo(np.int64).max
    when, times = np.append(arrivals, never), np.append(dealt, never)
    ends = np.cumsum(np.bincount(clients, minlength=count))
    upcoming = np.concatenate([[0], ends[:-1]])  # the next arrival of each client
    takers, done, places = np.empty(len(dealt), np.int64), 0, np.arange(count)
    while done < len(dealt):
        arrives = np.where(upcoming < ends, when[upcoming], never)
        passed = np.zeros(count, bool)
        while True:
            before = done + places - (np.cumsum(passed) - passed)  # samples dealt until this client's turn
            again = arrives < times[np.minimum(before, len(dealt))]
            if np.array_equal(again, passed):
                break
            passed = again
        level = np.flatnonzero(~passed)[: len(dealt) - done]
        takers[done : done + len(level)] = level
        done += len(level)
        upcoming += passed
    return takers


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


@partition("dirichlet", DirichletKeys, by_label=True)
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


@partition("dirichlet-per-client", DirichletKeys, by_label=True)
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


@partition("classes-per-client", ClassesPerClientKeys, conflicts=_classes_conflicts, by_label=True)
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
