"""All runs of a sweep on one screen: a line for each that ended, how many there are, and which go on.

On a terminal the last lines are redrawn, with a bar for each run that goes on; a log file gets plain lines.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from collections import Counter

from fedmpi.experiments.sweep.points import Point
from fedmpi.experiments.sweep.store import RUNNING, Store, folder_names
from fedmpi.results.colour import with_colour
from fedmpi.results.text import bar, duration, is_terminal
from fedmpi.storage.columns import headline

_MOST_SHOWN = 8


class Screen:
    """The folder as seen by world rank 0; runs of other jobs appear too."""

    def __init__(self, store: Store, points: list[Point]) -> None:
        self._store, self._points = store, points
        self._out = sys.stdout  # runs redirect theirs
        self._is_terminal = is_terminal(self._out)
        self._begin = time.time()
        self._next = self._next_line = 0.0
        self._height = 0  # lines at the end that are redrawn
        # Runs that ended before this job are counted, not printed again.
        self._ended = {p.name: store.outcome(p.name) for p in points}
        self._before = sum(store.is_final(p, self._ended[p.name]) for p in points)

    def redraw(self) -> None:
        """Print what ended since the last look, at most once a second."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 1.0
        self._tell_ended()
        if self._is_terminal or now >= self._next_line:
            self._next_line = now + 30.0
            self._show(self._lines())

    def close(self) -> None:
        """The last lines."""
        self._tell_ended()
        self._show([self._lines()[0]], stays=True)

    def _show(self, lines: list[str], *, stays: bool = False) -> None:
        """Lines at the end of the screen, in place of those that were; `stays`: they are not redrawn."""
        if not self._is_terminal:
            print("\n".join(lines), file=self._out, flush=True)
            return
        up = f"\x1b[{self._height - 1}A" if self._height > 1 else ""
        lines = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
        if not stays:  # lines that wrap around could not be redrawn
            size = shutil.get_terminal_size()
            lines = [line[: size.columns - 1] for line in lines[: max(size.lines - 1, 1)]]
        self._height = 0 if stays else len(lines)
        text = "\n".join(with_colour(line, is_terminal=True) for line in lines)
        print(f"\r{up}\x1b[J{text}", end="\n" if stays else "", file=self._out, flush=True)

    def _tell_ended(self) -> None:
        names = folder_names(self._store.notes)
        for point in self._points:
            if f"{point.name}.json" not in names:
                continue
            outcome, old = self._store.outcome(point.name), self._ended[point.name]
            if outcome is None or (old and outcome.time == old.time):
                continue
            self._ended[point.name] = outcome
            found = outcome.metrics or {}
            shown = [name for name in dict.fromkeys(("train_loss", headline(found))) if name in found]
            metrics = "".join(f"  {name.replace('_', ' ')} {found[name]:.4f}" for name in shown)
            why = f"  {outcome.message}" if outcome.message else ""
            text = f"{outcome.status:8s} {point.name}  {outcome.rounds:,} rounds{metrics}{why}"
            self._show([text], stays=True)

    def _lines(self) -> list[str]:
        """How many there are; on a terminal also a bar for each run that goes on."""
        store, points = self._store, self._points
        states = {p.name: store.status(p.name, self._ended[p.name]) for p in points}
        counts = Counter(states.values())
        over = sum(store.is_final(p, self._ended[p.name]) for p in points)
        progress_of = {name: self._progress(name) for name, state in states.items() if state == RUNNING}
        shares = [share for share, _ in progress_of.values()]
        num_packs = sum(1 / packed for _, packed in progress_of.values())
        progress = over - self._before + sum(shares)
        left = len(points) - over - sum(shares)
        seconds = (time.time() - self._begin) / progress * left if progress > 0 else math.inf
        words = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        number = max(round(num_packs), 1)
        packs = f"in {number} pack{'s' * (number > 1)}: " if num_packs < len(shares) else ""
        more = ", ..." if len(shares) > _MOST_SHOWN else ""
        each = [f"{share:.0%}" for share in shares[:_MOST_SHOWN]]
        running = f" ({packs}{', '.join(each)}{more})" if shares else ""
        remaining = f"; left {duration(seconds)}" if left and progress > 0 else ""
        bars = [f"  {s:4.0%} {bar(s)} {name}" for name, (s, _) in [*progress_of.items()][:_MOST_SHOWN]]
        return [
            f"{over}/{len(points)} runs: {words}{running}{remaining}",
            *(bars if self._is_terminal else ()),
        ]

    def _progress(self, name: str) -> tuple[float, int]:
        """How much of a run is done, and how many runs go on in lockstep with it, itself included."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            share, packed, *_ = [*(self._store.notes / f"{name}.progress").read_text().split(), "1"]
            return float(share), max(int(packed), 1)
        return 0.0, 1
