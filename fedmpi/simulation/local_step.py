"""One local step of some clients on a CPU: the gradient at y = start + update, and what is done with it.

Invariant: every operation is by row, so that a client has the same bits beside any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedmpi.methods import Method
from fedmpi.methods.base import Local, Rate, add_scaled
from fedmpi.models.engines import Gradients

Step = Callable[[Tensor, Tensor, Rate, bool], None]  # inputs, labels, -gamma, whether it is the first


def plain_step(gradients: Gradients, starts: Sequence[tuple[Tensor, slice]], updates: Tensor) -> Step:
    """y = x + update; update -= gamma * gradient at y. On a CPU.

    `starts`: x, or own starts, and the rows that start there.
    """
    add_gradient, local_params = gradients.adder(updates), gradients.local_params(len(updates))
    sums = [(start, updates[rows], local_params[rows]) for start, rows in starts]

    def step(inputs: Tensor, labels: Tensor, rates: Rate, is_first: bool) -> None:
        # The first update is zero.
        for start, update, y in sums:
            if is_first:
                y.copy_(start)
            else:
                torch.add(start, update, out=y)
        if gradients.sets_first:
            add_gradient(inputs, labels, rates, is_first)
        else:
            if is_first:
                updates.zero_()
            add_gradient(inputs, labels, rates)

    return step


def method_step(
    method: Method, local: Local, gradient: Tensor, clip_norm: float | None
) -> Callable[[Rate, Rate], None]:
    """What a run does with the gradients of its clients. Takes gamma and -gamma."""

    def step(local_lr: Rate, minus_lr: Rate) -> None:
        if clip_norm is not None:
            gradient.mul_((clip_norm / gradient.norm(dim=1, keepdim=True)).clamp_(max=1.0))
        if method.steps_by_itself:
            method.step(local, gradient, local_lr)
        else:
            add_scaled(local["update"], gradient, minus_lr)

    return step
