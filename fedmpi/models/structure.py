"""What kind of model a module is, where fedmpi has something better than the general case."""

from __future__ import annotations

from torch import nn

from fedmpi.models.losses import Quadratic

# Modules that compute the same in training and in evaluation.
_WITHOUT_MODES = {nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU, nn.Conv2d, nn.MaxPool2d, Quadratic}


def has_modes(module: nn.Module) -> bool:
    """Whether it may compute otherwise in training, as dropout does."""
    return any(type(part) not in _WITHOUT_MODES for part in module.modules())


def dense_layers(module: nn.Module) -> list[nn.Linear] | None:
    """The layers of a Sequential (Flatten, Linear, ReLU, Linear, ...), or None for any other model."""
    if type(module) is not nn.Sequential:
        return None

    # A leading Flatten, then Linear and ReLU in turn, with bias, all trained, none used twice.
    parts = list(module)
    if parts and type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
        parts = parts[1:]
    layers, others = parts[::2], parts[1::2]
    is_dense = (
        len(parts) % 2 == 1
        and all(type(part) is nn.Linear and part.bias is not None for part in layers)
        and all(type(part) is nn.ReLU for part in others)
        and all(p.requires_grad for p in module.parameters())
        and len(set(layers)) == len(layers)
    )
    return layers if is_dense else None
