"""Where a round is ceremony rather than arithmetic: its fixed cost, and what runs in lockstep save."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from fedmpi.config import validate
from fedmpi.experiments.bench.sides import Say, Times
from fedmpi.experiments.lifecycle import start
from fedmpi.experiments.python_input import points_of
from fedmpi.experiments.sweep.job import do_sweep, groups
from fedmpi.mpi import Comm
from fedmpi.simulation.stopping import StopRequest

# The paper's appendix: three clients take turns, F_n(x) = |x - z_n|^2 / 2.
CENTERS = ((-1.0, 0.0), (1.0, 0.0), (0.0, 3**0.5))
INITIAL = (1.0, 2.0)
LOCAL_LR, AMPLIFICATION, AMPLIFY_EVERY = 0.05, 10.0, 3

_APPENDIX = f"""
[run]
num_rounds = 1_000
eval_every = 0
dtype = "float64"
device = "cpu"
[data]
dataset = "quadratic"
centers = {[list(center) for center in CENTERS]}
[model]
name = "quadratic"
initial = {list(INITIAL)}
[participation]
availability = "periodic"
num_groups = 3
rounds_per_group = 1
[algorithm]
local_lr = {LOCAL_LR}
local_steps = 1
amplification = {AMPLIFICATION}
amplify_every = {AMPLIFY_EVERY}
"""

# The job of jobs/quickstart.sh: real images that come with fedmpi.
QUICKSTART = {
    "run": {"num_rounds": 1_000, "eval_every": 7, "device": "cpu"},
    "data": {
        "dataset": "fashion-mini", "num_clients": 50, "partition": "majority-label", "similarity": 0.05,
    },
    "model": {"name": "logistic"},
    "participation": {
        "availability": "periodic", "num_groups": 5, "rounds_per_group": 2, "random_offset": True,
        "selection": "permutation", "clients_per_round": 5,
    },
    "algorithm": {
        "local_lr": 3e-4, "local_steps": 5, "batch_size": 16, "amplification": 3.0, "amplify_every": 10,
    },
}  # fmt: skip


def fixed_cost(comm: Comm, rounds: int, repeats: int, say: Say) -> dict:
    """Collective. Runs of the appendix example on one rank, each with its file, against numpy by hand."""
    alone, fed, by_hand = comm.first(1), Times(), Times()
    for turn in range(repeats):
        say(f"fixed cost: turn {turn + 1} of {repeats}")
        if alone:
            with tempfile.TemporaryDirectory() as folder:
                config = validate.parse(_APPENDIX, "bench", [f"run.num_rounds={rounds}"])
                prepared = start(alone, config, Path(folder) / "run.h5")
                begin = time.perf_counter()
                prepared.simulation.run(prepared.file)
                fed.seconds.append((time.perf_counter() - begin) / rounds)
            begin = time.perf_counter()
            expected = appendix_by_hand(rounds)
            by_hand.seconds.append((time.perf_counter() - begin) / rounds)
            if not np.allclose(prepared.simulation.global_params, expected):
                raise RuntimeError("fedmpi and the appendix example by hand have other results")
        comm.wait_asleep()
    if not alone:
        return {}
    return {
        "rounds_per_s": 1 / fed.best,
        "rounds_per_s_median": 1 / fed.median,
        "by_hand_rounds_per_s": 1 / by_hand.best,
        "times_by_hand": fed.best / by_hand.best,
    }


def appendix_by_hand(rounds: int) -> np.ndarray:
    """Algorithm 1 on the appendix example, and nothing else."""
    centers, x = np.array(CENTERS), np.array(INITIAL)
    u, anchor = np.zeros(2), 0
    for t in range(rounds):
        update = -LOCAL_LR * (x - centers[t % 3])
        x = x + update
        u = u + update
        if t + 1 - anchor == AMPLIFY_EVERY:
            x = x + (AMPLIFICATION - 1) * u
            u, anchor = np.zeros(2), t + 1
    return x


def packed_seeds(comm: Comm, num_seeds: int, rounds: int, repeats: int, say: Say) -> dict:
    """Collective. Seeds of the quickstart job as a sweep, a rank a group: in lockstep, and one by one."""
    sides = {"auto": Times(), 1: Times()}
    base = QUICKSTART | {"run": QUICKSTART["run"] | {"num_rounds": rounds}}
    points = points_of({"base": base, "seeds": list(range(1, num_seeds + 1))}, {})
    for turn in range(repeats):
        say(f"{num_seeds} seeds: turn {turn + 1} of {repeats}")
        for pack, times in sides.items():
            with tempfile.TemporaryDirectory() as own, groups(comm, 1) as group:
                folder = comm.on_root(lambda own=own: own)
                begin = time.perf_counter()
                outcome = do_sweep(comm, group, points, points, folder, StopRequest(), pack=pack)
                times.seconds.append(time.perf_counter() - begin)
                comm.wait_asleep()
            if outcome.failures or outcome.left:
                raise RuntimeError(f"the runs of the sweep failed: {outcome.failures}")
    run_rounds = num_seeds * rounds
    return {
        "ranks": comm.size,
        "seeds": num_seeds,
        "run_rounds_per_s": run_rounds / sides["auto"].best,
        "run_rounds_per_s_median": run_rounds / sides["auto"].median,
        "one_by_one_run_rounds_per_s": run_rounds / sides[1].best,
        "ratio": sides[1].best / sides["auto"].best,
        "ratio_median": sides[1].median / sides["auto"].median,
    }
