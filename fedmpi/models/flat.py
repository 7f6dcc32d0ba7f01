"""A model as one flat vector.

The simulator moves vectors (x, updates, their weighted sum); torch moves named tensors. Invariant: the
parameters of a `FlatModel` are views of `values`, so writing the vector is loading the model.
"""

from __future__ import annotations

import copy
import hashlib
import json

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi.models.structure import dense_layers, has_modes
from fedmpi.tasks import Task
from fedmpi.tasks.classification import Classification

_TOGETHER_BYTES = 1 << 28


class FlatModel:
    """A module whose parameters are views of the flat vector `values`, in the order of their names.

    `forward` computes its outputs; `speed_up` may put a faster equivalent of the module there.
    """

    def __init__(
        self, module: nn.Module, dtype: torch.dtype, device: torch.device, task: Task | None = None
    ) -> None:
        """`task`: what it is trained for, by default classification."""
        self.task = task or Classification()
        named = list(module.named_parameters())
        self.names = [name for name, _ in named]
        self.shapes = [tuple(p.shape) for _, p in named]
        self.num_params = sum(p.numel() for _, p in named)
        # x_0 in float64, before the working precision rounds it.
        self.initial = np.concatenate([p.detach().double().cpu().numpy().ravel() for _, p in named])
        self.module = module.to(device=device, dtype=dtype)
        self.values = torch.zeros(self.num_params, dtype=dtype, device=device)
        for parameter, view in zip(self.module.parameters(), self.views(self.values), strict=True):
            parameter.data = view
        self.load(self.initial)
        self.trainable = [i for i, p in enumerate(self.module.parameters()) if p.requires_grad]
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.forward = self.module
        self._has_modes = has_modes(module)
        self.dense_layers = dense_layers(module)  # None for other models

    def views(self, vector: Tensor) -> list[Tensor]:
        """A flat vector as tensors of the parameters' shapes, without a copy."""
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        return [part.view(s) for part, s in zip(vector.split(sizes), self.shapes, strict=True)]

    def trainable_views(self, vector: Tensor) -> list[Tensor]:
        """As `views`, of the parameters that are trained."""
        views = self.views(vector)
        return [views[i] for i in self.trainable]

    def stacked_views(self, vectors: Tensor) -> list[Tensor]:
        """As `views`, of a stack of vectors: (rows, *shape) each."""
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        parts = vectors.split(sizes, dim=1)
        return [part.view(len(vectors), *s) for part, s in zip(parts, self.shapes, strict=True)]

    def gradient(self, loss: Tensor, *, create_graph: bool = False) -> tuple[Tensor, ...]:
        """The gradient of a loss, one tensor for each trained parameter; zero for those it does not use."""
        parts = torch.autograd.grad(
            loss, self.parameters, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
        # Older versions of torch, 2.4 among them, give zeros that ask for gradients of their own.
        return parts if create_graph else tuple(p.detach() if p.requires_grad else p for p in parts)

    def evaluates(self) -> None:
        """From now on compute as in an evaluation."""
        if self._has_modes:
            self.forward.eval()

    def trains(self) -> None:
        """From now on compute as in training."""
        if self._has_modes:
            self.forward.train()

    def replica(self) -> FlatModel:
        """A model of the same parameters with memory of its own."""
        values = self.values
        return FlatModel(copy.deepcopy(self.module), values.dtype, values.device, self.task)

    def load(self, vector: np.ndarray | Tensor) -> None:
        """Set the parameters from a float64 vector, on the host or on the device."""
        self.values.copy_(torch.as_tensor(vector))

    def describe(self) -> str:
        """Names and shapes as JSON, for files and digests."""
        return json.dumps([[n, list(s)] for n, s in zip(self.names, self.shapes, strict=True)])

    def digest(self) -> str:
        """SHA-256 of the parameters' names, shapes and initial values."""
        sha = hashlib.sha256(self.describe().encode())
        sha.update(self.initial.astype("<f8").tobytes())
        return sha.hexdigest()


def together(most: int, num_params: int) -> int:
    """How many clients an engine trains at once: `most`, or as many as have their parameters in 256 MB.

    >>> together(16, 1_000_000), together(16, 25_000_000)
    (16, 2)
    """
    return max(min(most, _TOGETHER_BYTES // (4 * num_params)), 1)


def aligned_rows(count: int, length: int, like: Tensor) -> Tensor:
    """(count, length) of zeros, every row starting at a multiple of 64 bytes from the first.

    Kernels give different last bits for aligned and unaligned data; here all rows are aligned alike.
    """
    per_line = 64 // like.element_size()
    stride = -(-length // per_line) * per_line
    return like.new_zeros((count, stride))[:, :length]
