"""What a run leaves behind, on rank 0: rows, models along the way, checkpoints, each when it is due.

Invariant: results reach the disk before the checkpoint that names them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from fedmpi.config import RunConfig
from fedmpi.experiments.tensorboard import EventFiles
from fedmpi.simulation.clock import Stopwatch
from fedmpi.storage.checkpoint import Checkpoint, write_checkpoint
from fedmpi.storage.schema import DIVERGED
from fedmpi.storage.writer import RunWriter


class Recorder:
    """Decides what is written when."""

    def __init__(self, writer: RunWriter, config: RunConfig, clock: Stopwatch) -> None:
        self._writer = writer
        self._config = config
        self._clock = clock
        self._last_checkpoint = time.monotonic()
        self._events = EventFiles(writer.path, clock.offset) if config.tensorboard else None

    def add(self, table: str, *values: object) -> None:
        """Rows of a table; they reach the disk with the next flush."""
        self._writer.add(table, *values)
        if self._events:
            self._events.add(table, *values)

    def checkpoint_due(self, completed: int) -> bool:
        """Whether a checkpoint is to be written after so many rounds: by their number, or by time."""
        run = self._config
        minutes = (time.monotonic() - self._last_checkpoint) / 60
        return minutes > run.checkpoint_minutes > 0 or is_due(completed, run.checkpoint_every)

    def after_round(
        self,
        completed: int,
        global_params: np.ndarray,
        make: Callable[[dict], Checkpoint],
        *,
        checkpoint: bool,
    ) -> None:
        """Keep x_t and write results or a checkpoint, as far as they are due."""
        if is_due(completed, self._config.record_params_every):
            self._writer.add_snapshot(completed, global_params)
        with self._clock("output"):
            if checkpoint:
                self._checkpoint(global_params, make)
            else:
                self._writer.flush_if_due(global_params)

    def finish(
        self,
        status: str,
        global_params: np.ndarray,
        make: Callable[[dict], Checkpoint],
        phases: list[dict[str, float]],
    ) -> None:
        """The last flush and checkpoint; `phases` is where each rank's time went."""
        attributes = {"status": status, "phases": json.dumps(phases)}
        with self._clock("output"):
            if status == DIVERGED:  # there is nothing to go on with
                self._writer.flush(global_params, **attributes)
            else:
                self._checkpoint(global_params, make, **attributes)
            if self._events:
                self._events.close()

    def _checkpoint(
        self, global_params: np.ndarray, make: Callable[[dict], Checkpoint], **attributes: str
    ) -> None:
        self._writer.flush(global_params, **attributes)
        write_checkpoint(self._writer.path, make(self._writer.rows))
        self._last_checkpoint = time.monotonic()


def is_due(completed: int, every: int) -> bool:
    """Whether something that happens every so many rounds (0: never) happens now."""
    return bool(every) and completed % every == 0
