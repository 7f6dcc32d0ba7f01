"""Dealing samples to clients: every rule, its law, and what it refuses."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpi.config import DataConfig
from fedmpi.data import originals, partition_rules, rng
from fedmpi.data import partition as partition_module
from fedmpi.data.partition import PARTITIONS, Partition, make_partition
from fedmpi.errors import UserError


def partition(labels, num_clients=None, name="iid", *, clients=None, seed=1, num_classes=10, **keys):
    """The partition of labels by a rule, as a config would ask for it."""
    keys = {"num_clients": num_clients, "partition": name} | keys
    return make_partition(
        np.asarray(labels), clients, num_classes, DataConfig(dataset="x.h5", **keys), seed
    )


def counts(dealt: Partition, labels: np.ndarray, num_classes: int = 10) -> np.ndarray:
    """(clients, labels): how often each client has each label."""
    return np.array(
        [
            np.bincount(labels[s], minlength=num_classes)
            for s in map(dealt.samples, range(dealt.num_clients))
        ]
    )


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    """60,000 labels, 6,000 of each: FashionMNIST's where it is installed, else shuffled ones."""
    if (originals.SYSTEM_FASHION_MNIST / "train-images-idx3-ubyte.gz").exists():
        return originals.read_fashion_mnist(originals.SYSTEM_FASHION_MNIST).train_labels
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))


@pytest.fixture(scope="module")
def paper(labels) -> Partition:
    """The paper's split: 250 clients, 5 % at random."""
    return partition(labels, 250, "majority-label", similarity=0.05)


# What holds for all rules.


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    num_clients=st.integers(5, 12),
    seed=st.integers(0, 2**63 - 1),
)
def test_each_sample_exactly_once(name, labels, num_clients, seed):
    """Every sample goes to exactly one client, and a client's samples keep their order."""
    clients = np.arange(len(labels)) * 7 % num_clients
    dealt = partition(
        labels, num_clients, name, clients=clients, seed=seed, num_classes=5, alpha=0.5, allow_empty=True
    )
    parts = [dealt.samples(client) for client in range(num_clients)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert [len(part) for part in parts] == dealt.sizes.tolist()
    assert all((np.diff(part) > 0).all() for part in parts)
    assert dealt.num_clients == num_clients


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "natural"])
def test_seed_decides(name):
    """The same seed deals alike, another seed otherwise."""
    labels = np.arange(1000) % 10
    same = [partition(labels, 20, name, alpha=1.0, seed=5).digest() for _ in range(2)]
    other = partition(labels, 20, name, alpha=1.0, seed=6).digest()
    assert same[0] == same[1] != other


def test_digest_tells_sizes_from_order():
    """Partitions with the same order of samples and other boundaries have other digests."""
    first = Partition.from_clients(np.array([0, 0, 1]), 2)
    second = Partition.from_clients(np.array([0, 1, 1]), 2)
    np.testing.assert_array_equal(first.order, second.order)
    assert first.digest() != second.digest()
    assert (
        first.digest() == Partition(np.array([0, 1, 2], np.int32), np.array([0, 2, 3], np.int16)).digest()
    )


# majority-label.


def test_blocks_of_25_clients(paper, labels):
    """Clients 25n to 25n + 24 have majority label n."""
    assert paper.majority_labels(labels).tolist() == [n for n in range(10) for _ in range(25)]


def test_sizes_are_even(paper):
    """Random arrivals are evened out: every client has 235 to 245 samples, 240 on average."""
    assert paper.num_clients == 250
    assert paper.sizes.min() >= 235
    assert paper.sizes.max() <= 245
    assert paper.sizes.sum() == 60_000


def test_share_of_foreign_labels(paper, labels):
    """A sample is dealt at random with 0.05, and then has a foreign label with 0.9."""
    own = counts(paper, labels)[np.arange(250), np.arange(250) // 25]
    # 2,700 of 60,000; the tolerance is five standard deviations, sqrt(60,000 * 0.045 * 0.955).
    assert 60_000 - own.sum() == pytest.approx(60_000 * 0.05 * 0.9, abs=5 * 50.8)
    # Each client has its share of them: 10.8 on average.
    foreign = paper.sizes - own
    assert foreign.min() >= 1
    assert foreign.max() <= 27


def test_similarity_zero(labels):
    """Without random samples a client has its own label only, and all have the same size."""
    dealt = partition(labels, 250, "majority-label", similarity=0.0)
    table = counts(dealt, labels)
    assert (np.count_nonzero(table, axis=1) == 1).all()
    assert table[np.arange(250), np.arange(250) // 25].tolist() == [240] * 250


def test_similarity_one(labels):
    """With all samples at random no client prefers its block's label, and sizes vary as draws do."""
    dealt = partition(labels, 250, "majority-label", similarity=1.0)
    own = counts(dealt, labels)[np.arange(250), np.arange(250) // 25]
    assert own.sum() / 60_000 == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / 60_000))
    # Sizes are binomial: variance 60,000 * (1 / 250) * (249 / 250) = 239, known to sqrt(2 / 249).
    assert dealt.sizes.var() == pytest.approx(239, rel=5 * np.sqrt(2 / 249))


def slow_majority_label(
    labels: np.ndarray, num_classes: int, num_clients: int, similarity: float, seed: int
) -> list[int]:
    """The walk as one would say it: the least filled client of the block by argmin."""
    draws = rng.stream(seed, "partition")
    at_random = draws.random(len(labels)) < similarity
    anyone = draws.integers(num_clients, size=len(labels))
    if num_clients >= num_classes:
        label_of = np.arange(num_clients) * num_classes // num_clients
        blocks = [np.flatnonzero(label_of == label) for label in range(num_classes)]
    else:
        blocks = [np.array([label * num_clients // num_classes]) for label in range(num_classes)]
    fill = np.zeros(num_clients, int)
    client_of = []
    for sample, label in enumerate(labels):
        block = blocks[label]
        client = anyone[sample] if at_random[sample] else block[np.argmin(fill[block])]
        fill[client] += 1
        client_of.append(int(client))
    return client_of


@pytest.mark.parametrize("similarity", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("num_clients", [250, 40, 23, 10, 7, 3, 1])
def test_equals_the_slow_walk(labels, num_clients, similarity):
    """The heap gives what the obvious walk gives, for any number of clients."""
    few = labels[:2000]
    dealt = partition(few, num_clients, "majority-label", similarity=similarity, allow_empty=True, seed=3)
    expected = slow_majority_label(few, 10, num_clients, similarity, seed=3)
    client_of = np.empty(2000, int)
    client_of[dealt.order] = np.repeat(np.arange(num_clients), dealt.sizes)
    assert client_of.tolist() == expected


@pytest.mark.parametrize(
    ("num_clients", "expected"),
    [
        (23, [0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7, 8, 8, 9, 9]),
        (12, [0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]),
        (10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_uneven_blocks(num_clients, expected):
    """Where clients are no multiple of labels, blocks stay contiguous and differ by one client."""
    labels = np.arange(2000) % 10
    dealt = partition(labels, num_clients, "majority-label", similarity=0.0)
    assert dealt.majority_labels(labels).tolist() == expected
    assert (np.count_nonzero(counts(dealt, labels), axis=1) == 1).all()


@pytest.mark.parametrize(
    ("num_clients", "expected"),
    [
        (5, [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}]),
        (3, [{0, 1, 2, 3}, {4, 5, 6}, {7, 8, 9}]),
        (1, [set(range(10))]),
    ],
)
def test_fewer_clients_than_labels(num_clients, expected):
    """Where labels outnumber clients, each client has neighbouring labels, whole."""
    labels = np.arange(200) % 10
    dealt = partition(labels, num_clients, "majority-label", similarity=0.0)
    assert [set(labels[dealt.samples(n)].tolist()) for n in range(num_clients)] == expected


def test_partition_is_fast(labels):
    """60,000 samples are dealt in well below a second."""
    seconds = []
    for seed in range(3):
        begin = time.perf_counter()
        partition(labels, 250, "majority-label", seed=seed)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.5


# The other rules.


@pytest.mark.parametrize(
    ("samples", "num_clients", "expected"),
    [(60_000, 250, {240}), (1003, 10, {100, 101}), (7, 7, {1}), (5, 1, {5})],
)
def test_iid_sizes(samples, num_clients, expected):
    """iid gives equal parts; sizes differ by one at most."""
    assert set(partition(np.zeros(samples, int), num_clients).sizes.tolist()) == expected


def test_iid_mixes_labels(labels):
    """iid clients have all labels in about equal shares."""
    table = counts(partition(labels, 100), labels)
    # 600 samples a client, 60 of each label on average; hypergeometric, standard deviation 7.3.
    assert abs(table - 60).max() < 6 * 7.3


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0, 100.0])
def test_dirichlet_proportions(alpha):
    """A client's share of a label has the variance of Dirichlet(alpha): (1/N)(1 - 1/N)/(N alpha + 1)."""
    num_clients, num_classes, each = 20, 200, 1000
    labels = np.repeat(np.arange(num_classes), each)
    dealt = partition(labels, num_clients, "dirichlet", num_classes=num_classes, alpha=alpha)
    shares = counts(dealt, labels, num_classes) / each
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    expected = (1 / num_clients) * (1 - 1 / num_clients) / (num_clients * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.12)


def test_dirichlet_extremes():
    """A tiny alpha gives each label to one client, a huge one gives every client the same."""
    labels = np.arange(5000) % 10
    tiny = counts(partition(labels, 10, "dirichlet", alpha=1e-9, allow_empty=True), labels)
    assert (tiny.max(axis=0) == 500).all()
    huge = counts(partition(labels, 10, "dirichlet", alpha=1e9), labels)
    assert abs(huge - 50).max() <= 1


def fedau_partition(mixes: np.ndarray, sizes: list[int]) -> np.ndarray:
    """(clients, labels): FedAU's `partition` (its util.py) cuts each label client by client."""
    dealt = np.zeros(mixes.shape, int)
    for label, size in enumerate(sizes):
        begin = 0
        for client in range(len(mixes)):
            end = round(size * sum(mixes[: client + 1, label]) / sum(mixes[:, label]))
            dealt[client, label], begin = end - begin, end
    return dealt


@pytest.mark.parametrize("alpha", [0.1, 1.0, 30.0])
def test_dirichlet_per_client_is_that_of_fedau(alpha):
    """From the same label mixes, clients get as many samples of each label as from the authors' loop."""
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(10), np.arange(300, 1300, 100)))
    mixes = rng.stream(1, "partition").dirichlet(np.full(10, alpha), size=40)
    dealt = partition(labels, 40, "dirichlet-per-client", alpha=alpha, allow_empty=True)
    expected = fedau_partition(mixes, np.bincount(labels).tolist())
    assert (counts(dealt, labels) == expected).all()


@pytest.mark.parametrize("seed", range(3))
def test_clients_with_their_own_mix_are_about_equal_in_size(seed):
    """CIFAR-10's labels, 250 clients, alpha 0.1: 130 to 280 samples each, few labels each."""
    labels = np.repeat(np.arange(10), 5000)
    dealt = partition(labels, 250, "dirichlet-per-client", alpha=0.1, seed=seed)
    assert 130 < dealt.sizes.min() < dealt.sizes.max() < 280
    largest = counts(dealt, labels).max(axis=1) / dealt.sizes
    # The largest share of Dirichlet(0.1) over ten labels has a mean of about 0.7.
    assert 0.6 < largest.mean() < 0.8
    by_label = partition(labels, 250, "dirichlet", alpha=0.1, seed=seed, allow_empty=True)
    assert by_label.sizes.max() > 2.5 * dealt.sizes.max()


def test_dirichlet_per_client_extremes():
    """A tiny alpha gives each client one label, a huge one the same mix; a label nobody wants is split."""
    labels = np.arange(5000) % 10
    tiny = counts(partition(labels, 3, "dirichlet-per-client", alpha=1e-9), labels)
    assert tiny.sum() == 5000
    wanted = counts(partition(labels, 100, "dirichlet-per-client", alpha=1e-9), labels)
    assert ((wanted > 0).sum(axis=1) == 1).all()
    huge = counts(partition(labels, 10, "dirichlet-per-client", alpha=1e9), labels)
    assert abs(huge - 50).max() <= 1


@pytest.mark.parametrize(("num_clients", "k"), [(20, 2), (7, 3), (10, 1), (250, 2), (3, 10), (13, 9)])
def test_classes_per_client(num_clients, k):
    """Every client has exactly k labels; the holders of a label share it evenly."""
    labels = np.arange(10_000) % 10
    table = counts(partition(labels, num_clients, "classes-per-client", classes_per_client=k), labels)
    assert (np.count_nonzero(table, axis=1) == k).all()
    for column in table.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1
    holders = np.count_nonzero(table, axis=0)
    assert holders.max() - holders.min() <= 1


@pytest.mark.parametrize(
    ("num_clients", "k", "message"),
    [(4, 11, "11: the data have 10 labels; expected at most 10"), (4, 2, "without a holder.*>= 10")],
)
def test_classes_per_client_refuses(num_clients, k, message):
    """More labels a client than there are, or too few clients for all labels, are refused."""
    with pytest.raises(UserError, match=message):
        partition(np.arange(100) % 10, num_clients, "classes-per-client", classes_per_client=k)


def test_natural():
    """Samples stay with the client that the data name; the number of clients follows."""
    dealt = partition(np.zeros(5, int), None, "natural", clients=np.array([2, 0, 2, 1, 0], np.uint8))
    assert [dealt.samples(n).tolist() for n in range(3)] == [[1, 4], [3], [0, 2]]
    assert dealt.num_clients == 3


@pytest.mark.parametrize(
    ("clients", "num_clients", "message"),
    [
        (None, None, "no client column"),
        ([0, 1, -2], None, "negative client id -2"),
        ([0, 5, 1], 5, "client ids up to 5; expected 6, or leave the key out"),
    ],
)
def test_natural_refuses(clients, num_clients, message):
    """A missing client column, negative ids, and ids beyond num_clients are refused."""
    clients = clients if clients is None else np.array(clients)
    with pytest.raises(UserError, match=message):
        partition(np.zeros(3, int), num_clients, "natural", clients=clients)


def test_quadratic_data_are_natural():
    """Quadratic data belong to the client of each center, whatever the partition says."""
    config = DataConfig(dataset="quadratic", partition="iid", num_clients=3)
    dealt = make_partition(np.zeros(3, int), np.arange(3), 1, config, seed=1)
    assert [dealt.samples(n).tolist() for n in range(3)] == [[0], [1], [2]]


# Clients without samples.


@pytest.mark.parametrize(
    ("clients", "num_clients", "message"),
    [
        ([0, 2, 2], None, r"1 of 3 clients have no samples \(client 1\)"),
        ([1, 1, 1], 4, r"3 of 4 clients have no samples \(client 0, 2, 3\)"),
        ([9, 9, 9], None, r"9 of 10 clients have no samples \(client 0, 1, 2, 3, 4, \.\.\.\)"),
    ],
)
def test_empty_clients_are_named(clients, num_clients, message):
    """A client without samples is an error that names it and the key that accepts it."""
    with pytest.raises(UserError, match=message + r".*data\.allow_empty = true"):
        partition(np.zeros(3, int), num_clients, "natural", clients=np.array(clients))
    dealt = partition(np.zeros(3, int), num_clients, "natural", clients=np.array(clients), allow_empty=True)
    assert dealt.sizes.tolist() == np.bincount(clients, minlength=num_clients or 0).tolist()


@pytest.mark.parametrize("name", ["iid", "majority-label", "dirichlet"])
def test_more_clients_than_samples(name):
    """More clients than samples is an error, unless empty clients are accepted."""
    with pytest.raises(UserError, match=f'"{name}".*of 20 clients have no samples'):
        partition(np.arange(10), 20, name)
    dealt = partition(np.arange(10), 20, name, allow_empty=True)
    assert dealt.sizes.sum() == 10


def test_majority_labels_by_hand():
    """The most frequent label of a client, the lowest of equals, -1 without samples."""
    client_of = np.array([0, 1, 0, 1, 3, 0, 3, 4, 4, 4, 4])
    labels = np.array([2, 7, 1, 3, 5, 2, 5, 9, 0, 9, 0])
    dealt = Partition.from_clients(client_of, 6)
    # Client 0: 2 1 2. Client 1: 7 3, a tie. Client 3: 5 5. Client 4: 9 0 9 0, a tie. 2 and 5 have none.
    assert dealt.majority_labels(labels).tolist() == [2, 3, -1, 5, 0, -1]


@settings(deadline=None, max_examples=60, database=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(2, 40),
    samples=st.integers(0, 400),
    share=st.floats(0, 0.95),
)
def test_dealing_by_levels_is_dealing_one_by_one(seed, count, samples, share):
    """Every sample goes to the same client, however many arrive at random."""
    draws = np.random.default_rng(seed)
    is_random = draws.random(samples) < share
    dealt, arrivals = np.flatnonzero(~is_random), np.flatnonzero(is_random)
    of = draws.integers(count, size=len(arrivals))  # the clients to which they come
    order = np.argsort(of, kind="stable")
    arrivals, clients = arrivals[order], of[order]
    one = partition_rules._deal_one_by_one(dealt, arrivals, clients, count)
    assert partition_rules._deal_by_levels(dealt, arrivals, clients, count).tolist() == one.tolist()


def test_majority_labels_of_many_pairs(monkeypatch):
    """Both ways of counting find the same labels, -1 for a client without samples."""
    labels = np.random.default_rng(3).integers(7, size=300)
    part = Partition.from_clients(np.random.default_rng(4).integers(90, size=300), 95)
    expected = part.majority_labels(labels)
    monkeypatch.setattr(partition_module, "_FEW_PAIRS", 0)
    assert part.majority_labels(labels).tolist() == expected.tolist()
    assert -1 in expected
