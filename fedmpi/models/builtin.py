"""Models: functions (config, input shape, number of classes, seed) -> torch module.

Invariant: a model's whole state is its parameters; a module with buffers (BatchNorm) is refused, since
averaging running statistics is another algorithm than the one simulated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedmpi.config import Config
from fedmpi.config.user_code import import_function
from fedmpi.data import rng
from fedmpi.errors import UserError

Builder = Callable[[Config, tuple[int, ...], int], nn.Module]
MODELS: dict[str, Builder] = {}


def model(name: str) -> Callable[[Builder], Builder]:
    """Register a model under a name of `model.name`."""

    def register(function: Builder) -> Builder:
        MODELS[name] = function
        return function

    return register


def may_be_random(config: Config) -> bool:
    """Whether the model may draw random numbers while it trains: a user's own may, the built-in do not."""
    return config.model.name not in MODELS


def build_model(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The model that `model.name` names, initialised from `run.seed`."""
    name = config.model.name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.integer(config.run.seed, "initial-model"))
        if name in MODELS:
            module = MODELS[name](config, shape, num_classes)
        else:
            module = _user_model(name, shape, num_classes, config.model.options)
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise UserError(
            f'config model.name = "{name}": the model has buffers ({", ".join(buffers[:3])}), such as '
            "BatchNorm's running statistics, which have no place in the weighted sum of updates; "
            "use GroupNorm or LayerNorm"
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f'config model.name = "{name}": the model has no parameters to train')
    return module


def _user_model(name: str, shape: tuple[int, ...], num_classes: int, options: dict) -> nn.Module:
    """A model of the user's own: package.module:function(input_shape, num_classes, **options)."""
    function = import_function(name, "model.name")
    try:
        module = function(input_shape=shape, num_classes=num_classes, **options)
    except Exception as error:
        raise UserError(
            f'config model.name = "{name}": calling it with input_shape={shape}, '
            f"num_classes={num_classes}, options={options} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise UserError(
            f'config model.name = "{name}": returned {type(module).__name__}; expected torch.nn.Module'
        )
    return module


def kaiming(module: nn.Sequential) -> nn.Sequential:
    """Kaiming normal (relu) with zero bias for all but the last layer, which keeps PyTorch's default."""
    layers = [m for m in module if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return module


def _cnn(widths: tuple[int, int, int], dense: tuple[int, ...]) -> nn.Sequential:
    """Two 5x5 convolutions with ReLU and 2x2 max-pooling, then dense layers."""
    inputs, first, second = widths
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    ]  # fmt: skip
    for width, next_width in itertools.pairwise(dense):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return kaiming(nn.Sequential(*layers[:-1]))


def _require_shape(config: Config, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if shape != wanted:
        raise UserError(
            f'config model.name = "{config.model.name}": takes samples of shape {wanted}, '
            f'data.dataset = "{config.data.dataset}" has {shape}; use "mlp", "logistic" or other data'
        )


@model("cnn-fashion")
def cnn_fashion(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The paper's CNN for FashionMNIST; 228,586 parameters at 10 labels."""
    _require_shape(config, shape, (1, 28, 28))
    return _cnn((1, 32, 32), (1568, 128, num_classes))


@model("cnn-cifar")
def cnn_cifar(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The paper's CNN for CIFAR-10; 2,218,314 parameters at 10 labels."""
    _require_shape(config, shape, (3, 32, 32))
    return _cnn((3, 32, 64), (4096, 512, 128, num_classes))


@model("cnn-small")
def cnn_small(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One 5x5 convolution of 64 filters with stride 2, ReLU, dense: Crawshaw & Liu's for CIFAR-10."""
    _require_shape(config, shape, (3, 32, 32))
    return kaiming(
        nn.Sequential(
            nn.Conv2d(3, 64, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 14 * 14, num_classes)
        )
    )


@model("logistic")
def logistic(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_classes))


@model("mlp")
def mlp(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Dense layers of `model.hidden` widths with ReLU."""
    widths = [math.prod(shape), *config.model.hidden, num_classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for width, next_width in itertools.pairwise(widths):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return kaiming(nn.Sequential(*layers[:-1]))


class Quadratic(nn.Module):
    """F(x; z) = |x - z|^2 / 2, one value per sample z."""

    def __init__(self, initial: list[float]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(initial, dtype=torch.float64))

    def forward(self, centers: Tensor) -> Tensor:
        """Per-sample losses."""
        return 0.5 * (self.x - centers).square().sum(dim=1)


@model("quadratic")
def quadratic(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The appendix's problem: the parameter is x itself."""
    return Quadratic(config.model.initial or [0.0] * shape[0])


def sample_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Loss of each sample: cross-entropy of logits, or the outputs where the model gives losses itself."""
    if outputs.dim() == 1:
        return outputs
    return nn.functional.cross_entropy(outputs, labels, reduction="none")
