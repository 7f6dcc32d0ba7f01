"""Many result files as one table. Neither torch nor MPI; works during runs.

Invariant: one broken file never hides the others; it is named with the reason.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.clocks import CLOCKS
from fedmpi.storage.columns import OPTIONAL_TABLES, PARTS, TABLES, metrics_text, stored_metrics
from fedmpi.storage.reader import Run, load_run, read_config, read_run, read_table

if TYPE_CHECKING:
    import pandas

_LOADED = TABLES | {"clients_eval": OPTIONAL_TABLES["clients_eval"]}
_HEAD = ("file", "name", "seed", "status")
Paths = str | os.PathLike | Iterable[str | os.PathLike]


def read_runs(paths: Paths, table: str = "eval") -> pandas.DataFrame:
    """What `fedmpi.load_runs` gives (results/many_runs.py), as a plain table."""
    import pandas

    if table not in _LOADED:
        raise UserError(f"table {table!r}: unknown; accepted: {', '.join(_LOADED)}")
    rows, heads, skipped = [], [], []
    for path in find_runs(paths):
        try:
            columns, head = _read_one(path, table)
        except UserError as error:
            skipped.append(str(error))
            continue
        rows.append(columns)
        heads.append(head)
    if not heads:
        raise UserError("no run could be read:\n  " + "\n  ".join(skipped))
    if skipped:
        warnings.warn(_skipped_text(skipped), stacklevel=3)
    metrics = [json.loads(head.pop("metrics")) for head in heads]
    columns = list(dict.fromkeys(name for part in rows for name in part))  # tasks have metrics of their own
    counts = np.array([len(part[columns[0]]) for part in rows])
    result = {name: _repeat([head[name] for head in heads], counts) for name in _HEAD}
    for name in columns:
        parts = [part.get(name, np.full(count, np.nan)) for part, count in zip(rows, counts, strict=True)]
        result[name] = np.concatenate(parts)
    keys = [key for key in dict.fromkeys(key for head in heads for key in head) if key not in _HEAD]
    result |= {key: _repeat([head.get(key) for head in heads], counts) for key in keys}
    if "part" in result:
        result["part"] = pandas.Categorical.from_codes(result["part"], categories=PARTS)
    made = pandas.DataFrame(result, copy=False)
    made.attrs["skipped"] = skipped
    made.attrs["metrics"] = list({metric["name"]: metric for own in metrics for metric in own}.values())
    return made


def load_each(paths: Paths) -> tuple[list[Run], list[str]]:
    """All runs that can be read, and a sentence for each file that cannot; none at all is a UserError."""
    runs, skipped = [], []
    for path in find_runs(paths):
        try:
            runs.append(load_run(path))
        except UserError as error:
            skipped.append(str(error))
    if not runs:
        raise UserError("no run could be read:\n  " + "\n  ".join(skipped))
    return runs, skipped


def find_runs(paths: Paths) -> list[Path]:
    """The files that are named, and all `.h5` files in and below the folders that are named."""
    names = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.h5") if not p.name.startswith("."))
            if not inside:
                raise UserError(f"folder {path}: holds no .h5 file")
            files.extend(inside)
        else:
            files.append(path)
    if not files:
        raise UserError("no run file given")
    return list(dict.fromkeys(files))


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """Config values by `section.key`.

    >>> flat_config({"run": {"seed": 1}, "algorithm": {"local_lr": 0.1}})
    {'run.seed': 1, 'algorithm.local_lr': 0.1}
    """
    return {f"{section}.{key}": value for section, keys in config.items() for key, value in keys.items()}


def _read_one(path: Path, table: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The columns of one table, and what is the same for all rows."""

    def read(file: h5py.File) -> tuple[dict[str, np.ndarray], dict[str, Any], str, dict[str, Any]]:
        config = read_config(file.attrs["config"])
        head = {"file": str(path), "name": config["run"]["name"], "seed": config["run"]["seed"]}
        head["metrics"] = metrics_text(stored_metrics(file.attrs))
        if table in OPTIONAL_TABLES and table not in file:
            raise UserError(f"run file {path}: has no /{table}; run.eval_clients_every was 0")
        columns, status = read_table(file, table), str(file.attrs["status"])
        if len({len(column) for column in columns.values()}) > 1:
            raise UserError(f"run file {path}: damaged, the columns of /{table} differ in length")
        if table == "eval":
            columns |= _costs(path, file, config, columns)
        return columns, config, status, head

    columns, config, status, head = read_run(path, read)
    return columns, {**head, "status": status, **flat_config(config)}


def _costs(
    path: Path, file: h5py.File, config: dict[str, Any], evaluations: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What the run had cost at each evaluation; nan where the file does not tell."""
    from pandas import DataFrame

    # Who took part is much to read, and counts only where clients take numbers of steps of their own.
    needed = ["train", "clients", *["participation"] * isinstance(config["algorithm"]["local_steps"], list)]
    tables = {"participation": None} | {name: DataFrame(read_table(file, name)) for name in needed}
    run = Run(
        path=path, status="", config=config, attributes=dict(file.attrs), eval=DataFrame(evaluations),
        energy=DataFrame(read_table(file, "energy")) if "energy" in file else None,
        global_params=None, params=None, **tables,
    )  # fmt: skip
    rounds = evaluations["round"]
    shown = {clock.column: clock.after(run, rounds) for clock in CLOCKS.values() if clock.is_beside}
    return {name: np.full(len(rounds), np.nan) if v is None else v for name, v in shown.items()}


def _repeat(values: Sequence[Any], counts: np.ndarray) -> Any:
    """Each value repeated for every row of its run: numbers as numbers, anything else as categories."""
    import pandas

    kinds = {type(value) for value in values}
    if kinds == {bool} or kinds == {int}:
        return np.repeat(np.array(values), counts)
    if kinds <= {int, float, type(None)} and kinds != {type(None)}:
        return np.repeat(np.array([np.nan if v is None else v for v in values], float), counts)
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    categories = list(dict.fromkeys(text for text in texts if text is not None))
    codes = np.array([-1 if text is None else categories.index(text) for text in texts])
    return pandas.Categorical.from_codes(np.repeat(codes, counts), categories=categories)


def _skipped_text(skipped: Sequence[str]) -> str:
    return f"{len(skipped)} file(s) left out:\n  " + "\n  ".join(skipped)
