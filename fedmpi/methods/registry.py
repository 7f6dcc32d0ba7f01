"""Methods by name: a dict and a decorator."""

from __future__ import annotations

from collections.abc import Callable

from fedmpi.methods.base import Method

METHODS: dict[str, type[Method]] = {}


def method(name: str) -> Callable[[type[Method]], type[Method]]:
    """Register a class under a name of `algorithm.name`."""

    def register(kind: type[Method]) -> type[Method]:
        METHODS[name] = kind
        return kind

    return register
