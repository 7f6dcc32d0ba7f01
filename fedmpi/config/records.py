"""Frozen records that a round passes along."""

from __future__ import annotations

from typing import Any, TypeVar

Record = TypeVar("Record")


def replace(record: Record, **values: Any) -> Record:
    """As `dataclasses.replace`, in a third of its time: a round does it half a dozen times.

    Fields are not checked, and defaults not made again.
    """
    kind = type(record)
    new = kind.__new__(kind)
    new.__dict__.update(record.__dict__, **values)
    return new
