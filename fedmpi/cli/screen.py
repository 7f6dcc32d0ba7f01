"""All runs of a sweep on one screen: a line for each that ended, and how many there are."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import Counter

from fedmpi.experiments.sweep.points import Point
from fedmpi.experiments.sweep.store import RUNNING, Store, folder_names
from fedmpi.results.text import duration, is_terminal
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
            text = self._status_line()
            print(f"\r\x1b[K{text}" if self._is_terminal else text, end="" if self._is_terminal else "\n",
                  file=self._out, flush=True)  # fmt: skip

    def close(self) -> None:
        """The last lines."""
        self._tell_ended()
        print(self._status_line(), file=self._out, flush=True)

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
            clear = "\r\x1b[K" if self._is_terminal else ""
            why = f"  {outcome.message}" if outcome.message else ""
            print(f"{clear}{outcome.status:8s} {point.name}  {outcome.rounds:,} rounds{metrics}{why}",
                  file=self._out, flush=True)  # fmt: skip

    def _status_line(self) -> str:
        store, points = self._store, self._points
        states = {p.name: store.status(p.name, self._ended[p.name]) for p in points}
        counts = Counter(states.values())
        over = sum(store.is_final(p, self._ended[p.name]) for p in points)
        progress_of = [self._progress(name) for name, state in states.items() if state == RUNNING]
        shares, num_packs = (
            [share for share, _ in progress_of],
            sum(1 / packed for _, packed in progress_of),
        )
        progress = over - self._before + sum(shares)
        left = len(points) - over - sum(shares)
        seconds = (time.time() - self._begin) / progress * left if progress > 0 else math.inf
        words = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        packs = f"in {max(round(num_packs), 1)} packs: " if num_packs < len(shares) else ""
        more = ", ..." if len(shares) > _MOST_SHOWN else ""
        running = f" ({packs}{', '.join(f'{s:.0%}' for s in shares[:_MOST_SHOWN])}{more})" if shares else ""
        remaining = f"; left {duration(seconds)}" if left and progress > 0 else ""
        return f"{over}/{len(points)} runs: {words}{running}{remaining}"

    def _progress(self, name: str) -> tuple[float, int]:
        """How much of a run is done, and how many runs go on in lockstep with it, itself included."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            share, packed, *_ = [*(self._store.notes / f"{name}.progress").read_text().split(), "1"]
            return float(share), max(int(packed), 1)
        return 0.0, 1
