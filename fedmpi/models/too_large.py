"""Whether a built-in model can be built here at all.

Its parameters are counted without values, since a system that is asked for too much memory may end the
process instead of refusing. What training takes besides is counted later, for each rank of a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedmpi.errors import UserError

if TYPE_CHECKING:
    from torch import nn

_BYTES_TO_BUILD = 16  # a parameter: the module, its values, x_0


def require_room(name: str, build: Callable[[], nn.Module]) -> None:
    """Refuse a model that cannot be built here, before the system ends this process for it."""
    import torch

    from fedmpi.mpi.node_memory import available_bytes  # here, since it loads torch

    with torch.device("meta"):  # parameters without values
        count = sum(p.numel() for p in build().parameters())
    room = available_bytes()
    needed = _BYTES_TO_BUILD * count
    if room is not None and needed > room:
        raise UserError(
            f'config model.name = "{name}": {count:,} parameters x {_BYTES_TO_BUILD} bytes (module, values '
            f"and x_0) = {needed / 1e9:.1f} GB, {room / 1e9:.1f} GB are available; use a smaller model"
        )
