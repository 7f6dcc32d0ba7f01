"""What a person at the terminal sees while a run goes on. Rank 0 only.

Progress goes to stderr: a bar that redraws itself on a terminal, plain lines in a log file.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from typing import TextIO

from fedmpi.results.text import duration, is_terminal
from fedmpi.simulation.outcome import Listener


class Progress(Listener):
    """A progress bar with rate, elapsed and remaining time and the latest loss."""

    def __init__(
        self, total: int, stream: TextIO | None = None, done: int = 0, unit: str = "rounds"
    ) -> None:
        self._total, self._unit = total, unit
        self._done_before = done  # rounds of earlier legs of the run
        self._stream = stream or sys.stderr
        self._is_terminal = is_terminal(self._stream)
        self._gap = 0.1 if self._is_terminal else 10.0  # seconds between two showings
        self._begin = self._next = time.monotonic()
        self._loss = math.nan
        self._accuracy = math.nan

    def evaluated(self, row: dict[str, float]) -> None:
        """The latest evaluation."""
        if not math.isnan(row["train_loss"]):
            self._loss = row["train_loss"]
        if not math.isnan(row["test_accuracy"]):
            self._accuracy = row["test_accuracy"]

    def round_done(self, completed: int, force: bool = False) -> None:
        """Redraw if it is time."""
        now = time.monotonic()
        if now < self._next and not force:
            return
        self._next = now + self._gap
        text = self._text(completed, now - self._begin)
        if self._is_terminal:  # a line that wraps around could not be redrawn
            text = text[: shutil.get_terminal_size().columns - 1]
        end = "" if self._is_terminal else "\n"
        print(f"\r\x1b[K{text}" if self._is_terminal else text, end=end, file=self._stream, flush=True)

    def ended(self, completed: int) -> None:
        """The last showing."""
        self.round_done(completed, force=True)
        if self._is_terminal:
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
