"""Models: functions (config, input shape, number of classes) -> torch module.

torch is loaded when a model is built, not before: reading a config needs names and keys only. Invariant:
a model's whole state is its parameters; a module with buffers (BatchNorm) is refused, since averaging
running statistics would be a different algorithm from the one simulated.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import MODELS
from fedmpi.config.user_code import call_function
from fedmpi.data import rng
from fedmpi.data.sources import quadratic_misfit
from fedmpi.errors import UserError
from fedmpi.models.too_large import require_room
from fedmpi.tasks import TASKS, Task, make_task

if TYPE_CHECKING:
    from torch import Tensor, nn

model = MODELS  # `model(name, keys...)` registers a function as above


def may_be_random(config: Config) -> bool:
    """Whether the model may draw random numbers in training: a user's may, the built-in ones do not."""
    return config.model.name not in MODELS


def build_model(
    config: Config,
    shape: tuple[int, ...],
    num_outputs: int,
    num_tokens: int = 0,
    label: np.ndarray | None = None,
) -> nn.Module:
    """The model that `model.name` names, initialised from `run.seed`.

    `num_tokens` of inputs that are token ids; with a `label`, that of one sample, what is not built in is
    tried out before all ranks train it.
    """
    import torch

    name, task = config.model.name, make_task(config)
    tokens = {"num_tokens": num_tokens} if num_tokens else {}
    with torch.random.fork_rng(devices=[]):
        if name in MODELS:
            _require_fit(config, shape, num_tokens, each_position=task.each_position)
            build = functools.partial(MODELS[name], config, shape, num_outputs, **tokens)
            require_room(name, build)
        torch.manual_seed(rng.integer(config.run.seed, "initial-model"))
        if name in MODELS:
            module = build()
        else:
            module = _user_model(name, shape, num_outputs, config.model.options, tokens)
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise UserError(
            f'config model.name = "{name}": the model has buffers ({", ".join(buffers[:3])}), such as '
            "BatchNorm's running statistics, which have no place in the weighted sum of updates; "
            "use GroupNorm or LayerNorm"
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f'config model.name = "{name}": the model has no parameters to train')
    if name not in MODELS or config.task.name not in TASKS:
        with torch.random.fork_rng(devices=[]):
            outputs = _try_out(name, module, shape, num_outputs, is_tokens=bool(num_tokens))
            if label is not None:
                _try_task(config, task, outputs, label)
    return module


def _require_fit(config: Config, shape: tuple[int, ...], num_tokens: int, *, each_position: bool) -> None:
    """Token ids need a model that embeds them, a label at each position one that answers at each."""
    name = config.model.name
    embeds = MODELS.fact(name, "takes_tokens")
    others = ", ".join(f'"{part.name}"' for part in MODELS.parts() if part.facts.get("takes_tokens"))
    if num_tokens and not embeds:
        raise UserError(
            f'config model.name = "{name}": takes numbers, inputs of data.dataset = '
            f'"{config.data.dataset}" are token ids (0 to {num_tokens - 1}); use {others}, or uint8 inputs '
            "with mean and std"
        )
    if embeds and not num_tokens:
        raise UserError(
            f'config model.name = "{name}": takes token ids, inputs of data.dataset = '
            f'"{config.data.dataset}" are numbers of shape {shape}; use another model, or give the data '
            "their num_tokens"
        )
    if each_position and not embeds:
        raise UserError(
            f'config model.name = "{name}": gives outputs for a whole sample, task.name = '
            f'"{config.task.name}" needs them at each position; use {others}'
        )


def _user_model(
    name: str, shape: tuple[int, ...], num_classes: int, options: dict, tokens: dict[str, int]
) -> nn.Module:
    """A user's model: package.module:function(input_shape, num_classes, **options)."""
    from torch import nn

    given = {"input_shape": shape, "num_classes": num_classes, **tokens}
    shown = ", ".join([*(f"{key}={value}" for key, value in given.items()), f"options={options}"])
    module = call_function(name, "model.name", given, options, shown)
    if not isinstance(module, nn.Module):
        raise UserError(
            f'config model.name = "{name}": returned {type(module).__name__}; expected torch.nn.Module'
        )
    return module


def _try_out(
    name: str, module: nn.Module, shape: tuple[int, ...], num_classes: int, *, is_tokens: bool
) -> Tensor:
    """The outputs on one sample of zeros."""
    import torch

    kind = next((p.dtype for p in module.parameters()), torch.float32)
    was_training = module.training
    try:
        with torch.no_grad():
            outputs = module.eval()(torch.zeros(1, *shape, dtype=torch.int64 if is_tokens else kind))
        module.train(was_training)
    except Exception as error:
        raise UserError(
            f'config model.name = "{name}": on a sample of shape {shape} it raised '
            f"{type(error).__name__}: {error}"
        ) from error
    if outputs.dim() > 1 and outputs.shape[-1] < num_classes:
        wanted = "one for each label" + (" at each position" if outputs.dim() > 2 else "")
        raise UserError(
            f'config model.name = "{name}": on a sample of shape {shape} it returned {outputs.shape[-1]} '
            f"numbers; expected {num_classes}, {wanted}"
        )
    return outputs


def _try_task(config: Config, task: Task, outputs: Tensor, label: np.ndarray) -> None:
    """The loss and the statistics of one sample."""
    import torch

    labels = torch.from_numpy(np.array(label)[None])
    labels = labels.to(outputs.dtype) if labels.is_floating_point() else labels
    shown = f"with outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)}"
    try:
        losses = task.losses(outputs, labels)
        if losses.shape == (1,):
            task.of_samples(outputs.movedim(0, -1)[None, None], labels[None])
    except Exception as error:
        raise UserError(
            f'config task.name = "{config.task.name}", model.name = "{config.model.name}": {shown} it '
            f"raised {type(error).__name__}: {error}"
        ) from error
    if losses.shape != (1,):
        raise UserError(
            f'config task.name = "{config.task.name}": {shown} losses returned shape '
            f"{tuple(losses.shape)}; expected one loss for each sample, (1,)"
        )


def kaiming(module: nn.Sequential) -> nn.Sequential:
    """Kaiming normal (relu) with zero bias for all but the last layer, which keeps PyTorch's default."""
    from torch import nn

    layers = [m for m in module if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return module


def _cnn(widths: tuple[int, int, int], dense: tuple[int, ...], kernel: int = 5) -> nn.Sequential:
    """Two convolutions that keep the size, with ReLU and 2x2 max-pooling, then dense layers."""
    from torch import nn

    inputs, first, second = widths
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, first, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2),
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
    """Crawshaw & Liu's for CIFAR-10, one 5x5 convolution with stride 2; 168,714 parameters at 10 labels.

    64 filters, ReLU, one dense layer; initialised as PyTorch does.
    """
    from torch import nn

    _require_shape(config, shape, (3, 32, 32))
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 16 * 16, num_classes),
    )


@model("cnn-fedau")
def cnn_fedau(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """That of FedAU, FedAWE and FedPBC for CIFAR-10, 3x3 convolutions; 551,786 parameters at 10 labels."""
    _require_shape(config, shape, (3, 32, 32))
    return _cnn((3, 32, 32), (2048, 256, 64, num_classes), kernel=3)


@model("logistic")
def logistic(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_classes))


@dataclass(frozen=True, kw_only=True)
class MlpKeys:
    """Of mlp."""

    hidden: list[int] = option([200], "mlp: widths of the hidden layers", at_least=1)


@model("mlp", MlpKeys)
def mlp(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Dense layers of `model.hidden` widths with ReLU."""
    from torch import nn

    widths = [math.prod(shape), *config.model.hidden, num_classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for width, next_width in itertools.pairwise(widths):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return kaiming(nn.Sequential(*layers[:-1]))


@dataclass(frozen=True, kw_only=True)
class QuadraticModelKeys:
    """Of quadratic."""

    initial: list[float] | None = option(None, "quadratic: x_0; default: zeros")


@model("quadratic", QuadraticModelKeys, conflicts=quadratic_misfit)
def quadratic(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The appendix's problem: the parameter is x itself."""
    from fedmpi.models.losses import Quadratic

    return Quadratic(config.model.initial or [0.0] * shape[0])
