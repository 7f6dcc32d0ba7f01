"""What listens to runs and sweeps that a Python program started: its own functions, and a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmpi.experiments.sweep.points import Point
from fedmpi.experiments.sweep.store import Store
from fedmpi.mpi.watch import pulse
from fedmpi.simulation.outcome import Listener
from fedmpi.simulation.stopping import StopRequest


class Callbacks(Listener):
    """The user's own functions beside the progress bar. Rank 0.

    A callback that fails ends the run with a checkpoint, as one that asks for it: other ranks must not be
    left waiting.
    """

    def __init__(
        self,
        bar: Listener,
        on_evaluation: Callable[[dict[str, float]], Any] | None,
        on_round: Callable[[int], Any] | None,
        stop: StopRequest,
    ) -> None:
        self._bar, self._on_evaluation, self._on_round, self._stop = bar, on_evaluation, on_round, stop
        self.error: Exception | None = None

    def expects(self, total: int, completed: int = 0) -> None:
        """To the bar."""
        self._bar.expects(total, completed)

    def evaluated(self, row: dict[str, float]) -> None:
        """To the bar and the user's function."""
        self._bar.evaluated(row)
        self._call(self._on_evaluation, dict(row))

    def round_done(self, completed: int) -> None:
        """To the bar and the user's function."""
        self._bar.round_done(completed)
        self._call(self._on_round, completed)

    def ended(self, completed: int) -> None:
        """To the bar."""
        self._bar.ended(completed)

    def _call(self, function: Callable[[Any], Any] | None, argument: Any) -> None:
        if function is None or self.error is not None:
            return
        pulse.here.at(pulse.CODES["in a callback"])
        try:
            if function(argument):
                self._stop.request()
        except Exception as error:
            self.error = error
            self._stop.request()


class SweepProgress:
    """A progress bar over the runs of a sweep. Rank 0."""

    def __init__(self, bar: Listener, folder: Path, points: list[Point]) -> None:
        self._bar, self._store, self._points = bar, Store(folder), points
        self._bar.expects(len(points))

    def redraw(self) -> None:
        """Runs that are over by now."""
        self._bar.round_done(self._over())

    def close(self) -> None:
        """The last showing."""
        self._bar.ended(self._over())

    def _over(self) -> int:
        store = self._store
        return sum(store.is_final(point, store.outcome(point.name)) for point in self._points)
