"""What came out of a sweep: one small file per run that ended, an index table, the best settings.

No MPI, no torch; works at any time, even during the sweep. Besides the run files DIR/NAME.h5 a sweep
keeps DIR/index.csv, and its own notes in DIR/.sweep: plan.json, NAME.json, claims.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmpi.config import Config
from fedmpi.config.user_code import require_same_objects, uses_passed_objects
from fedmpi.config.validate import parse
from fedmpi.errors import OutputError, UserError
from fedmpi.errors.wording import option
from fedmpi.experiments.sweep.claims import is_held
from fedmpi.experiments.sweep.points import Point, different_keys
from fedmpi.storage.columns import DIVERGED, DONE, STOPPED, stored_metrics
from fedmpi.storage.files import write_contended
from fedmpi.storage.reader import load_table, peek, read_attributes

FAILED, RUNNING, WAITING = "failed", "running", "waiting"


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or how far it got."""

    status: str  # "done", "diverged", "failed", "stopped"
    digest: str  # of the config it was made with
    rounds: int = 0
    seconds: float = 0.0  # of all its legs
    message: str = ""
    time: float = 0.0
    metrics: dict[str, float] | None = None  # the last evaluation


def stored_config(path: Path) -> Config:
    """The config that a run file was made with."""
    return parse(str(read_attributes(path)["config"]), f"{path} (its config)")


class Store:
    """The folder of a sweep."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.notes = self.folder / ".sweep"

    def create(self, points: list[Point]) -> None:
        """Create the folder and store the plan; refuse runs of different settings with the same names."""
        try:
            self.notes.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError.from_os(error, self.notes) from None
        outcomes = {point.name: self.outcome(point.name) for point in points}
        changed = [p for p in points if outcomes[p.name] and outcomes[p.name].digest != p.digest]
        other = [p.name for p in changed if not self._holds(p)]
        if other:
            shown = ", ".join(other[:3]) + (", ..." if len(other) > 3 else "")
            out = option("out", self.folder)
            raise UserError(
                f"{out}: holds {len(other)} runs of different settings under the same names "
                f"({shown}): the base config changed; choose another folder"
            )
        self._require_same_objects(points)
        plan = [
            {"name": p.name, "method": p.method, "settings": p.settings, "seed": p.seed} for p in points
        ]
        write_contended(self.notes / "plan.json", json.dumps(plan, indent=1).encode())

    def _require_same_objects(self, points: list[Point]) -> None:
        """Refuse runs that are there already if a Python object behind them is another one now."""
        for point in points:
            path = self.run_path(point.name)
            if uses_passed_objects(point.config) and path.exists():
                require_same_objects(read_attributes(path), path, "choose another folder")

    def _holds(self, point: Point) -> bool:
        """Whether a run file belongs to this experiment: digests differ between versions of fedmpi."""
        try:
            return not different_keys(stored_config(self.run_path(point.name)), point.config)
        except UserError:
            return False

    def plan(self) -> list[dict[str, Any]]:
        """The runs, as stored by `create`."""
        try:
            return json.loads((self.notes / "plan.json").read_text())
        except (OSError, ValueError):
            raise UserError(f"{self.folder}: not a sweep folder; see `fedmpi sweep --help`") from None

    def run_path(self, name: str) -> Path:
        """Where a run's results are."""
        return self.folder / f"{name}.h5"

    def outcome(self, name: str) -> Outcome | None:
        """How a run ended, None if it did not."""
        try:
            return Outcome(**json.loads((self.notes / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            return None  # damaged: the run file itself is read when the run continues

    def note(self, name: str, outcome: Outcome) -> None:
        """Record how a run ended, and update the index."""
        write_contended(self.notes / f"{name}.json", json.dumps(asdict(outcome)).encode())
        self.write_index()

    def is_final(self, point: Point, outcome: Outcome | None, since: float = math.inf) -> bool:
        """Whether nothing is left to do; a run that failed is tried again by a later job."""
        if outcome is None or not self.run_path(point.name).exists():
            return outcome is not None and outcome.status == FAILED and outcome.time >= since
        is_done = outcome.status == DONE and outcome.rounds >= point.config.run.num_rounds
        return is_done or outcome.status == DIVERGED or (outcome.status == FAILED and outcome.time >= since)

    def has_all_rounds(self, point: Point) -> bool:
        """Whether its file is complete, whoever wrote it."""
        path = self.run_path(point.name)
        found = peek(path) if path.exists() else None
        return found is not None and found["rounds"] >= point.config.run.num_rounds

    def status(self, name: str, outcome: Outcome | None) -> str:
        """One word for the index."""
        if outcome is not None and outcome.status in (DONE, DIVERGED):
            return outcome.status
        if is_held(self.notes, name):
            return RUNNING
        return outcome.status if outcome else (STOPPED if self.run_path(name).exists() else WAITING)

    def write_index(self) -> None:
        """DIR/index.csv: one row per run, whatever its state."""
        plan = self.plan()
        keys = list(dict.fromkeys(key for entry in plan for key in entry["settings"]))
        outcomes = [self.outcome(entry["name"]) for entry in plan]
        found = [name for outcome in outcomes if outcome for name in outcome.metrics or {}]
        names = list(dict.fromkeys(found)) or [column.name for column in stored_metrics({})]
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(
            ["index", "name", "method", *keys, "seed", "status", "rounds", "seconds", *names, "message"]
        )
        for index, (entry, outcome) in enumerate(zip(plan, outcomes, strict=True)):
            status = self.status(entry["name"], outcome)
            settings = [entry["settings"].get(key, "") for key in keys]
            ended = outcome or Outcome(status, "")
            metrics = [(ended.metrics or {}).get(name, "") for name in names]
            table.writerow(
                [index, entry["name"], entry["method"], *settings, entry["seed"], status, ended.rounds,
                 round(ended.seconds, 2), *metrics, ended.message]
            )  # fmt: skip
        write_contended(self.folder / "index.csv", text.getvalue().encode())


def outcome_of(path: Path, point: Point, status: str, message: str = "") -> Outcome:
    """From a run's file."""
    try:
        train, evaluations = load_table(path, "train"), load_table(path, "eval")
    except UserError as error:
        return Outcome(FAILED, point.digest, message=message or str(error), time=time.time())
    metrics = {}
    for name in (column for column in evaluations if column not in ("round", "wall_time_s")):
        finite = [float(v) for v in evaluations[name] if not math.isnan(v)]
        metrics |= {name: finite[-1]} if finite else {}
    seconds = float(train["wall_time_s"][-1]) if len(train["round"]) else 0.0
    return Outcome(status, point.digest, len(train["round"]), seconds, message, time.time(), metrics)


def listing(store: Store, points: list[Point]) -> str:
    """One line per run."""
    lines = []
    for point in points:
        outcome = store.outcome(point.name) if store.notes.is_dir() else None
        status = store.status(point.name, outcome) if store.notes.is_dir() else WAITING
        lines.append(f"{point.index:5d}  {status:8s}  {point.name}")
    return "\n".join(lines)


def folder_names(folder: Path) -> set[str]:
    """Names in a folder, none if it cannot be read now."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()
