"""Readable numbers: times, bytes; and whether a stream is a terminal that a person sees."""

from __future__ import annotations

import math
import os
from typing import TextIO


def duration(seconds: float) -> str:
    """Seconds as readable text.

    >>> duration(7.25), duration(75), duration(3700), duration(200_000)
    ('7.2s', '1m15s', '1h01m', '2d07h')
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    seconds = max(seconds, 60)
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes}m{int(seconds) % 60:02d}s"
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes // 1440}d{minutes % 1440 // 60:02d}h"


def bytes_text(count: float) -> str:
    """Bytes as readable text.

    >>> bytes_text(512), bytes_text(1_828_688)
    ('512 B', '1.8 MB')
    """
    return _with_prefix(count, "B")


def joules_text(energy: float) -> str:
    """Joules as readable text.

    >>> joules_text(3_600_000)
    '3.6 MJ'
    """
    return _with_prefix(energy, "J")


def _with_prefix(count: float, unit: str) -> str:
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.99995 * size:
            return f"{count / size:.1f} {prefix}{unit}"
    return f"{count:.0f} {unit}"


def bar(share: float, width: int = 20) -> str:
    """A share as a bar of block characters.

    >>> bar(0.5, 4)
    '██░░'
    """
    filled = int(width * min(share, 1.0))
    return "█" * filled + "░" * (width - filled)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person sees the stream. Open MPI gives its ranks a pseudo-terminal.

    The launcher is behind it, and its own output may go to a log file.
    """
    if not stream.isatty():
        return False
    if "PMIX_RANK" not in os.environ:
        return True
    try:
        with open(f"/proc/{os.getppid()}/fd/1") as output:
            return output.isatty()
    except OSError:
        return False
