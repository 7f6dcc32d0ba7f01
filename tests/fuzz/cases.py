"""Random damage to bytes and text, and the number of cases run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

is_long = False  # --long
outcomes: dict[str, Counter[str]] = defaultdict(Counter)  # what was read -> what became of it

Mutation = tuple[str, float, int, bytes]


def number_of_cases(usual: int, long: int) -> Callable:
    """So many cases, the same each time; with --long many more, other ones each time.

    Failures are not shrunk: each try at a crash or a hang would cost seconds.
    """
    return settings(
        max_examples=long if is_long else usual, derandomize=not is_long, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip


_KINDS = ("flip", "flip", "flip", "set", "insert", "delete", "truncate", "repeat", "zero")
_MUTATION = st.tuples(
    st.sampled_from(_KINDS),
    st.floats(0, 1, exclude_max=True),  # place, as a share of the length
    st.integers(0, 255),
    st.binary(min_size=1, max_size=8),
)


def mutations() -> st.SearchStrategy[list[Mutation]]:
    """Mostly one to three changes, which get deeper into a reader than many."""
    return st.lists(_MUTATION, min_size=1, max_size=3)


def mutate(data: bytes, changes: list[Mutation]) -> bytes:
    """The bytes after all changes."""
    for kind, share, number, some in changes:
        place, end = int(share * len(data)), int(share * len(data)) + 1 + number % 64
        if kind == "flip":
            changed = bytes([data[place] ^ (1 << number % 8)]) if data else b""
            data = data[:place] + changed + data[place + 1 :]
        elif kind == "set":
            data = data[:place] + some + data[place + len(some) :]
        elif kind == "insert":
            data = data[:place] + some + data[place:]
        elif kind == "delete":
            data = data[:place] + data[end:]
        elif kind == "truncate":
            data = data[:place]
        elif kind == "repeat":
            data = data[:end] + data[place:]
        elif kind == "zero":
            data = data[:place] + bytes(len(data[place:end])) + data[end:]
    return data
