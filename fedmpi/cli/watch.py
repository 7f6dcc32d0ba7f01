"""`fedmpi watch`: a live view of runs in a terminal. Reads files only: no torch, no MPI, also over ssh."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.results.colour import with_colour
from fedmpi.results.text import bar, duration
from fedmpi.storage.columns import RUNNING, headline, short_name, stored_metrics
from fedmpi.storage.reader import read_run, read_table
from fedmpi.storage.runs import find_runs
from fedmpi.storage.sketch import sparkline

_RATE_ROUNDS = 200  # the rate is taken over the last rounds
_SILENT_SECONDS = 120.0  # without a write for this long, a run may be dead


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a frame shows of one run."""

    path: Path
    name: str
    status: str
    completed: int
    total: int
    rate: float  # rounds a second, recently
    elapsed: float
    metrics: dict[str, np.ndarray]  # finite values of each
    higher: set[str]  # of which higher values are better
    silent: float  # seconds since the file was written

    @property
    def left(self) -> float:
        """Remaining seconds at the present rate."""
        return (self.total - self.completed) / self.rate if self.rate > 0 else math.inf


def watch(path: str, *, once: bool, every: float) -> int:
    """Show a run, or all runs of a folder, until they are done; `once` prints one frame."""
    is_folder = Path(path).is_dir()
    is_terminal = sys.stdout.isatty() and not once
    known: dict[Path, tuple[float, Seen | str]] = {}
    try:
        while True:
            runs = _look(find_runs(path), known)
            if not is_folder and isinstance(runs[0], str):
                raise UserError(runs[0])
            size = shutil.get_terminal_size((100, 40))
            lines = _folder_frame(runs, size) if is_folder else _run_frame(runs[0], size.columns)
            # Names come from files: they must not contain terminal control codes.
            lines = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
            lines = [with_colour(line, is_terminal=is_terminal) for line in lines]
            # Home, each line cleared to its end, the rest of the screen cleared: no flicker.
            text = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
            print(text if is_terminal else "\n".join(lines), end="" if is_terminal else "\n", flush=True)
            going = any(isinstance(run, Seen) and run.status == RUNNING for run in runs)
            if once or (not is_folder and not going):
                return 0
            time.sleep(every)
    except KeyboardInterrupt:
        return 0


def _look(paths: Sequence[Path], known: dict[Path, tuple[float, Seen | str]]) -> list[Seen | str]:
    """All runs, unchanged ones from memory; for a file that cannot be read, a sentence."""
    result: list[Seen | str] = []
    for path in paths:
        try:
            changed = path.stat().st_mtime
        except OSError:
            result.append(f"run file {path}: no such file")
            continue
        cached = known.get(path)
        is_old = cached is None or cached[0] != changed
        if is_old or (isinstance(cached[1], Seen) and cached[1].status == RUNNING):
            try:
                known[path] = changed, see(path)
            except UserError as error:
                known[path] = changed, str(error)
        result.append(known[path][1])
    return result


def see(path: Path) -> Seen:
    """Read what a frame needs; a file that is not a run is a UserError."""

    def read(file: h5py.File) -> tuple:
        run = tomllib.loads(file.attrs["config"])["run"]
        tables = read_table(file, "train"), read_table(file, "eval")
        return *tables, run, str(file.attrs["status"]), stored_metrics(file.attrs)

    train, evaluations, run, status, metrics = read_run(path, read)
    wall = train["wall_time_s"]
    recent = wall[-_RATE_ROUNDS - 1 :]
    passed = recent[-1] - recent[0] if len(recent) > 1 else 0.0
    pairs = itertools.zip_longest(metrics[: len(metrics) // 2], metrics[len(metrics) // 2 :])
    in_pairs = list(itertools.chain(*pairs))  # training and test set beside each other
    return Seen(
        path=path, name=run["name"], status=status, completed=len(wall), total=run["num_rounds"],
        rate=(len(recent) - 1) / passed if passed > 0 else 0.0,
        elapsed=float(wall[-1]) if len(wall) else 0.0,
        metrics={m.name: evaluations[m.name][np.isfinite(evaluations[m.name])] for m in in_pairs},
        higher={m.name for m in metrics if m.better == "higher"},
        silent=time.time() - path.stat().st_mtime,
    )  # fmt: skip


def _pace(run: Seen) -> str:
    """Rate and time left of a run that is running; its total time otherwise."""
    if run.status != RUNNING:
        return f"{run.status}, {duration(run.elapsed)}"
    text = f"{run.rate:.1f}/s  left {duration(run.left)}"
    return text + (f"  silent for {duration(run.silent)}" if run.silent > _SILENT_SECONDS else "")


def _run_frame(run: Seen, columns: int) -> list[str]:
    share = run.completed / run.total
    lines = [
        f"{run.name}  ({run.path})",
        f"{share:4.0%} {bar(share)} {run.completed:,}/{run.total:,} rounds  {_pace(run)}",
    ]
    width = max(14, *map(len, run.metrics))
    for name, values in run.metrics.items():
        if len(values):
            curve = sparkline(values, max(10, min(60, columns - 45)))
            best = values.max() if name in run.higher else values.min()
            lines.append(
                f"  {name.replace('_', ' '):<{width}} {values[-1]:>9.4f}  best {best:>9.4f}  {curve}"
            )
    if len(lines) == 2:
        lines.append("  no evaluation yet")
    return [line[: columns - 1] for line in lines]


def _folder_frame(entries: Sequence[Seen | str], size: object) -> list[str]:
    """One line for each run, running ones first, as many as fit on the screen."""
    runs = [run for run in entries if isinstance(run, Seen)]
    states: dict[str, int] = {}
    for run in runs:
        states[run.status] = states.get(run.status, 0) + 1
    unreadable = len(entries) - len(runs)
    done, total = sum(run.completed for run in runs), sum(run.total for run in runs)
    text = ", ".join(f"{count} {state}" for state, count in states.items())
    share = done / total if total else 0.0
    lines = [
        f"{len(runs)} runs: {text}" + (f"; {unreadable} unreadable" if unreadable else ""),
        f"{share:4.0%} {bar(share)} {done:,}/{total:,} rounds of all",
    ]
    runs.sort(key=lambda run: run.status != RUNNING)
    room = max(size.lines - 5, 5)
    width = max((len(run.path.stem) for run in runs), default=0)
    width = min(width, 32)
    for run in runs[:room]:
        lines.append(
            f"{run.path.stem[:width]:<{width}} {run.completed / run.total:4.0%} {_last(run)}  {_pace(run)}"
        )
    if len(runs) > room:
        lines.append(f"and {len(runs) - room} more")
    lines += [text for text in entries if isinstance(text, str)][:3]
    return [line[: size.columns - 1] for line in lines]


def _last(run: Seen) -> str:
    name = headline(run.metrics)
    loss, other = run.metrics["train_loss"], run.metrics[name]
    texts = [sparkline(loss, 12).ljust(12)]
    texts.append(f"loss {loss[-1]:.4f}" if len(loss) else "loss -     ")
    texts.append(f"{short_name(name)} {other[-1]:.3f}" if len(other) else f"{short_name(name)} -    ")
    return "  ".join(texts)
