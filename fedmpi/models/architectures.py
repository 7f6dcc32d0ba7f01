"""Models beyond those of the papers: for sequences of tokens, and a deep one for images.

None has running statistics or dropout: LayerNorm and GroupNorm instead of BatchNorm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmpi.config.keys import Config
from fedmpi.config.options import option
from fedmpi.config.registry import MODELS
from fedmpi.data.vision import import_torchvision
from fedmpi.errors import UserError
from fedmpi.tasks import make_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from fedmpi.config.registry import Finding


@dataclass(frozen=True, kw_only=True)
class SequenceKeys:
    """Of char-lstm and transformer."""

    num_layers: int = option(2, "char-lstm, transformer: layers above each other", at_least=1)
    width: int | None = option(
        None,
        "char-lstm, transformer: numbers at each position; default: 256 for the first, 64 for the second",
        at_least=1,
    )


@dataclass(frozen=True, kw_only=True)
class LstmKeys:
    """Of char-lstm."""

    embedding_size: int = option(8, "char-lstm: numbers that stand for a token", at_least=1)


@dataclass(frozen=True, kw_only=True)
class TransformerKeys:
    """Of transformer."""

    num_heads: int = option(4, "transformer: heads of attention; a divisor of width", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ResNetKeys:
    """Of resnet18-gn."""

    norm_groups: int = option(2, "resnet18-gn: groups of channels that are normalised together", at_least=1)


@MODELS(
    "char-lstm", LstmKeys, SequenceKeys, defaults={"width": 256}, takes_tokens=True,
)  # fmt: skip
def char_lstm(config: Config, shape: tuple[int, ...], num_outputs: int, num_tokens: int) -> nn.Module:
    """LSTM on embedded tokens; by default that of McMahan et al. (2017) for Shakespeare.

    Outputs at each position, or from the mean over positions where the task wants one label a sample.
    """
    from fedmpi.models.causal import CharLSTM

    _require_sequence(config, shape)
    options = config.model
    sizes = num_tokens, options.embedding_size, options.width, options.num_layers, num_outputs
    return CharLSTM(*sizes, each_position=make_task(config).each_position)


def _heads_misfit(config: Config) -> Iterator[Finding]:
    options = config.model
    if options.width % options.num_heads:
        yield "model.num_heads", f"{options.num_heads} does not divide model.width = {options.width}"


@MODELS(
    "transformer", TransformerKeys, SequenceKeys, defaults={"width": 64}, takes_tokens=True,
    conflicts=_heads_misfit,
)  # fmt: skip
def transformer(config: Config, shape: tuple[int, ...], num_outputs: int, num_tokens: int) -> nn.Module:
    """Small causal transformer: learnt positions, LayerNorm before each part, GELU, no dropout.

    Outputs as char-lstm has them.
    """
    from fedmpi.models.causal import Transformer

    _require_sequence(config, shape)
    options = config.model
    sizes = num_tokens, shape[0], options.width, options.num_heads, options.num_layers, num_outputs
    return Transformer(*sizes, each_position=make_task(config).each_position)


@MODELS("resnet18-gn", ResNetKeys)
def resnet18_gn(config: Config, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """torchvision's ResNet-18 with GroupNorm for BatchNorm; 11,181,642 parameters at 10 labels.

    That is with 3 channels; for other numbers of channels than 3 its first convolution takes these.
    """
    from torch import nn

    groups = config.model.norm_groups
    if len(shape) != 3:
        raise UserError(
            'config model.name = "resnet18-gn": takes samples of shape (channels, height, width), '
            f'data.dataset = "{config.data.dataset}" has {shape}'
        )
    if math.gcd(64, groups) != groups:
        raise UserError(
            f"config model.norm_groups = {groups}: does not divide 64 channels; expected 1, 2, 4, "
            "8, 16, 32 or 64"
        )
    models = import_torchvision('config model.name = "resnet18-gn"').models
    model = models.resnet18(norm_layer=lambda c: nn.GroupNorm(groups, c), num_classes=num_outputs)
    if shape[0] != 3:
        model.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def _require_sequence(config: Config, shape: tuple[int, ...]) -> None:
    if len(shape) != 1:
        raise UserError(
            f'config model.name = "{config.model.name}": takes sequences of tokens, (L,), '
            f'data.dataset = "{config.data.dataset}" has samples of shape {shape}'
        )
