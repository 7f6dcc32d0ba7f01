"""What a person sees during a run. Rank 0 only.

Progress goes to stderr: a bar that redraws itself on a terminal, plain lines in a log file; in a notebook
it is a line of output that changes.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from typing import TextIO

from fedmpi.results.text import bar, duration, is_terminal
from fedmpi.simulation.outcome import Listener
from fedmpi.storage.columns import headline, short_name


class Progress(Listener):
    """A progress bar with rate, elapsed and remaining time and the latest loss."""

    def __init__(self, stream: TextIO | None = None, unit: str = "rounds") -> None:
        self._unit = unit
        self._stream = stream or sys.stderr
        self._is_terminal = is_terminal(self._stream)
        self._gap = 0.1 if self._is_terminal else 10.0  # seconds between two updates
        self.expects(1)
        self._loss = self._other = math.nan
        self._name = ""  # of the other metric

    def expects(self, total: int, completed: int = 0) -> None:
        """Start counting; `completed` rounds belong to earlier legs of the run."""
        self._total, self._done_before = total, completed
        self._begin = self._next = time.monotonic()

    def evaluated(self, row: dict[str, float]) -> None:
        """The latest evaluation."""
        if not math.isnan(row["train_loss"]):
            self._loss = row["train_loss"]
        self._name = headline(row)
        if not math.isnan(row[self._name]):
            self._other = row[self._name]

    def round_done(self, completed: int, force: bool = False) -> None:
        """Redraw if it is time."""
        now = time.monotonic()
        if now < self._next and not force:
            return
        self._next = now + self._gap
        self._show(self._text(completed, now - self._begin))

    def _show(self, text: str) -> None:
        if self._is_terminal:  # a line that wraps around could not be redrawn
            text = text[: shutil.get_terminal_size().columns - 1]
        end = "" if self._is_terminal else "\n"
        print(f"\r\x1b[K{text}" if self._is_terminal else text, end=end, file=self._stream, flush=True)

    def ended(self, completed: int) -> None:
        """The last update."""
        self.round_done(completed, force=True)
        if self._is_terminal:
            print(file=self._stream)

    def _text(self, completed: int, elapsed: float) -> str:
        rate = (completed - self._done_before) / elapsed if elapsed > 0 else 0.0
        remaining = (self._total - completed) / rate if rate > 0 else math.inf
        share = completed / self._total
        metrics = f"  train loss {self._loss:.4f}" if math.isfinite(self._loss) else ""
        if math.isfinite(self._other):
            metrics += f"  test {short_name(self._name)} {self._other:.3f}"
        return (
            f"{share:4.0%} {bar(share)} {completed:,}/{self._total:,} {self._unit}  {rate:.1f}/s  "
            f"elapsed {duration(elapsed)}  left {duration(remaining)}{metrics}"
        )


class NotebookProgress(Progress):
    """The same, as one changing line of a notebook's output."""

    def __init__(self, unit: str = "rounds") -> None:
        super().__init__(sys.stderr, unit)
        self._gap = 0.25
        self._handle = None

    def _show(self, text: str) -> None:
        from IPython.display import display

        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def progress_bar(unit: str = "rounds") -> Progress:
    """The progress display for a notebook, a terminal or a log file."""
    return NotebookProgress(unit) if _is_notebook() else Progress(unit=unit)


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return type(shell).__name__ == "ZMQInteractiveShell"
