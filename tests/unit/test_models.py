"""Models: sizes, functions, initialisation, models of the user's own, and the flat vector."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedmpi.config import Config, validate
from fedmpi.errors import UserError
from fedmpi.models import MODELS, build_model
from fedmpi.models.flat import FlatModel
from fedmpi.tasks.classification import Classification

CPU = torch.device("cpu")
FASHION, CIFAR = (1, 28, 28), (3, 32, 32)
CNNS = {"cnn-fashion": FASHION, "cnn-cifar": CIFAR, "cnn-fedau": CIFAR}


@pytest.fixture
def config(small_config):
    """Make a config with a model and other keys of choice."""

    def make(name: str, *overrides: str) -> Config:
        if name == "quadratic":
            overrides = ("data.dataset=quadratic", "data.centers=[[1.0,2.0]]", "data.num_clients=1",
                         "participation.clients_per_round=1", *overrides)  # fmt: skip
        return validate.load(small_config, [f"model.name={name}", *overrides])

    return make


def num_params(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "overrides", "expected"),
    [
        ("cnn-fashion", FASHION, [], 228_586),
        ("cnn-cifar", CIFAR, [], 2_218_314),
        ("cnn-small", CIFAR, [], 168_714),
        ("cnn-fedau", CIFAR, [], 551_786),
        ("logistic", FASHION, [], 7850),
        ("mlp", FASHION, [], 784 * 200 + 200 + 200 * 10 + 10),
        ("mlp", (6,), ["model.hidden=[5,4]"], 6 * 5 + 5 + 5 * 4 + 4 + 4 * 10 + 10),
        ("quadratic", (2,), [], 2),
    ],
)
def test_number_of_parameters(config, name, shape, overrides, expected):
    """The CNNs have as many parameters as those of their authors; dense models what their widths say."""
    assert num_params(build_model(config(name, *overrides), shape, 10)) == expected


# The CNNs as functions.


def plain_cnn(parameters: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Convolution, ReLU, pooling, twice; then dense layers with ReLU in between: as the paper says it."""
    convolutions, dense = parameters[:4], parameters[4:]
    x = images
    for weight, bias in zip(convolutions[::2], convolutions[1::2], strict=True):
        x = functional.max_pool2d(functional.relu(functional.conv2d(x, weight, bias, padding="same")), 2)
    x = x.flatten(1)
    for i in range(0, len(dense), 2):
        x = functional.linear(x, dense[i], dense[i + 1])
        x = functional.relu(x) if i < len(dense) - 2 else x
    return x


def distance(seen: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference, relative to what is expected."""
    assert seen.shape == expected.shape
    return ((seen - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", CNNS)
def test_cnn_is_the_plain_one(config, name, batch, dtype, tolerance):
    """Outputs and gradients equal those of a plain NCHW conv-ReLU-pool network with the same weights."""
    torch.manual_seed(0)
    images, labels = torch.randn(batch, *CNNS[name], dtype=dtype), torch.arange(batch)
    module = build_model(config(name), CNNS[name], 10).to(dtype)
    with torch.no_grad():  # biases away from 0, so that one left out would be seen
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(-0.2, 0.2)
    twin = [p.detach().clone().requires_grad_() for p in module.parameters()]

    outputs, expected = module(images), plain_cnn(twin, images)
    assert distance(outputs, expected) < tolerance

    gradients = torch.autograd.grad(functional.cross_entropy(outputs, labels), list(module.parameters()))
    wanted = torch.autograd.grad(functional.cross_entropy(expected, labels), twin)
    for gradient, want in zip(gradients, wanted, strict=True):
        assert distance(gradient, want) < tolerance


@pytest.mark.parametrize("name", CNNS)
@pytest.mark.parametrize("shape", [(1, 28, 27), (3, 28, 28), (784,), (28, 28)])
def test_cnn_refuses_other_shapes(config, name, shape):
    """A CNN refuses samples of another shape, and says both shapes and what would do."""
    with pytest.raises(UserError) as caught:
        build_model(config(name), shape, 10)
    for part in (f'"{name}"', str(CNNS[name]), str(shape), '"mlp"'):
        assert part in str(caught.value)


# Initialisation.


@pytest.mark.parametrize("name", [*CNNS, "mlp"])
def test_initialisation_of_hidden_layers(config, name):
    """Hidden layers are Kaiming normal, standard deviation sqrt(2 / inputs), with zero biases."""
    shape = CNNS.get(name, (64,))
    modules = [build_model(config(name, f"run.seed={seed}"), shape, 10) for seed in range(4)]
    hidden = [[m for m in module if isinstance(m, nn.Conv2d | nn.Linear)][:-1] for module in modules]
    assert len(hidden[0]) == {"cnn-fashion": 3, "cnn-cifar": 4, "cnn-fedau": 4, "mlp": 1}[name]
    for layers in zip(*hidden, strict=True):  # the same layer for four seeds
        weights = torch.cat([layer.weight.detach().ravel() for layer in layers])
        inputs = layers[0].weight[0].numel()
        expected = math.sqrt(2 / inputs)
        assert weights.std().item() == pytest.approx(expected, rel=0.05)
        # Normal and not uniform: 4.55 % of the draws lie beyond two standard deviations.
        beyond = (weights.abs() > 2 * expected).float().mean().item()
        assert beyond == pytest.approx(0.0455, abs=0.015)
        assert all((layer.bias == 0).all() for layer in layers)


@pytest.mark.parametrize("name", [*CNNS, "mlp", "logistic"])
def test_initialisation_of_the_last_layer(config, name):
    """The last layer keeps PyTorch's default: uniform within 1 / sqrt(inputs), bias too."""
    shape = CNNS.get(name, (64,))
    layers = [list(build_model(config(name, f"run.seed={seed}"), shape, 10))[-1] for seed in range(4)]
    bound = 1 / math.sqrt(layers[0].in_features)
    weights = torch.cat([layer.weight.detach().ravel() for layer in layers])
    biases = torch.cat([layer.bias.detach() for layer in layers])
    assert 0.99 * bound < weights.abs().max() <= bound
    assert weights.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert 0.8 * bound < biases.abs().max() <= bound


def test_the_small_cnn_is_initialised_as_pytorch_does(config):
    """Crawshaw & Liu's: both layers uniform within 1 / sqrt(inputs), biases too; padding 2."""
    module = build_model(config("cnn-small"), CIFAR, 10)
    convolution, dense = (m for m in module if isinstance(m, nn.Conv2d | nn.Linear))
    for layer, inputs in ((convolution, 3 * 5 * 5), (dense, 64 * 16 * 16)):
        bound = 1 / math.sqrt(inputs)
        assert 0.99 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert 0.5 * bound < layer.bias.abs().max() <= bound
    assert convolution(torch.zeros(1, *CIFAR)).shape == (1, 64, 16, 16)


@pytest.mark.parametrize("name", MODELS)
def test_seed_decides_the_initial_model(config, name):
    """The same seed gives the same initial model, whatever torch drew before; another seed another."""
    shape = {**CNNS, "cnn-small": CIFAR, "resnet18-gn": CIFAR}.get(name, (2,))
    num_tokens = 7 if MODELS.fact(name, "takes_tokens") else 0

    def initial(seed: int) -> np.ndarray:
        module = build_model(config(name, f"run.seed={seed}"), shape, 10, num_tokens)
        return FlatModel(module, torch.float32, CPU).initial

    first = initial(1)
    torch.rand(17)
    np.testing.assert_array_equal(initial(1), first)
    if name != "quadratic":
        assert not np.array_equal(initial(2), first)


def test_building_leaves_torch_random_state_alone(config):
    """Building a model does not disturb the random numbers of others."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_model(config("logistic"), (4,), 10)
    assert torch.equal(torch.rand(3), expected)


def test_quadratic(config):
    """The quadratic model gives |x - z|^2 / 2 for each z; it starts at `initial`, or at zeros."""
    module = build_model(config("quadratic", "model.initial=[1.0, -2.0]"), (2,), 1)
    centers = torch.tensor([[1.0, -2.0], [4.0, 2.0]], dtype=torch.float64)
    losses = module(centers)
    assert losses.tolist() == [0.0, 12.5]
    losses.mean().backward()
    assert module.x.grad.tolist() == [-1.5, -2.0]
    assert build_model(config("quadratic"), (2,), 1).x.tolist() == [0.0, 0.0]


def test_losses_by_hand():
    """Logits give the cross-entropy of each sample; a vector of losses is taken as it is."""
    logits = torch.log(torch.tensor([[1.0, 3.0], [1.0, 1.0]]))
    losses = Classification().losses(logits, torch.tensor([1, 0]))
    np.testing.assert_allclose(losses.numpy(), [math.log(4 / 3), math.log(2)], rtol=1e-6)
    assert Classification().losses(torch.tensor([3.0, -1.0]), torch.tensor([0, 0])).tolist() == [3.0, -1.0]


# Models of the user's own.

USER_MODELS = """
import torch
from torch import nn

not_a_function = 3


def works(input_shape, num_classes, width=4):
    inputs = torch.Size(input_shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.GroupNorm(2, width), nn.ReLU(),
                         nn.Dropout(0.5), nn.Linear(width, num_classes))


def raises(input_shape, num_classes):
    raise RuntimeError("out of ideas")


def gives_a_function(input_shape, num_classes):
    return lambda x: x


def batch_norm(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, num_classes))


def no_parameters(input_shape, num_classes):
    return nn.Flatten()


def all_frozen(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes)).requires_grad_(False)
"""


@pytest.fixture
def user_models(tmp_path, monkeypatch):
    """A working directory with modules of the user's own."""
    (tmp_path / "user_models.py").write_text(USER_MODELS)
    (tmp_path / "user_models_broken.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("user_models", "user_models_broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("user_models")
def test_model_function_of_the_user(config):
    """A function is found in the working directory, gets shape, labels and options, and is seeded."""
    path_before = list(sys.path)
    chosen = config("user_models:works", "model.options={width = 6}", "run.seed=3")
    module = build_model(chosen, (1, 6, 6), 10)
    assert num_params(module) == 36 * 6 + 6 + 6 + 6 + 6 * 10 + 10
    again = build_model(chosen, (1, 6, 6), 10)
    assert torch.equal(module[1].weight, again[1].weight)
    assert sys.path == path_before


@pytest.mark.usefixtures("user_models")
@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("user_models:raises", [], "raised RuntimeError: out of ideas"),
        ("user_models:works", ["model.options={depth = 3}"], "options={'depth': 3} raised TypeError"),
        ("user_models:gives_a_function", [], r"returned function; expected torch\.nn\.Module"),
        ("user_models:missing", [], "user_models has no function missing; it has: .*works"),
        ("user_models:not_a_function", [], "has no function not_a_function"),
        ("user_models_nowhere:f", [], "importing user_models_nowhere raised ModuleNotFoundError"),
        ("user_models_broken:f", [], "importing user_models_broken raised SyntaxError"),
        (
            "user_models:batch_norm",
            [],
            r"has buffers \(1\.running_mean.*BatchNorm.*use GroupNorm or LayerNorm",
        ),
        ("user_models:no_parameters", [], "no parameters to train"),
        ("user_models:all_frozen", [], "no parameters to train"),
    ],
)
def test_bad_model_functions_are_refused(config, name, overrides, message):
    """A model function that cannot be used is refused with its name and the reason."""
    with pytest.raises(UserError, match=message) as caught:
        build_model(config(name, *overrides), (1, 6, 6), 10)
    assert f'config model.name = "{name}"' in str(caught.value)


# The flat vector.


@pytest.fixture
def flat() -> FlatModel:
    """A small model in float32, its second parameter frozen."""
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) + 10 * i)
    module[0].bias.requires_grad_(False)
    return FlatModel(module, torch.float32, CPU)


def test_flat_vector_by_hand(flat):
    """Parameters stand in the vector one after another, in the order of their names."""
    assert flat.names == ["0.weight", "0.bias", "1.weight"]
    assert flat.shapes == [(3, 2), (3,), (1, 3)]
    assert flat.num_params == 12
    expected = [0, 1, 2, 3, 4, 5, 10, 11, 12, 20, 21, 22]
    assert flat.initial.tolist() == flat.values.tolist() == expected
    assert flat.initial.dtype == np.float64
    assert json.loads(flat.describe()) == [["0.weight", [3, 2]], ["0.bias", [3]], ["1.weight", [1, 3]]]


def test_parameters_are_views(flat):
    """Writing the vector is loading the model; changing a parameter changes the vector."""
    flat.values[6] = 7.5
    assert flat.module[0].bias.tolist() == [7.5, 11.0, 12.0]
    with torch.no_grad():
        flat.module[1].weight[0, 2] = -1
    assert flat.values[11] == -1
    flat.load(np.arange(12) / 4)
    assert flat.module[0].weight.tolist() == [[0.0, 0.25], [0.5, 0.75], [1.0, 1.25]]
    # W1 (W0 x + b) at x = (1, 1): W0 x + b = (1.75, 3.0, 4.25), W1 = (2.25, 2.5, 2.75).
    assert flat.module(torch.ones(1, 2)).item() == 1.75 * 2.25 + 3.0 * 2.5 + 4.25 * 2.75


def test_views_of_another_vector(flat):
    """Any vector can be seen in the parameters' shapes; frozen parameters are not among the trained."""
    vector = torch.arange(12.0)
    views = flat.views(vector)
    assert [tuple(view.shape) for view in views] == [(3, 2), (3,), (1, 3)]
    assert [tuple(view.shape) for view in flat.trainable_views(vector)] == [(3, 2), (1, 3)]
    assert [tuple(p.shape) for p in flat.parameters] == [(3, 2), (1, 3)]
    flat.trainable_views(vector)[1].zero_()
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0]


def test_initial_vector_is_not_rounded(config):
    """x_0 keeps float64, also where training is in float32."""
    module = build_model(config("quadratic", "model.initial=[0.1, 0.2]"), (2,), 1)
    flat = FlatModel(module, torch.float32, CPU)
    assert flat.initial.tolist() == [0.1, 0.2]
    assert flat.values.tolist() == [np.float32(0.1), np.float32(0.2)]


def test_tied_parameters_stand_once():
    """Two layers that share a weight share its place in the vector."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    flat = FlatModel(module, torch.float64, CPU)
    assert flat.num_params == 6
    flat.load(np.array([2.0, 0, 0, 3, 0, 0]))
    assert flat.module(torch.ones(1, 2, dtype=torch.float64)).tolist() == [[4.0, 9.0]]


def test_digest_covers_names_shapes_and_values():
    """Models of other names, shapes or initial values have other digests."""

    def digest(module: nn.Module, value: float) -> str:
        nn.init.constant_(next(module.parameters()), value)
        return FlatModel(module, torch.float32, CPU).digest()

    square, wide = nn.Linear(2, 2, bias=False), nn.Linear(4, 1, bias=False)
    assert digest(square, 1.0) == digest(nn.Linear(2, 2, bias=False), 1.0)
    different = {digest(square, 1.0), digest(square, 2.0), digest(wide, 1.0)}
    different.add(digest(nn.Sequential(nn.Linear(2, 2, bias=False)), 1.0))
    assert len(different) == 4
