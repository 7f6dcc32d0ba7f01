"""When something that happens every few rounds is due."""

from __future__ import annotations


def is_due(completed: int, every: int) -> bool:
    """Whether it happens now; 0 is never.

    >>> [t for t in range(7) if is_due(t, 3)], is_due(3, 0)
    ([0, 3, 6], False)
    """
    return bool(every) and completed % every == 0
