"""The figures: what is compared, how often, and what comes out."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.experiments.bench.sides import (
    Fed,
    Job,
    Say,
    Times,
    kernel_seconds,
    outside_mpi,
    plain_loop,
    sgemm_rate,
    step_flop,
)
from fedmpi.mpi import Comm
from fedmpi.storage.reader import load_run

FASHION = Job("FMNIST-250", "cnn-fashion", 5, (1, 28, 28), 60_000, 10_000)
CIFAR = Job("CIFAR-250", "cnn-cifar", 5, (3, 32, 32), 10_000, 1_000)
LOGISTIC = Job("logistic-250", "logistic", 30, (1, 28, 28), 60_000, 10_000)

_ROUNDS = 200  # of the runs that show what N costs


def against_plain(comm: Comm, job: Job, rounds: int, repeats: int, say: Say) -> dict:
    """Collective. Rounds/s of fedmpi and of the plain loop, in turns; on rank 0."""
    fed = Fed(comm, job.config(), comm.size)
    alone = Fed(comm, job.config(), 1)
    sides = {name: Times() for name in ("plain", "fedmpi", "one rank")}
    outside = []
    with tempfile.TemporaryDirectory() as folder, plain_loop(comm, job, Path(folder)) as plain:
        for turn in range(repeats):
            say(f"{job.name}: turn {turn + 1} of {repeats}")
            _order(comm, plain, f"train {max(rounds // 3, 1)}", sides["plain"], max(rounds // 3, 1))
            trained = fed.train(rounds)
            sides["fedmpi"].seconds.append(trained.seconds / rounds)
            outside.append(tuple(comm.mean(share) for share in trained.shares))
            sides["one rank"].seconds.append(alone.train(max(rounds // 2, 1)).seconds / max(rounds // 2, 1))
    waiting, own = min(outside, key=sum)
    result = {
        "ranks": comm.size,
        "plain_rounds_per_s": 1 / sides["plain"].best if comm.is_root else 0.0,
        "plain_rounds_per_s_median": 1 / sides["plain"].median if comm.is_root else 0.0,
        "rounds_per_s": 1 / sides["fedmpi"].best,
        "rounds_per_s_median": 1 / sides["fedmpi"].median,
        "rounds_per_s_one_rank": 1 / sides["one rank"].best,
        "outside_local_sgd": waiting + own,
        "waiting": waiting,
        "own_overhead": own,
        "scaling": sides["one rank"].best / sides["fedmpi"].best,
    }
    if comm.is_root:
        result["ratio"] = sides["plain"].best / sides["fedmpi"].best
        result["ratio_median"] = sides["plain"].median / sides["fedmpi"].median
    return result


def evaluation(comm: Comm, job: Job, repeats: int, say: Say) -> dict:
    """Collective. Seconds for loss and accuracy of all samples, by fedmpi and the plain loop in turns."""
    fed, sides = Fed(comm, job.config(), comm.size), {"plain": Times(), "fedmpi": Times()}
    with tempfile.TemporaryDirectory() as folder, plain_loop(comm, job, Path(folder)) as plain:
        for turn in range(repeats):
            say(f"evaluation of {job.name}: turn {turn + 1} of {repeats}")
            _order(comm, plain, "evaluate", sides["plain"], 1)
            sides["fedmpi"].seconds.append(fed.evaluate())
    if not comm.is_root:
        return {}
    return {
        "ranks": comm.size,
        "samples": job.num_train + job.num_test,
        "seconds": sides["fedmpi"].best,
        "seconds_median": sides["fedmpi"].median,
        "plain_seconds": sides["plain"].best,
        "ratio": sides["plain"].best / sides["fedmpi"].best,
        "ratio_median": sides["plain"].median / sides["fedmpi"].median,
    }


def _order(comm: Comm, plain: object, order: str, times: Times, count: int) -> None:
    """Collective. Let the plain loop work while all ranks sleep."""
    if plain is not None:
        times.seconds.append(plain.ask(order) / count)
    comm.wait_asleep()


def roofline(comm: Comm, job: Job, repeats: int, say: Say) -> dict:
    """Collective. FLOP/s of a local step on one rank, as a share of a large matrix product's; on rank 0."""
    fed = Fed(comm, job.config(), 1)
    shares, rates, steps, kernels = [], [], [], []
    for turn in range(repeats):
        say(f"roofline of {job.model}: turn {turn + 1} of {repeats}")
        before = sgemm_rate() if comm.is_root else 1.0
        trained = fed.train(4)
        if fed.simulation:
            step = trained.local_sgd / (4 * 10 * job.local_steps)
            rate = max(before, sgemm_rate())
            rates.append(rate)
            steps.append(step)
            shares.append(step_flop(fed.simulation) / step / rate)
            kernels.append(kernel_seconds(fed.simulation) / step)
        comm.wait_asleep()
    if not fed.simulation:
        return {}
    return {
        "step_ms": 1e3 * min(steps),
        "step_mflop": step_flop(fed.simulation) / 1e6,
        "sgemm_gflop_per_s": max(rates) / 1e9,
        "share_of_sgemm": max(shares),
        "share_of_kernels": float(np.median(kernels)),
    }


def scale_in_clients(comm: Comm, counts: list[int], say: Say) -> list[dict]:
    """Collective. Start-up, cost of a round outside local SGD, memory and file size against N; on rank 0.

    Each N is a run of one rank in its own process: logistic regression, I = 30, 16 features,
    10 clients a round, one sample a client where N is large: only what surrounds local SGD matters here.
    """
    rows = []
    for count in counts:
        say(f"N = {count:,}")
        if comm.is_root:
            rows.append(_run_with(count))
        comm.wait_asleep()
    return rows


def _run_with(num_clients: int, rounds: int = _ROUNDS) -> dict[str, Any]:
    settings = {
        "data.num_clients": num_clients,
        "data.train_samples": max(num_clients, 20_000),
        "data.shape": [4, 4],
        "run.num_rounds": rounds,
        "run.eval_train_samples": 1000,
    }
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "n.toml", Path(folder) / "n.h5"
        path.write_text(LOGISTIC.config().to_toml())
        words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "fedmpi", "run", str(path), "--out", str(out), *words],
            env=outside_mpi(1), capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"the run with {num_clients:,} clients failed: {done.stderr}")
        in_all = time.perf_counter() - begin
        results = load_run(out)
        train, phases = results.train, json.loads(results.attributes["phases"])
        size = out.stat().st_size
    walls = np.diff(train.wall_time_s)
    outside = np.median(walls - train.compute_time_s[1:])
    return {
        "num_clients": num_clients,
        "start_s": in_all - float(train.wall_time_s.iloc[-1]),
        "outside_local_sgd_ms": 1e3 * float(outside),
        "memory_mb": phases[0]["memory_mb"],
        "file_bytes": size,
    }


def bytes_per_round(shorter: dict[str, Any], more: int = 800) -> float:
    """Bytes of a result file for each round of ten participants: what `more` rounds add to a run's file."""
    longer = _run_with(shorter["num_clients"], _ROUNDS + more)
    return (longer["file_bytes"] - shorter["file_bytes"]) / more
