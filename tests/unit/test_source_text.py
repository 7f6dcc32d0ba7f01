"""What tells one Python object from another in a result file."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.config.source_text import source_text


class Every:
    """Clients whose number is divisible by k."""

    def __init__(self, k: object) -> None:
        self.k = k

    def __call__(self, t: int, num_clients: int) -> list[int]:
        """Who is there."""
        return [n for n in range(num_clients) if n % self.k == 0]

    def method(self, t: int) -> list[int]:
        """As a function."""
        return [self.k]


class Opaque:
    """An object that does not show what is in it."""

    def __init__(self, value: object) -> None:
        self.value = value


def bare(body: str):
    """A function whose text Python does not know."""
    space: dict = {}
    exec(body, space)
    return next(value for name, value in space.items() if name != "__builtins__")


def net(**options: float) -> nn.Module:
    """A small model."""
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(**options))


DIFFERENT = {
    "constants": lambda k: bare(f"def f(t):\n    return [{k}]"),
    "constants of a function inside": lambda k: bare(f"def f(t):\n    return (lambda: [{k}])()"),
    "names": lambda k: bare(f"def f(t):\n    return a{k}(t)"),
    "defaults": lambda k: bare(f"def f(t, k={k}):\n    return [k]"),
    "a class without text": lambda k: bare(f"class A:\n    def f(self):\n        return {k}"),
    "attributes": Every,
    "attributes of attributes": lambda k: Every(Opaque({"a": [k]})),
    "arrays": lambda k: Every(np.array([k, 1])),
    "tensors": lambda k: Every(torch.tensor([k, 1])),
    "bound methods": lambda k: Every(k).method,
    "partials": lambda k: functools.partial(tuple, k=k),
    "instances in partials": lambda k: functools.partial(tuple, Opaque(k)),
    "structure of a module": lambda k: net(p=k / 10),
}


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
def test_what_computes_differently_has_another_text(make):
    """And what is made again in the same way has the same, whatever its address."""
    assert source_text(make(1)) != source_text(make(2))
    assert source_text(make(1)) == source_text(make(1))
    assert " at 0x" not in source_text(make(1))


def test_a_lambda_is_its_own_text():
    """Not that of the statement round it, which names what else the call is given."""
    first, second = (lambda t: [t]), (lambda t: [t, 1])
    assert source_text(first) == "lambda t: [t]"
    assert source_text(second) == "lambda t: [t, 1]"
    (nested,) = [lambda t: (lambda: [t])()]
    assert source_text(nested) == "lambda t: (lambda: [t])()"


def test_a_lambda_over_several_lines():
    """As it was written."""
    (long,) = [
        lambda t, num_clients: [
            (t + n) % num_clients
            for n in range(3)
        ]
    ]  # fmt: skip
    assert source_text(long).startswith("lambda t, num_clients: [")
    assert source_text(long).endswith("]")


def test_an_object_that_holds_itself_comes_to_an_end():
    """Depth is bounded."""
    circle = Every(1)
    circle.k = [circle, circle.method]
    assert source_text(circle)
