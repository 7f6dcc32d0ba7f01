"""Shortened runs of the published protocols, and the band in which each of them ends.

A protocol keeps its partition, participation and method; images, model, rounds and rates are small. The
bands in tests/data/bands.toml are means and standard deviations over seeds: a change of bits stays inside,
a change of what a protocol is about does not. `python -m tests.support.bands` measures them anew, for a
change that is meant.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import torch

from fedmpi.config import Config, validate
from fedmpi.config.toml import toml_value
from fedmpi.experiments.reproduce import path_of
from fedmpi.experiments.sweep.points import Point, load_sweep
from fedmpi.participation.cycle import stored_cycle
from fedmpi.results.groups import without_seed
from fedmpi.results.settled import settled
from fedmpi.storage.reader import Run
from tests.support.configs import ROOT
from tests.support.simulations import run_to_file

FILE = ROOT / "tests" / "data" / "bands.toml"
SEEDS = range(1, 6)
WIDTH = 3.0  # standard deviations on either side
_LEAST = 0.005  # of the mean, for what hardly differs between seeds

_UNKNOWN = {
    "data.dataset": "fashion-mini", "model.name": "logistic", "data.augment": False,
    "data.num_clients": 100, "run.num_rounds": 100, "run.eval_every": 2, "run.checkpoint_every": 0,
}  # fmt: skip
_PAPER = {"model.name": "logistic", "run.num_rounds": 400, "run.eval_every": 40, "warmup.num_rounds": 100}


@functools.cache
def cases() -> dict[str, Config]:
    """By name, with seed 1."""
    found = {}
    for recipe in ("fedau-table", "unknown-participation"):
        for point in _first_seed(recipe, quick=False):
            cycle = {"participation.cycle_rounds": 50} if point.method.startswith("cyclic") else {}
            found[f"{recipe}/{point.method}"] = changed(point.config, _UNKNOWN | cycle, 0.1)
    for point in _first_seed("appendix", quick=False):
        found[f"appendix/{point.method}"] = point.config
    for recipe, settings, slower in (
        ("methods", _PAPER, 0.3),
        ("regularized", _PAPER | {"run.eval_every": 4}, 1.0),
        ("periodic", {}, 1.0),
    ):
        for point in _first_seed(recipe, quick=True):
            found[f"{recipe}/{without_seed(point.name)}"] = changed(point.config, settings, slower)
    return found


def _first_seed(recipe: str, *, quick: bool) -> list[Point]:
    points = load_sweep(path_of(recipe), quick=quick)
    return [point for point in points if point.seed == points[0].seed]


def changed(config: Config, settings: dict[str, object], slower: float = 1.0) -> Config:
    """A config with other settings, and a rate for logistic regression: `slower` than that of a CNN."""
    settings = settings | {"algorithm.local_lr": slower * config.algorithm.local_lr}
    overrides = [f"{key}={toml_value(value)}" for key, value in settings.items()]
    return validate.parse(config.to_toml(), "band.toml", overrides)


def end_of(run: Run) -> float:
    """Training loss, a mean over the last whole cycles; of trajectories, where they end."""
    if run.config["model"]["name"] == "quadratic":
        return float(run.eval.train_loss.iloc[-1])
    rounds, losses = run.eval["round"].to_numpy(), run.eval.train_loss.to_numpy()
    return settled(rounds, losses, stored_cycle(run.config))


def measured(config: Config, seed: int) -> float:
    """What a run with this seed comes to."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return end_of(run_to_file(changed(config, {"run.seed": seed}), Path(folder) / "r.h5"))


def bands() -> dict[str, tuple[float, float]]:
    """Lowest and highest accepted end of each case."""
    result = {}
    for name, (mean, deviation) in tomllib.loads(FILE.read_text())["train_loss"].items():
        half = max(WIDTH * deviation, _LEAST * abs(mean))
        result[name] = mean - half, mean + half
    return result


def main(wanted: str = "") -> None:
    """Measure the cases whose names contain `wanted`."""
    known = tomllib.loads(FILE.read_text())["train_loss"] if FILE.exists() else {}
    made = {}
    for name, config in cases().items():
        if wanted in name or name not in known:
            ends = [measured(config, seed) for seed in SEEDS]
            known[name] = statistics.fmean(ends), statistics.stdev(ends)
            print(f"{name:50} {known[name][0]:.4f} ± {known[name][1]:.4f}", flush=True)
        made[name] = known[name]
    lines = [
        "# Mean and standard deviation over five seeds of where shortened runs of each protocol end:",
        "# written by `python -m tests.support.bands`, see there.",
        "[train_loss]",
        *(f'"{name}" = [{np.round(m, 5)}, {np.round(s, 5)}]' for name, (m, s) in made.items()),
    ]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
