"""Memory that is used again, for what comes in every round: minibatches, evaluation blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MOST_VIEWS = 64


class Room:
    """Memory for minibatches, one piece for each use, large enough for all shapes that it had.

    The runs of a pack share one.
    """

    def __init__(self) -> None:
        self._pieces: dict[str, Tensor] = {}
        self._views: dict[tuple, Tensor] = {}

    def __call__(self, use: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor of this shape beside `like`; what it held is lost."""
        view = self._views.get((use, shape))
        if view is None:
            with torch.inference_mode(mode=False):  # so that it may be used within that mode and outside
                view = self._views[use, shape] = self._view(use, shape, like, dtype)
        return view

    def _view(self, use: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
        count, piece = math.prod(shape), self._pieces.get(use)
        if piece is None or len(piece) < count:
            piece = self._pieces[use] = like.new_empty(count, dtype=dtype)
            self._views = {key: view for key, view in self._views.items() if key[0] != use}
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        return piece[:count].view(shape)
