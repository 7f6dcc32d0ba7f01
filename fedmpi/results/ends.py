"""The end of a run as `compare` takes it: what is read of its file, and which rounds count (settled.py).

Invariant: reads what it needs of a result file and nothing else, with neither torch nor MPI.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedmpi.errors import UserError
from fedmpi.errors.wording import option
from fedmpi.participation.cycle import declared_cycle
from fedmpi.results.settled import LAST, cadence, in_window, mean_over, window
from fedmpi.storage.columns import DONE, metric_of, stored_metrics
from fedmpi.storage.reader import open_run, read_config, read_table

_END = 0.05  # of a run's rounds, at least, and then on to a whole number of cycles


class _Stored(SimpleNamespace):
    """A section of a stored config; a key that it does not hold is not set."""

    def __getattr__(self, key: str) -> None:
        return None


@dataclass(frozen=True)
class RunEnd:
    """What is needed of a result file."""

    path: Path
    config: dict[str, dict[str, Any]]
    rounds: int
    evaluated: np.ndarray  # rounds in which the metric was recorded
    values: np.ndarray
    higher_is_better: bool

    @property
    def seed(self) -> int:
        """By which runs are paired."""
        return self.config["run"]["seed"]

    @property
    def cycle(self) -> int:
        """Rounds after which participation and amplification repeat."""
        options, who = self.config["algorithm"], _Stored(**self.config["participation"])
        parts = [declared_cycle(who), who.trace_period]
        parts.append(options.get("wait_rounds"))
        if options.get("amplification", 1) != 1 or options["name"] == "amplified-scaffold":
            parts.append(options.get("amplify_every"))
        return math.lcm(*(part for part in parts if part))

    @property
    def cadence(self) -> int:
        """Rounds from one evaluation to the next."""
        return cadence(self.evaluated)

    def counted(self, window: int, cycle: int) -> int:
        """Evaluations in the last so many rounds, of which the end is the mean."""
        return int(in_window(self.evaluated, cycle, window, self.rounds).sum())


def read_end(path: Path, metric: str) -> RunEnd:
    """A finished run with its values of a metric; refused if it has none."""
    with open_run(path) as file:
        try:
            table, config = read_table(file, "eval"), read_config(file.attrs["config"])
            status, rounds = str(file.attrs["status"]), len(file["train/round"])
            attributes = dict(file.attrs)
        except Exception as error:  # a damaged file can fail in any way inside the HDF5 library
            raise UserError(f"run file {path}: damaged, or not complete ({error})") from None
    if status != DONE:
        wanted = config["run"]["num_rounds"]
        raise UserError(
            f"run file {path}: {status} after {rounds:,} of {wanted:,} rounds, no end to compare; "
            "finish it with fedmpi resume, or leave its seed out by a pattern"
        )
    higher = metric_of(attributes, metric).better == "higher"
    is_there = np.isfinite(table[metric])
    if not is_there.any():
        names = [column.name for column in stored_metrics(attributes)]
        have = [name for name in names if np.isfinite(table[name]).any()]
        raise UserError(f"run file {path}: no {metric}; it has {', '.join(have) or 'no evaluation at all'}")
    return RunEnd(path, config, rounds, table["round"][is_there], table[metric][is_there], higher)


def same_rounds(runs: list[RunEnd]) -> int:
    """The rounds of all runs; refused if they differ."""
    by_rounds = {run.rounds: run.path for run in runs}
    if len(by_rounds) > 1:
        told = "; ".join(f"{path} has {rounds:,}" for rounds, path in sorted(by_rounds.items()))
        raise UserError(f"different numbers of rounds: {told}; compare runs of the same length")
    return runs[0].rounds


def window_of(rounds: int, cycle: int, steps: list[int]) -> int:
    """A twentieth of the run and a few evaluations, whole cycles that see each phase."""
    least = math.ceil(max(_END * rounds, LAST * max(steps)))
    return window(rounds, cycle, steps, min(least, rounds))


def checked_window(window: int, rounds: int) -> int:
    """A window that a user gave."""
    if not isinstance(window, int) or not 1 <= window <= rounds:
        raise UserError(f"{option('window', window)}: expected a number of rounds from 1 to {rounds:,}")
    return window


def end_value(run: RunEnd, window: int, cycle: int) -> float:
    """The mean over the last rounds, by the rule of all figures."""
    value = mean_over(run.evaluated, run.values, cycle, window, run.rounds)
    if math.isnan(value):
        raise UserError(
            f"run file {run.path}: no evaluation in its last {window:,} rounds, it has one every "
            f"{run.cadence:,}; give a longer {option('window')}"
        )
    return value


def notes_on_phases(window: int, cycle: int, steps: list[int]) -> list[str]:
    """Where the mean is not one over whole cycles, or evaluations see few phases."""
    notes = []
    if window % cycle:
        notes.append(
            f"{window:,} rounds are not whole cycles of {cycle:,}: where the metric swings within a cycle, "
            "the mean depends on where it ends"
        )
    for name, step in zip("AB", steps, strict=True):
        phases = cycle // math.gcd(cycle, step)
        if phases == 1 < cycle:
            notes.append(
                f"{name} is evaluated every {step:,} rounds, always at the same phase of the cycle of "
                f"{cycle:,}: its mean says nothing of the others"
            )
    return notes
