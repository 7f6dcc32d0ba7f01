"""What a person at the terminal sees: banner, progress, summary. Rank 0 only.

Progress goes to stderr: a bar that redraws itself on a terminal, plain lines in a log file.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from typing import TextIO


def duration(seconds: float) -> str:
    """Seconds for people.

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
    """Bytes for people.

    >>> bytes_text(512), bytes_text(1_828_688)
    ('512 B', '1.8 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.99995 * size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream. Open MPI gives its ranks a terminal of its own making.

    Behind it stands the launcher, whose own output may well go to a log file.
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


class Progress:
    """A progress bar with rate, elapsed and remaining time and the latest loss."""

    def __init__(
        self, total: int, enabled: bool, stream: TextIO | None = None, done: int = 0, unit: str = "rounds"
    ) -> None:
        self._total, self._unit = total, unit
        self._done_before = done  # rounds of earlier legs of the run
        self._stream = stream or sys.stderr
        self._enabled = enabled
        self._is_terminal = is_terminal(self._stream)
        self._gap = 0.1 if self._is_terminal else 10.0  # seconds between two showings
        self._begin = self._next = time.monotonic()
        self._loss = math.nan
        self._accuracy = math.nan

    def note(self, train_loss: float, test_accuracy: float) -> None:
        """The latest evaluation."""
        if not math.isnan(train_loss):
            self._loss = train_loss
        if not math.isnan(test_accuracy):
            self._accuracy = test_accuracy

    def show(self, completed: int, force: bool = False) -> None:
        """Redraw if it is time."""
        now = time.monotonic()
        if not self._enabled or (now < self._next and not force):
            return
        self._next = now + self._gap
        text = self._text(completed, now - self._begin)
        if self._is_terminal:  # a line that wraps around could not be redrawn
            text = text[: shutil.get_terminal_size().columns - 1]
        end = "" if self._is_terminal else "\n"
        print(f"\r\x1b[K{text}" if self._is_terminal else text, end=end, file=self._stream, flush=True)

    def close(self, completed: int) -> None:
        """The last showing."""
        self.show(completed, force=True)
        if self._enabled and self._is_terminal:
            print(file=self._stream)

    def _text(self, completed: int, elapsed: float) -> str:
        rate = (completed - self._done_before) / elapsed if elapsed > 0 else 0.0
        remaining = (self._total - completed) / rate if rate > 0 else math.inf
        share = completed / self._total
        filled = int(20 * share)
        bar = "█" * filled + "░" * (20 - filled)
        metrics = f"  train loss {self._loss:.4f}" if math.isfinite(self._loss) else ""
        metrics += f"  test acc {self._accuracy:.3f}" if math.isfinite(self._accuracy) else ""
        return (
            f"{share:4.0%} {bar} {completed:,}/{self._total:,} {self._unit}  {rate:.1f}/s  "
            f"elapsed {duration(elapsed)}  left {duration(remaining)}{metrics}"
        )
