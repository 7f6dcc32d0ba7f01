"""A local step as a CUDA graph: recorded once, then replayed without the cost of launching its kernels.

Never run on the machines fedmpi was developed on, which have no GPU; kept small for that reason. Whatever
cannot be recorded is run step by step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Recorded:
    """A step (inputs, labels) on fixed shapes and fixed memory."""

    def __init__(self, step: Callable[[Tensor, Tensor], None], inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self._labels = inputs.clone(), labels.clone()
        # Libraries allocate their workspaces in the first calls, which must not be recorded.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(self._inputs, self._labels)
        torch.cuda.current_stream().wait_stream(side)

        # Record one step.
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            step(self._inputs, self._labels)

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        """Take the step with this minibatch."""
        self._inputs.copy_(inputs)
        self._labels.copy_(labels)
        self._graph.replay()


class Recordings:
    """The recorded steps of a trainer, one for each memory, shape and step size."""

    def __init__(self) -> None:
        self._steps: dict[tuple, Callable[[Tensor, Tensor], None]] = {}

    def get(
        self,
        step: Callable[[Tensor, Tensor], None],
        updates: Tensor,
        minibatch: tuple[Tensor, Tensor],
        local_lr: float,
    ) -> Callable[[Tensor, Tensor], None]:
        """The step recorded, or the step itself where that fails. Leaves `updates` at zero."""
        inputs, labels = minibatch
        key = (updates.data_ptr(), tuple(updates.shape), tuple(inputs.shape), local_lr)
        if key not in self._steps:
            try:
                self._steps[key] = Recorded(step, inputs, labels)
            except RuntimeError:  # an operation that cannot be recorded
                self._steps[key] = step
            updates.zero_()  # recording itself took steps
        return self._steps[key]
