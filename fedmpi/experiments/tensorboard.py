"""TensorBoard events next to a result file; on rank 0 (run.tensorboard = true).

Invariant: the folder holds each evaluation of the result file once. When a run is resumed it is rebuilt
from the rows that stay, so a kill, a resume or a fork leaves neither gaps nor duplicates.
"""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import Any

from fedmpi.errors import OutputError, UserError
from fedmpi.storage.reader import load_table

_FLUSH_SECONDS = 2


class EventFiles:
    """The event files of one run; takes the rows that its tables take."""

    def __init__(self, run_path: Path, elapsed: float) -> None:
        """Rebuild the folder from what the result file holds after `elapsed` seconds of the run."""
        from torch.utils.tensorboard import SummaryWriter  # only here, since it takes time to load

        remove_events(run_path)
        self._run_path = run_path
        self._began = time.time() - elapsed
        self._norm = math.nan  # of the latest round
        # purge_step: a TensorBoard that is open drops what it read from the files removed above.
        with self._as_output_error():
            self._writer = SummaryWriter(events_folder(run_path), purge_step=0, flush_secs=_FLUSH_SECONDS)
        self._replay()

    def _replay(self) -> None:
        evaluations, train = load_table(self._run_path, "eval"), load_table(self._run_path, "train")
        norms = dict(zip(train["round"], train["weighted_sum_norm"], strict=True))
        for values in zip(*evaluations.values(), strict=True):
            row = dict(zip(evaluations, values, strict=True))
            self._norm = norms.get(row["round"] - 1, math.nan)
            self.add("eval", **row)

    def add(self, table: str, **row: Any) -> None:
        """A row; of all tables only evaluations are shown, each with the norm of the round before it."""
        if table == "train":
            self._norm = row["weighted_sum_norm"]
        if table != "eval":
            return
        points = {name: value for name, value in row.items() if name not in ("round", "wall_time_s")}
        points |= {"weighted_sum_norm": self._norm}
        with self._as_output_error():
            for name, value in points.items():
                if not math.isnan(value):  # not evaluated in this round
                    self._writer.add_scalar(
                        name, value, int(row["round"]), self._began + row["wall_time_s"]
                    )

    def close(self) -> None:
        """Write everything to disk."""
        with self._as_output_error():
            self._writer.close()

    @contextlib.contextmanager
    def _as_output_error(self) -> None:
        """Turn an error of the operating system into a readable one."""
        try:
            yield
        except OSError as error:
            raise OutputError.from_os(error, events_folder(self._run_path)) from None


def events_folder(run_path: Path) -> Path:
    """Next to the result file.

    >>> events_folder(Path("runs/first.h5")).as_posix()
    'runs/first.tb'
    """
    return run_path.with_name(f"{run_path.name.removesuffix('.h5')}.tb")


def remove_events(run_path: Path) -> None:
    """Remove the event files of a result file; anything else in the folder stays."""
    for path in events_folder(run_path).glob("events.out.tfevents.*"):
        with contextlib.suppress(OSError):
            path.unlink()


def require_tensorboard() -> None:
    """A UserError if event files cannot be written here."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"config run.tensorboard = true: needs the package tensorboard, which cannot be loaded here "
            f"({error}); pip install tensorboard, or set run.tensorboard = false"
        ) from None
