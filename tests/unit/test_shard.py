"""What a rank holds: minibatches, normalisation, augmentation, noise, evaluation blocks."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from fedmpi.config import Config, validate
from fedmpi.data.evaluation import EVAL_BLOCK, EvalData, Normaliser, eval_rows, stratified
from fedmpi.data.loading import _Header, _owned_rows
from fedmpi.data.ownership import owned_by
from fedmpi.data.partition import Partition
from fedmpi.data.prepared import Dataset
from fedmpi.data.shard import ClientData, random_crop_flip
from fedmpi.tasks.classification import Classification
from tests.support.simulations import minibatches

CPU = torch.device("cpu")
SIZES = [10, 4, 1, 7, 3, 10]  # samples of six clients
QUADRATIC = """
[run]
num_rounds = 1
dtype = "float64"
[data]
dataset = "quadratic"
centers = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
noise_std = 0.5
[model]
name = "quadratic"
[participation]
[algorithm]
local_lr = 0.1
local_steps = 1
"""


def as_they_are(dtype: torch.dtype = torch.float64) -> Normaliser:
    """The normaliser of float samples."""
    return Normaliser(None, None, dtype)


def shard(
    config: Config, sizes: list[int], rank: int = 0, size: int = 1, inputs: np.ndarray | None = None
) -> ClientData:
    """A rank's clients. Unless given, sample i is the number i; so is its label."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ids = np.random.default_rng(3).permutation(offsets[-1])  # a client's samples lie anywhere
    partition = Partition(ids, offsets)
    rows = _owned_rows(partition, rank, size)
    if inputs is None:
        inputs = np.arange(offsets[-1], dtype=np.float64)[:, None]
    return ClientData(
        config, partition, (rank, size), *map(torch.from_numpy, (inputs[rows], rows)), as_they_are()
    )


def members(sizes: list[int], client: int) -> list[int]:
    """Sample ids of a client of `shard`."""
    ids = np.random.default_rng(3).permutation(sum(sizes))
    return ids[sum(sizes[:client]) : sum(sizes[: client + 1])].tolist()


def draw(data: ClientData, client: int, drawn: int, count: int) -> list[list[int]]:
    """Sample ids of each minibatch."""
    batches = []
    for inputs, labels in minibatches(data, client, drawn, count):
        assert inputs.ravel().tolist() == labels.tolist()
        batches.append(labels.tolist())
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    """All sample ids in a row."""
    return list(itertools.chain.from_iterable(batches))


@pytest.fixture
def config(small_config) -> Config:
    """The small experiment with minibatches of three."""
    return validate.load(small_config, ["algorithm.batch_size=3"])


def test_clients_are_owned_by_stride():
    """Rank r of R has clients r, r + R, r + 2R, ...; all ranks together have each client once."""
    assert owned_by(1, 4, 10).tolist() == [1, 5, 9]
    assert owned_by(4, 5, 3).tolist() == []
    for size in range(1, 6):
        together = np.concatenate([owned_by(rank, size, 13) for rank in range(size)])
        assert sorted(together.tolist()) == list(range(13))


def test_walk_through_a_shuffle(config):
    """A client walks through a shuffle of its own samples, drops the last short batch and reshuffles."""
    data = shard(config, SIZES)
    batches = draw(data, 0, 0, 12)
    own = set(members(SIZES, 0))
    assert [len(batch) for batch in batches] == [3] * 12
    # 10 samples: three batches of 3 an epoch, the tenth sample of the shuffle is dropped.
    epochs = [flat(batches[i : i + 3]) for i in range(0, 12, 3)]
    for epoch in epochs:
        assert len(set(epoch)) == 9
        assert set(epoch) < own
    assert len({tuple(epoch) for epoch in epochs}) == 4, "not shuffled again"
    assert epochs[0] != sorted(epochs[0])


def test_all_samples_get_their_turn(config):
    """Over many epochs every sample is dropped equally often: shuffles are uniform."""
    data = shard(config, SIZES)
    seen = Counter(flat(draw(data, 0, 0, 3 * 2000)))
    # Each of 10 samples is dropped in 2,000 / 10 epochs; binomial, standard deviation 13.4.
    assert set(seen) == set(members(SIZES, 0))
    assert max(abs(count - 1800) for count in seen.values()) < 5 * 13.4


def test_minibatches_are_addressed(config):
    """Minibatches depend on (client, drawn) only: not on the round's length, order, or other clients."""
    data = shard(config, SIZES)
    expected = {client: draw(shard(config, SIZES), client, 0, 20) for client in (0, 3, 5)}
    for client, drawn, count in [(3, 7, 5), (0, 19, 1), (5, 0, 20), (0, 0, 4), (3, 0, 1), (0, 2, 17)]:
        assert draw(data, client, drawn, count) == expected[client][drawn : drawn + count]


def test_clients_and_seeds_shuffle_differently(small_config):
    """Two clients with as many samples, and two seeds, give other shuffles."""

    def positions(seed: int, client: int) -> list[int]:
        config = validate.load(small_config, ["algorithm.batch_size=3", f"run.seed={seed}"])
        own = members(SIZES, client)
        return [own.index(i) for i in flat(draw(shard(config, SIZES), client, 0, 3))]

    assert positions(1, 0) == positions(1, 0)
    assert len({tuple(positions(seed, client)) for seed in (1, 2) for client in (0, 5)}) == 4


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("batch_size", [0, 1, 3, 10])
def test_minibatches_do_not_depend_on_the_ranks(small_config, size, batch_size):
    """A client draws the same minibatches whatever rank owns it, out of however many."""
    config = validate.load(small_config, [f"algorithm.batch_size={batch_size}"])
    alone = shard(config, SIZES)
    for rank in range(size):
        data = shard(config, SIZES, rank, size)
        for client in owned_by(rank, size, len(SIZES)).tolist():
            assert data.size(client) == SIZES[client]
            assert draw(data, client, 5, 4) == draw(alone, client, 5, 4)


@pytest.mark.parametrize("batch_size", [0, 3, 7, 8])
def test_lent_samples_make_the_same_minibatches(small_config, batch_size):
    """Another rank makes of an owner's lent samples the minibatches that the owner would have made."""
    config = validate.load(small_config, [f"algorithm.batch_size={batch_size}"])
    owner, borrower = shard(config, SIZES, rank=1, size=2), shard(config, SIZES, rank=0, size=2)
    samples = owner.draw(3, 5, 4)
    assert len(samples[0]) == len(samples[1]) == owner.num_drawn(3, 4) == borrower.num_drawn(3, 4)
    seen = [labels.tolist() for _, labels in minibatches(borrower, 3, 5, 4, samples)]
    assert seen == draw(owner, 3, 5, 4)


@pytest.mark.parametrize("batch_size", [0, 4, 5, 1000])
def test_full_data(small_config, batch_size):
    """Batch size 0, and one as large as the data or larger, give all samples of the client, every time."""
    config = validate.load(small_config, [f"algorithm.batch_size={batch_size}"])
    assert draw(shard(config, SIZES), 1, 6, 3) == [members(SIZES, 1)] * 3


def test_batch_that_divides_the_data(small_config):
    """A batch size that divides the data drops nothing."""
    config = validate.load(small_config, ["algorithm.batch_size=5"])
    batches = draw(shard(config, SIZES), 0, 0, 4)
    assert sorted(batches[0] + batches[1]) == sorted(batches[2] + batches[3]) == sorted(members(SIZES, 0))


# Normalisation.


def header(inputs: np.ndarray, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> _Header:
    """The header of a data set of these inputs."""
    labels = np.zeros(len(inputs), np.int64)
    return _Header.of(Dataset("x", inputs, labels, inputs[:0], labels[:0], 1, mean, std), Classification())


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=["float32", "float64"]
)
@pytest.mark.parametrize(
    ("shape", "mean", "std", "pixels", "expected"),
    [
        # (0 - .1307) / .3081, (1 - .1307) / .3081, (51/255 - .1307) / .3081
        (
            (1, 1, 3),
            (0.1307,),
            (0.3081,),
            [0, 255, 51],
            [-0.42421291788380, 2.82148653034729, 0.22492697176241],
        ),
        # (0 - .4914) / .2023, (.2 - .4822) / .1994, (1 - .4465) / .2010
        (
            (3, 1, 1),
            (0.4914, 0.4822, 0.4465),
            (0.2023, 0.1994, 0.2010),
            [0, 51, 255],
            [-2.42906574394464, -1.41524573721163, 2.75373134328358],
        ),
        ((3,), (0.5,), (0.25,), [0, 255, 51], [-2.0, 2.0, -1.2]),
        ((3, 1), (0.5,), (0.25,), [0, 255, 51], [-2.0, 2.0, -1.2]),
    ],
    ids=["fashion", "cifar", "vector", "matrix"],
)
def test_normalisation_by_hand(shape, mean, std, pixels, expected, dtype, tolerance):
    """A byte becomes (byte / 255 - mean) / std of its channel, in the training precision."""
    inputs = np.array(pixels, np.uint8).reshape(1, *shape)
    normalise = Normaliser.of(header(inputs, mean, std), dtype, CPU)
    result = normalise(torch.from_numpy(inputs))
    assert result.dtype == dtype
    assert result.shape == inputs.shape
    np.testing.assert_allclose(result.ravel().numpy(), expected, rtol=0, atol=10 * tolerance)
    assert inputs.ravel().tolist() == pixels, "the samples themselves were changed"


@pytest.mark.parametrize(("mean", "std"), [((), ()), ((0.5,), (0.25,))], ids=["no mean", "a mean"])
def test_float_samples_stay_as_they_are(mean, std):
    """Float samples are converted and not scaled, also where a mean is stated; a copy is given."""
    inputs = np.array([[0.25, -3.0], [200.0, 1e-3]])
    normalise = Normaliser.of(header(inputs, mean, std), torch.float64, CPU)
    result = normalise(torch.from_numpy(inputs))
    assert result.tolist() == [[0.25, -3.0], [200.0, 1e-3]]
    result += 1
    assert inputs[0, 0] == 0.25


# Augmentation.


class Chosen:
    """Gives chosen numbers where random ones are asked for."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.bounds: list[int] = []

    def integers(self, bound: int) -> int:
        """The next number."""
        self.bounds.append(bound)
        return self.numbers.pop(0)


IMAGE = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    ("top", "left", "flip", "expected"),
    [
        (4, 4, 0, IMAGE),
        (4, 4, 1, [[3, 2, 1], [6, 5, 4], [9, 8, 7]]),
        (5, 4, 0, [[4, 5, 6], [7, 8, 9], [0, 0, 0]]),
        (4, 3, 0, [[0, 1, 2], [0, 4, 5], [0, 7, 8]]),
        (4, 3, 1, [[2, 1, 0], [5, 4, 0], [8, 7, 0]]),
        (2, 6, 0, [[0, 0, 0], [0, 0, 0], [3, 0, 0]]),
        (0, 8, 0, [[0, 0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_crop_and_flip_by_hand(top, left, flip, expected):
    """One crop out of 4 pixels of padding, and one mirroring, for all images and channels alike."""
    images = torch.tensor(IMAGE, dtype=torch.float32) * torch.tensor([1.0, 10, 100, 1000]).view(2, 2, 1, 1)
    draws = Chosen(top, left, flip)
    result = random_crop_flip(images, draws)
    assert draws.bounds == [9, 9, 2]
    for i, factor in enumerate([1, 10, 100, 1000]):
        assert result[i // 2, i % 2].tolist() == (factor * np.array(expected)).tolist()


def augmented(small_config, rank: int = 0, size: int = 1) -> ClientData:
    """A rank's clients with random crops and flips; an image is filled with pixels that differ."""
    config = validate.load(small_config, ["algorithm.batch_size=3", "data.augment=true"])
    images = 1 + np.arange(sum(SIZES) * 2 * 9 * 9, dtype=np.float64).reshape(sum(SIZES), 2, 9, 9)
    return shard(config, SIZES, rank, size, images)


def test_augmented_minibatches(small_config):
    """A minibatch is one crop and flip of the images its labels name; minibatches draw their own."""
    data = augmented(small_config)
    images = torch.arange(1, 1 + sum(SIZES) * 2 * 9 * 9, dtype=torch.float64).view(-1, 2, 9, 9)
    choices = []
    for inputs, labels in minibatches(data, 0, 0, 40):
        fitting = [
            choice
            for choice in np.ndindex(9, 9, 2)
            if torch.equal(inputs, random_crop_flip(images[labels], Chosen(*choice)))
        ]
        assert len(fitting) == 1
        choices += fitting
    assert len(set(choices)) > 25
    tops, lefts, flips = map(set, zip(*choices, strict=True))
    assert min(tops) <= 1 < 7 <= max(tops)
    assert min(lefts) <= 1 < 7 <= max(lefts)
    assert flips == {0, 1}


def test_augmentation_is_addressed(small_config):
    """Crops and flips depend on (client, drawn) only, not on ranks or on what was drawn before."""
    whole = minibatches(augmented(small_config), 3, 0, 6)
    parts = augmented(small_config, rank=1, size=2)
    for number in (5, 0, 3):
        ((inputs, labels),) = minibatches(parts, 3, number, 1)
        assert torch.equal(inputs, whole[number][0])
        assert torch.equal(labels, whole[number][1])
    other = minibatches(augmented(small_config), 0, 5, 1)[0][0]
    assert not torch.equal(other, whole[5][0])


# Noise of the quadratic problem.


def noisy(rank: int = 0, size: int = 1, seed: int = 1) -> ClientData:
    """Four clients with one center each, and gradient noise of standard deviation 0.5."""
    config = validate.parse(QUADRATIC, "quadratic.toml", [f"run.seed={seed}"])
    return shard(config, [1, 1, 1, 1], rank, size, np.zeros((4, 2)))


def noise(data: ClientData, client: int, drawn: int, count: int) -> list[list[float]]:
    """The noise of minibatches, around centers at 0."""
    return [inputs[0].tolist() for inputs, _ in minibatches(data, client, drawn, count)]


def test_noise_is_addressed():
    """Noise depends on (seed, client, drawn): the same on any rank and in any order, else another."""
    expected = noise(noisy(), 3, 0, 8)
    for rank, size in [(0, 1), (1, 2), (0, 3), (3, 4)]:
        data = noisy(rank, size)
        assert noise(data, 3, 5, 3) == expected[5:]
        assert noise(data, 3, 0, 2) == expected[:2]
    others = noise(noisy(), 2, 0, 8) + noise(noisy(seed=2), 3, 0, 8)
    assert len({tuple(value) for value in expected + others}) == 24


def test_noise_has_the_spread_asked_for():
    """Noise is normal in each coordinate with mean 0 and standard deviation noise_std."""
    values = np.array(noise(noisy(), 1, 0, 4000))
    # 8,000 draws: the mean is known to 0.5 / sqrt(8000), the deviation to 0.5 / sqrt(16000).
    assert abs(values.mean()) < 5 * 0.5 / np.sqrt(8000)
    assert values.std() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(16_000))
    assert abs(np.corrcoef(values.T)[0, 1]) < 5 / np.sqrt(4000)


def test_stored_samples_stay_clean():
    """Noise is added to a copy: the centers themselves do not drift."""
    data = noisy()
    noise(data, 0, 0, 50)
    assert data.inputs.tolist() == [[0.0, 0.0]] * 4


def test_noise_of_synthetic_data_is_in_the_data(small_config):
    """noise_std of synthetic data is part of the samples; minibatches get no more of it."""
    config = validate.load(small_config, ["algorithm.batch_size=0"])
    assert config.data.noise_std == 0.25
    assert draw(shard(config, SIZES), 0, 0, 2) == [members(SIZES, 0)] * 2


# Evaluation.


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("samples", [0, 1, EVAL_BLOCK - 1, EVAL_BLOCK, EVAL_BLOCK + 1, 7 * EVAL_BLOCK - 3])
def test_eval_blocks_cover_all_samples_once(samples, size, at_once):
    """The blocks of all ranks hold every sample once; block b is the same samples on any rank count."""
    num_blocks = -(-samples // EVAL_BLOCK)
    seen = {}
    for rank in range(size):
        blocks, rows = eval_rows(samples, rank, size, EVAL_BLOCK)
        ids = torch.from_numpy(rows)
        data = EvalData(
            block_ids=blocks,
            num_blocks=num_blocks,
            block=EVAL_BLOCK,
            num_samples=samples,
            inputs=ids[:, None].double(),
            labels=ids,
            normalise=as_they_are(),
        )
        pieces = data.blocks(at_once)
        found = [pair for inputs, labels in pieces for pair in zip(inputs.clone(), labels, strict=True)]
        for block, (inputs, labels) in zip(blocks.tolist(), found, strict=True):
            assert block not in seen
            assert inputs.ravel().tolist() == labels.tolist()
            seen[block] = labels.tolist()
    assert sorted(seen) == list(range(num_blocks))
    for block, ids in seen.items():
        assert ids == list(range(block * EVAL_BLOCK, min((block + 1) * EVAL_BLOCK, samples)))


def test_eval_blocks_are_normalised():
    """Evaluation sees normalised samples, without augmentation."""
    inputs = np.array([[[[0, 255]]], [[[51, 0]]]], np.uint8)
    normalise = Normaliser.of(header(inputs, (0.5,), (0.25,)), torch.float64, CPU)
    data = EvalData(
        block_ids=np.array([0]),
        num_blocks=1,
        block=EVAL_BLOCK,
        num_samples=2,
        inputs=torch.from_numpy(inputs),
        labels=torch.tensor([3, 4]),
        normalise=normalise,
    )
    ((stored, labels),) = data.blocks()
    values = data.normalise.into(data.room, stored.flatten(0, 1))
    assert labels.tolist() == [[3, 4]]
    np.testing.assert_allclose(values.ravel().numpy(), [-2.0, 2.0, -1.2, -2.0], atol=1e-14)


def test_client_without_samples_has_size_zero(config):
    """A client may have no samples; the others' samples are not shifted by it."""
    sizes = [2, 0, 3, 0]
    data = shard(config, sizes, rank=0, size=2)
    assert [data.size(client) for client in (0, 2)] == [2, 3]
    assert draw(data, 2, 0, 1) == [members(sizes, 2)]
    assert shard(config, sizes, rank=1, size=2).size(3) == 0


@pytest.mark.parametrize("count", [1, 10, 37, 100, 999, 1000, 5000])
def test_a_subset_has_every_label_in_its_share(count):
    """A stratified subset holds each label as often as its share, give or take one; no sample twice."""
    labels = np.random.default_rng(1).choice(4, 1000, p=[0.5, 0.3, 0.15, 0.05])
    rows = stratified(labels, count, seed=3)
    assert len(rows) == min(count, 1000)
    assert (np.diff(rows) > 0).all()
    share = np.bincount(labels, minlength=4) * len(rows) / 1000
    assert (np.abs(np.bincount(labels[rows], minlength=4) - share) <= 1).all()
    np.testing.assert_array_equal(rows, stratified(labels, count, seed=3))
    if 10 <= count < 1000:
        assert not np.array_equal(rows, stratified(labels, count, seed=4))
