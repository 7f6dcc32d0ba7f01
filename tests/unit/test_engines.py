"""Two engines, one update: equal to rounding, and each the same bits whatever is trained together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmpi.config import Config
from fedmpi.config.validate import parse
from fedmpi.data.evaluation import Normaliser
from fedmpi.data.partition import Partition
from fedmpi.data.shard import ClientData, Work
from fedmpi.methods import Method, Round
from fedmpi.models.engines import Engine, choose_engine, make_gradients
from fedmpi.models.engines.autograd import OneByOne
from fedmpi.models.engines.dense import Dense
from fedmpi.models.engines.layout import max_pool, speed_up
from fedmpi.models.engines.quadratic import ByHand
from fedmpi.models.engines.vmap import Vectorised
from fedmpi.models.flat import FlatModel
from fedmpi.models.losses import Quadratic
from fedmpi.models.structure import dense_layers
from fedmpi.simulation.client import Failures, LocalTrainer, Task
from tests.support.configs import SMALL

CPU = torch.device("cpu")
torch.set_num_threads(1)  # as every run does by default; others change the bits


def dense(*widths: int) -> nn.Sequential:
    """Flatten and dense layers with ReLU between them."""
    torch.manual_seed(3)
    layers = [nn.Flatten()]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Sequential:
    """A small network with all that the paper's has."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 4, 4),
    )  # fmt: skip


def config_of(*settings: str) -> Config:
    """The small config with changes."""
    return parse(SMALL, "small.toml", list(settings))


def trainer(
    module: nn.Module,
    engine: str,
    shape: tuple[int, ...],
    sizes: list[int],
    batch: int,
    dtype=torch.float32,
) -> LocalTrainer:  # fmt: skip
    """A trainer on random data of clients with these numbers of samples."""
    numbers = np.random.default_rng(5)
    count = sum(sizes)
    inputs = numbers.integers(0, 256, (count, *shape), np.uint8)
    labels = numbers.integers(0, 4, count)
    partition = Partition(np.arange(count), np.concatenate([[0], np.cumsum(sizes)]))
    scale, shift = torch.tensor(0.01, dtype=dtype), torch.tensor(-1.0, dtype=dtype)
    normalise = Normaliser(scale, shift, dtype)
    config = config_of(f"algorithm.batch_size={batch}")
    data = ClientData(config, partition, (0, 1), *map(torch.from_numpy, (inputs, labels)), normalise)
    model = FlatModel(module, dtype, CPU)
    made = LocalTrainer(make_gradients(Engine(engine, ""), model))
    made.start, made.data = model.values.clone(), data
    return made


def updates_of(made: LocalTrainer, clients: list[int], steps: int = 4) -> dict[int, Tensor]:
    """Each client's update, trained together."""
    from fedmpi.models.flat import aligned_rows

    updates = aligned_rows(len(clients), len(made.start), made.start)
    task = Task(
        start=made.start,
        local={"update": updates},
        works=[Work(made.data, n, 3 * n, steps=steps) for n in clients],
        method=Method(config_of(), 20),
        current=Round(0, np.array(clients), np.ones(len(clients)), 0.05),
    )
    failures = Failures()
    made.train(updates, [task], failures)
    failures.raise_first()
    return {n: update.clone() for n, update in zip(clients, updates, strict=True)}


MODELS = {
    "logistic": (lambda: dense(12, 4), (3, 4)),
    "mlp": (lambda: dense(64, 33, 17, 4), (1, 8, 8)),
    "large": (lambda: dense(300, 200, 4), (300,)),  # gradient added inside the product
    "cnn": (cnn, (1, 8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [3, 0])
def test_engines_give_the_same_update(name, batch):
    """Loop and batched agree to 1e-5 of the update, for clients of several sizes, one without samples."""
    make, shape = MODELS[name]
    sizes = [7, 9, 0, 5, 7, 2, 7]
    loop, batched = (
        updates_of(trainer(make(), e, shape, sizes, batch), [0, 1, 2, 3, 4, 5, 6])
        for e in ("loop", "batched")
    )
    for client in range(7):
        assert torch.linalg.norm(loop[client] - batched[client]) <= 1e-5 * torch.linalg.norm(loop[client])
        assert bool(loop[client].any()) == (sizes[client] > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 20])
def test_the_quadratic_by_hand_has_the_bits_of_autograd(batch, dtype):
    """In any row of a group, for any size of minibatch."""
    model = FlatModel(Quadratic([0.3, -1.7, 12.1]), dtype, CPU)
    numbers = torch.Generator().manual_seed(batch)
    centers = torch.randn((5, batch, 3), generator=numbers, dtype=dtype)
    at = torch.randn((5, 3), generator=numbers, dtype=dtype)
    labels = torch.zeros((5, batch), dtype=torch.int64)
    by_hand, autograd = make_gradients(Engine("loop", ""), model), OneByOne(model)
    assert isinstance(by_hand, ByHand)
    updates, expected = torch.zeros((5, 3), dtype=dtype), torch.zeros((5, 3), dtype=dtype)
    by_hand.local_params(5).copy_(at)
    by_hand.adder(updates)(centers, labels, -0.1)
    for row in range(5):
        autograd.local_params(1).copy_(at[row : row + 1])
        autograd.adder(expected[row : row + 1])(centers[row : row + 1], labels[:1], -0.1)
    assert torch.equal(updates, expected)


def test_engines_agree_to_the_last_digits_in_float64():
    """The engines differ by rounding only: in double precision they agree to 1e-13."""
    loop, batched = (
        updates_of(trainer(dense(64, 33, 4), e, (64,), [8] * 3, 4, torch.float64), [0, 1, 2])
        for e in ("loop", "batched")
    )
    for client, update in loop.items():
        assert torch.linalg.norm(update - batched[client]) <= 1e-13 * torch.linalg.norm(update)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    batch=st.integers(1, 20),
    groups=st.lists(
        st.lists(st.integers(0, 19), min_size=1, max_size=20, unique=True), min_size=1, max_size=4
    ),
)
def test_bits_do_not_depend_on_the_group(widths, batch, groups):
    """A client's update is the same, bit for bit, alone and beside any others, in any row."""
    made = trainer(dense(*widths, 4), "batched", (widths[0],), [23] * 20, batch)
    alone: dict[int, Tensor] = {}
    for group in groups:
        for client, update in updates_of(made, group, steps=3).items():
            if client not in alone:
                alone |= updates_of(made, [client], steps=3)
            assert torch.equal(update, alone[client])


def test_bits_of_vmap_do_not_depend_on_the_group():
    """The same for a network that is not dense."""
    made = trainer(cnn(), "batched", (1, 8, 8), [9] * 12, 4)
    alone = {n: updates_of(made, [n])[n] for n in range(12)}
    for group in ([0, 1], [1, 0], list(range(12)), [11, 3, 7, 5, 2]):
        for client, update in updates_of(made, group).items():
            assert torch.equal(update, alone[client])


def test_dense_layers_are_recognised():
    """Flatten, Linear, ReLU, Linear ...; nothing else."""
    assert len(dense_layers(dense(5, 4, 3))) == 2
    assert len(dense_layers(nn.Sequential(nn.Linear(3, 4)))) == 1
    frozen = dense(5, 4)
    frozen[1].weight.requires_grad_(False)
    shared = nn.Linear(4, 4)
    for other in (
        nn.Linear(3, 4),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4, bias=False)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(nn.Flatten(2), nn.Linear(3, 4)),
        nn.Sequential(),
        frozen,
        cnn(),
    ):
        assert dense_layers(other) is None


@pytest.mark.parametrize(
    ("wanted", "module", "on_cuda", "is_random", "expected"),
    [
        ("auto", dense(5, 4), False, False, "batched"),
        ("auto", dense(5, 4), True, True, "batched"),
        ("auto", cnn(), False, False, "loop"),
        ("auto", cnn(), True, False, "loop"),
        ("auto", cnn(), True, True, "loop"),
        ("auto", nn.Linear(4000, 4000), True, False, "loop"),
        ("loop", dense(5, 4), False, False, "loop"),
        ("batched", cnn(), False, False, "batched"),
    ],
)
def test_the_engine_is_chosen_by_rule(wanted, module, on_cuda, is_random, expected):
    """Dense models are batched, all others trained client by client; the config overrides."""
    model = FlatModel(module, torch.float32, CPU)
    engine = choose_engine(wanted, model, on_cuda=on_cuda, is_random=is_random)
    assert engine.name == expected
    assert engine.reason


def test_what_an_engine_computes_with():
    """Dense models by hand, others by vmap."""
    of = {n: make_gradients(Engine("batched", ""), FlatModel(m(), torch.float32, CPU))
          for n, (m, _) in MODELS.items()}  # fmt: skip
    assert isinstance(of["mlp"], Dense)
    assert isinstance(of["cnn"], Vectorised)


# --- Layouts ------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """The same network in the style of a user: functions, a branch on the shape, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 8, 3, padding=1)
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        hidden = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        hidden = nn.functional.max_pool2d(self.conv2(hidden).relu(), 2)
        return self.last(self.dropout(hidden.flatten(1)[:, :8]))


class ByData(nn.Module):
    """Control flow that depends on data cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        values = self.conv(images).mean(dim=(2, 3))
        return values if values.sum() > 0 else -values


def outputs_and_gradients(model: FlatModel, images: Tensor) -> list[Tensor]:
    """Of the forward function that is in use."""
    torch.manual_seed(8)
    outputs = model.forward(images)
    return [outputs, *torch.autograd.grad(outputs.square().sum(), model.parameters)]


@pytest.mark.parametrize("make", [cnn, Functional])
def test_the_faster_equal_is_equal(make):
    """Pooling before ReLU and other layouts change neither outputs nor gradients beyond rounding."""
    torch.manual_seed(4)
    model = FlatModel(make(), torch.float32, CPU)
    images = torch.randn(5, 1, 8, 8)
    before = outputs_and_gradients(model, images)
    assert speed_up(model, (1, 8, 8)).startswith("2 ReLU after max-pool, 2 convolutions")
    assert model.forward is not model.module
    for a, b in zip(before, outputs_and_gradients(model, images), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    # Without gradients too, where pooling is another function.
    torch.manual_seed(8)
    with torch.inference_mode():
        torch.testing.assert_close(model.forward(images), before[0], rtol=1e-4, atol=1e-5)
    # The parameters are the same memory: writing the vector loads both.
    model.values.zero_()
    assert not model.forward(images).any()


def test_pooling_really_comes_first():
    """What is run pools, then applies ReLU."""
    model = FlatModel(cnn(), torch.float32, CPU)
    speed_up(model, (1, 8, 8))
    order = [getattr(node.target, "__name__", node.target) for node in model.forward.graph.nodes]
    first, second = ["to_channels_last", "0", "max_pool", "1"], ["to_channels_last", "3", "max_pool", "4"]
    assert order[1:-1] == [*first, *second, "6", "7"]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 9), (6, 5), (3, 2)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pooling_in_an_evaluation_is_that_of_torch(height, width, size):
    """Maxima of rows and columns: the same values, at the edges, of infinities and nan too."""
    images = torch.randn(4, 5, height, width, generator=torch.Generator().manual_seed(1))
    images[0, 0, 0, 0], images[1, 1, 1, 0], images[2, 2, 0, 1] = torch.inf, -torch.inf, torch.nan
    if min(height, width) < size:
        return
    expected = nn.functional.max_pool2d(images, size)
    for laid_out in (images, images.contiguous(memory_format=torch.channels_last)):
        with torch.no_grad():
            assert torch.equal(max_pool(laid_out, size).nan_to_num(99), expected.nan_to_num(99))
        assert torch.equal(max_pool(laid_out, size).nan_to_num(99), expected.nan_to_num(99))


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(2, stride=1), nn.MaxPool2d(3, padding=1), nn.MaxPool2d(2, dilation=2),
     nn.MaxPool2d(3, ceil_mode=True), nn.MaxPool2d((2, 1)), nn.MaxPool2d(2, stride=(2, 1))],
    ids=str,
)  # fmt: skip
def test_other_pooling_stays_as_it_is(pool):
    """Overlapping, padded and oblong squares are torch's."""
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(1, 1, 9, 9))
    model = FlatModel(module, torch.float32, CPU)
    assert speed_up(model, (1, 9, 9)).startswith("1 ReLU after max-pool, 1 convolutions")
    assert max_pool not in [node.target for node in model.forward.graph.nodes]


@pytest.mark.parametrize(
    ("make", "shape", "dtype"),
    [
        (ByData, (1, 8, 8), torch.float32),  # cannot be traced
        (lambda: dense(64, 4), (1, 8, 8), torch.float32),  # nothing to gain
        (cnn, (1, 8, 8), torch.float64),  # other kernels
        (cnn, (64,), torch.float32),  # no images
    ],
)
def test_other_models_are_left_alone(make, shape, dtype):
    """No change where there is nothing to gain or nothing can be proven."""
    model = FlatModel(make(), dtype, CPU)
    assert speed_up(model, shape) == ""
    assert model.forward is model.module


class DropsAlways(nn.Module):
    """Dropout as a function, whose mode a traced graph does not follow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 64, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        hidden = torch.relu(self.conv(images)).flatten(1)
        return self.last(nn.functional.dropout(hidden, 0.5, training=self.training))


def test_a_model_that_differs_in_evaluation_is_left_alone():
    """Equal in training is not enough; and the model is in training mode afterwards."""
    model = FlatModel(DropsAlways(), torch.float32, CPU)
    assert speed_up(model, (1, 8, 8)) == ""
    assert model.forward is model.module
    assert model.module.training


def test_a_relu_used_twice_is_left_where_it_is():
    """Its other user needs the values before pooling."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 16 + 4 * 64, 4)

        def forward(self, images: Tensor) -> Tensor:
            hidden = torch.relu(self.conv(images))
            pooled = nn.functional.max_pool2d(hidden, 2)
            return self.last(torch.cat([pooled.flatten(1), hidden.flatten(1)], dim=1))

    model = FlatModel(Twice(), torch.float32, CPU)
    assert speed_up(model, (1, 8, 8)).startswith("0 ReLU after max-pool, 1 convolutions")
