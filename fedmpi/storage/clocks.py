"""What a run has cost after some of its rounds, by other clocks than rounds.

Rounds are no cost for methods that wait: a round in which nobody takes part is free for clients and
network. Invariant: clocks come from what the file holds; one that it does not hold is refused, not guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fedmpi.storage.reader import Run


@dataclass(frozen=True)
class Clock:
    """One way to count; `after(run, rounds)` is None where the file does not hold it."""

    column: str  # its name in tables
    label: str
    unit: str
    after: Callable[[Run, np.ndarray], np.ndarray | None]
    missing: str = ""  # why a file may not hold it

    @property
    def is_beside(self) -> bool:
        """Whether tables of evaluations have a column for it beside round and wall time."""
        return self.column not in ("rounds", "seconds")


def clock_of(name: str) -> Clock:
    """The clock of a name; `local_steps` is as good as `local-steps`."""
    clock = CLOCKS.get(name.replace("_", "-"))
    if clock is None:
        raise UserError(f"x = {name}: unknown; {did_you_mean(name, list(CLOCKS))}")
    return clock


def time_of(run: Run, name: str, rounds: np.ndarray) -> np.ndarray:
    """What a clock shows after so many completed rounds; a UserError where the file does not tell."""
    clock = clock_of(name)
    shown = clock.after(run, np.asarray(rounds)) if run.train is not None else _in_table(run, clock, rounds)
    if shown is None:
        raise UserError(f"x = {name}: run file {run.path} does not hold it: {clock.missing}")
    return shown


def _in_table(run: Run, clock: Clock, rounds: np.ndarray) -> np.ndarray | None:
    """The same of a run that a table of evaluations holds: its columns have the clocks."""
    if clock.column == "rounds":
        return np.asarray(rounds)
    shown = run.eval["wall_time_s" if clock.column == "seconds" else clock.column]
    return np.interp(rounds, run.eval["round"], shown) if shown.notna().any() else None


def totals(run: Run) -> dict[str, float]:
    """What each clock that the file holds shows in the end, by the names of columns."""
    end = np.array([len(run.train)])
    shown = {clock.column: clock.after(run, end) for clock in CLOCKS.values()}
    return {name: float(values[0]) for name, values in shown.items() if values is not None}


def _per_round(run: Run, costs: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """The sum of what the rounds before each of `rounds` cost."""
    place = np.searchsorted(run.train["round"].to_numpy(), rounds)
    return np.concatenate([[0], np.cumsum(costs)])[place]


def _local_steps(run: Run, rounds: np.ndarray) -> np.ndarray:
    trained, steps = run.train.participants.to_numpy(), run.config["algorithm"]["local_steps"]
    if json.loads(run.attributes.get("traffic", "{}")).get("absent_train"):
        trained = np.where(_is_warmup(run), trained, len(run.clients))
    elif isinstance(steps, list) and run.config["algorithm"]["local_steps_law"] == "given":
        own = run.participation.assign(steps=np.array(steps)[run.participation["client"]])
        taken = own.groupby("round").steps.sum().reindex(run.train["round"], fill_value=0)
        return _per_round(run, taken.to_numpy(), rounds)
    mean = steps if isinstance(steps, int) else np.mean(steps)  # of numbers that are drawn
    return _per_round(run, trained * mean, rounds)


def _is_warmup(run: Run) -> np.ndarray:
    """Of each round, whether it is plain FedAvg: x in one direction, an update in the other."""
    return run.train["round"].to_numpy() < run.config.get("warmup", {}).get("num_rounds", 0)


def _bytes(run: Run, rounds: np.ndarray) -> np.ndarray | None:
    if "traffic" not in run.attributes:
        return None
    traffic = json.loads(run.attributes["traffic"])
    vectors = np.where(_is_warmup(run), 2, traffic["received"] + traffic["sent"])
    return _per_round(run, run.train.participants.to_numpy() * vectors * traffic["vector"], rounds)


def _seconds(run: Run, rounds: np.ndarray) -> np.ndarray:
    # The end of a round that was evaluated is the end of its evaluation.
    ends = np.concatenate([run.train["round"].to_numpy() + 1, run.eval["round"].to_numpy()])
    times = np.concatenate([run.train.wall_time_s.to_numpy(), run.eval.wall_time_s.to_numpy()])
    order = np.lexsort((times, ends))
    place = np.searchsorted(ends[order], rounds, side="right") - 1
    return np.where(place >= 0, times[order][place], 0.0) if len(times) else np.zeros(len(rounds))


def _energy(run: Run, rounds: np.ndarray) -> np.ndarray | None:
    if run.energy is None or not len(run.energy):
        return None
    return np.interp(rounds, run.energy["round"], np.cumsum(run.energy.joules))


CLOCKS = {
    "rounds": Clock("rounds", "Round", "", lambda run, rounds: rounds),
    "local-steps": Clock("local_steps", "Local steps of all clients", "", _local_steps),
    "bytes": Clock(
        "bytes_sent", "Bytes between clients and server", "B", _bytes, "an older fedmpi wrote the file"
    ),
    "seconds": Clock("seconds", "Seconds", "s", _seconds),
    "energy": Clock(
        "energy_j", "Energy of the nodes", "J", _energy,
        "its nodes had no counter that may be read (RAPL, NVML)",
    ),
}  # fmt: skip
