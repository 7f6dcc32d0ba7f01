"""A client's round: I steps of SGD from x, as an update that does not lose small steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.config import validate
from fedmpi.data.evaluation import Normaliser
from fedmpi.data.partition import Partition
from fedmpi.data.shard import ClientData, Work
from fedmpi.errors import ClientError
from fedmpi.methods import Method, Round
from fedmpi.models.engines.autograd import OneByOne
from fedmpi.models.flat import FlatModel
from fedmpi.models.losses import Quadratic
from fedmpi.simulation.client import Failures, LocalTrainer, Task
from tests.support.configs import SMALL
from tests.support.simulations import minibatches

CPU = torch.device("cpu")
SIZES = [7, 0, 5, 4]  # samples of four clients; client 1 has none
INPUTS = np.random.default_rng(1).standard_normal((16, 3))
LABELS = np.random.default_rng(2).integers(4, size=16)


def plain() -> Method:
    """Generalized FedAvg."""
    return Method(validate.parse(SMALL, "small.toml"), 4)


def make_trainer(module: nn.Module, data: ClientData, dtype: torch.dtype, *, reseed=False) -> LocalTrainer:
    """A trainer that starts from the module's parameters."""
    model = FlatModel(module, dtype, CPU)
    made = LocalTrainer(OneByOne(model))
    made.start, made.data, made.reseed = model.values.clone(), data, reseed
    made.model = model
    return made


@pytest.fixture
def trainer(small_config):
    """Make a trainer of a module on the four clients above."""

    def make(module: nn.Module, *, batch_size: int = 3, dtype=torch.float64, reseed=False) -> LocalTrainer:
        config = validate.load(small_config, [f"algorithm.batch_size={batch_size}"])
        partition = Partition(np.arange(16), np.concatenate([[0], np.cumsum(SIZES)]))
        normalise = Normaliser(None, None, dtype)
        samples = torch.from_numpy(INPUTS), torch.from_numpy(LABELS)
        data = ClientData(config, partition, (0, 1), *samples, normalise)
        return make_trainer(module, data, dtype, reseed=reseed)

    return make


def train(trainer: LocalTrainer, client=0, *, t=0, drawn=0, steps=4, lr=0.1) -> np.ndarray:
    """The client's update; the buffer holds rubbish before."""
    update = torch.full_like(trainer.start, 1e9)
    task = Task(
        start=trainer.start,
        local={"update": update[None]},
        works=[Work(trainer.data, client, drawn, steps=steps)],
        method=plain(),
        current=Round(t, np.array([client]), np.ones(1), lr),
        reseed=trainer.reseed,
    )
    failures = Failures()
    trainer.train(update[None], [task], failures)
    failures.raise_first()
    return update.double().numpy()


def logistic() -> nn.Module:
    """A linear classifier of 3 features into 4 labels, with weights around 1."""
    torch.manual_seed(4)
    module = nn.Linear(3, 4)
    nn.init.uniform_(module.weight, 0.6, 1.4)
    nn.init.uniform_(module.bias, 0.6, 1.4)
    return module


def numpy_sgd(start: np.ndarray, batches: list, lr: float) -> np.ndarray:
    """SGD on the cross-entropy of a linear classifier, in float64 numpy; returns y - x."""
    y = start.copy()
    for inputs, labels in batches:
        weight, bias = y[:12].reshape(4, 3), y[12:]
        logits = inputs @ weight.T + bias
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1
        slope = chances / len(labels)
        y -= lr * np.concatenate([(slope.T @ inputs).ravel(), slope.sum(axis=0)])
    return y - start


def batches_of(trainer: LocalTrainer, client: int, drawn: int, count: int) -> list:
    """A client's minibatches as numpy arrays."""
    return [(x.double().numpy(), y.numpy()) for x, y in minibatches(trainer.data, client, drawn, count)]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("batch_size", [3, 0])
@pytest.mark.parametrize(("client", "drawn", "steps"), [(0, 0, 1), (0, 5, 7), (2, 1, 4), (3, 100, 2)])
def test_local_training_is_sgd(trainer, client, drawn, steps, batch_size, dtype, tolerance):
    """An update equals that of SGD by hand on the client's own next minibatches."""
    made = trainer(logistic(), batch_size=batch_size, dtype=dtype)
    batches = batches_of(made, client, drawn, steps)
    assert len(batches) == steps
    assert all(len(labels) == (batch_size or SIZES[client]) for _, labels in batches)
    expected = numpy_sgd(made.model.initial, batches, lr=0.3)
    seen = train(made, client, drawn=drawn, steps=steps, lr=0.3)
    assert np.linalg.norm(seen - expected) < tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("steps", "lr", "expected"),
    [(1, 0.5, [0.5, -1.0]), (2, 0.5, [0.75, -1.5]), (3, 1.0, [1.0, -2.0]), (2, 2.0, [0.0, 0.0])],
)
def test_quadratic_by_hand(small_config, steps, lr, expected):
    """From x = 0 towards z = (1, -2): each step covers the share gamma of what is left."""
    config = validate.load(small_config, ["algorithm.batch_size=0"])
    partition = Partition(np.arange(1), np.array([0, 1]))
    center, label = np.array([[1.0, -2.0]]), np.zeros(1, np.int64)
    data = ClientData(
        config,
        partition,
        (0, 1),
        *map(torch.from_numpy, (center, label)),
        Normaliser(None, None, torch.float64),
    )
    made = make_trainer(Quadratic([0.0, 0.0]), data, torch.float64)
    assert train(made, steps=steps, lr=lr).tolist() == expected


def test_small_steps_are_not_lost(trainer):
    """At gamma = 1e-8 float32 weights stepped in place do not move; the update is right to 1e-5."""
    made = trainer(logistic(), dtype=torch.float32)
    batches = batches_of(made, 0, 0, 5)
    expected = numpy_sgd(made.model.initial, batches, lr=1e-8)
    assert np.abs(expected).max() > 1e-8

    in_place = logistic()
    before = [p.detach().clone() for p in in_place.parameters()]
    for inputs, labels in batches:
        logits = in_place(torch.from_numpy(inputs).float())
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        gradients = torch.autograd.grad(loss, list(in_place.parameters()))
        with torch.no_grad():
            for y, gradient in zip(in_place.parameters(), gradients, strict=True):
                y -= 1e-8 * gradient
    assert all(torch.equal(y, b) for y, b in zip(in_place.parameters(), before, strict=True))

    # What numpy_sgd gives is itself rounded at 1e-16, far below 1e-5 of 1e-8.
    np.testing.assert_allclose(train(made, steps=5, lr=1e-8), expected, rtol=1e-5, atol=1e-14)


def test_update_is_a_pure_function(trainer):
    """An update depends on x, gamma and the minibatches: not on earlier clients, and x stays as it was."""
    made = trainer(logistic())
    start = made.start.clone()
    first = train(made, 0)
    train(made, 2, drawn=8, lr=3.0)
    made.model.values.fill_(77)
    np.testing.assert_array_equal(train(made, 0), first)
    assert torch.equal(made.start, start)
    made.start += 1e-3
    assert not np.array_equal(train(made, 0), first)


@pytest.mark.parametrize("batch_size", [3, 0])
def test_client_without_samples(trainer, batch_size):
    """A client without samples has a zero update."""
    assert train(trainer(logistic(), batch_size=batch_size), client=1).tolist() == [0.0] * 16


class Failing(nn.Module):
    """Fails at the third call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits, twice."""
        self.calls += 1
        if self.calls == 3:
            raise ValueError("this network is tired")
        return self.layer(inputs)


def test_failure_names_round_and_client(trainer):
    """An exception in a user's model tells the round, the client, and itself."""
    with pytest.raises(
        ClientError, match=r"^round 41, client 2: ValueError: this network is tired$"
    ) as caught:
        train(trainer(Failing()), client=2, t=41)
    assert isinstance(caught.value.__cause__, ValueError)


def test_wrong_output_names_round_and_client(trainer):
    """A model with too few outputs for the labels fails with round and client too."""
    with pytest.raises(ClientError, match=r"^round 3, client 0: IndexError"):
        train(trainer(nn.Linear(3, 1), batch_size=0), t=3)


class HalfUsed(nn.Module):
    """A frozen first layer, a trained second one, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.trained = nn.Linear(3, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.trained(self.frozen(inputs))


def test_frozen_and_unused_parameters_stay(trainer):
    """Frozen and unused parameters have a zero update, trained ones do not."""
    made = trainer(HalfUsed())
    parts = dict(zip(made.model.names, made.model.views(torch.from_numpy(train(made))), strict=True))
    for name, update in parts.items():
        if name.startswith("trained"):
            assert (update != 0).all(), name
        else:
            assert (update == 0).all(), name


def test_non_finite_update_is_passed_on(trainer):
    """A client that diverges gives a non-finite update; judging it is not the trainer's work."""
    made = trainer(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)), dtype=torch.float32)
    assert not np.isfinite(train(made, steps=30, lr=1e20)).all()


def dropout_model() -> nn.Module:
    """A classifier that draws random numbers."""
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(3, 32), nn.Dropout(0.5), nn.Linear(32, 4))


def test_dropout_is_reproducible(trainer):
    """With a random model an update still depends on (seed, client, drawn) only."""
    made = trainer(dropout_model(), batch_size=0, reseed=True)
    first = train(made, 0, drawn=4)
    torch.rand(13)
    train(made, 2)
    np.testing.assert_array_equal(train(made, 0, drawn=4), first)
    np.testing.assert_array_equal(
        train(trainer(dropout_model(), batch_size=0, reseed=True), 0, drawn=4), first
    )
    # The data of all draws are the same here (full batch): what differs is what was dropped.
    assert not np.array_equal(train(made, 0, drawn=8), first)
    without = trainer(dropout_model(), batch_size=0, reseed=False)
    assert not np.array_equal(train(without, 0, drawn=4), train(without, 0, drawn=4))
