"""Both sides of a comparison, in turns: the plain loop in a separate process, fedmpi on all ranks.

Invariant: while one side is measured the other sleeps.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedmpi.config import Config, validate
from fedmpi.experiments.lifecycle import prepare
from fedmpi.mpi import Comm
from fedmpi.simulation.loop import Simulation
from fedmpi.storage.columns import IDLE, LOCAL_SGD

Say = Callable[[str], None]  # shows what is being measured


@dataclass(frozen=True)
class Job:
    """A training job that both sides can do."""

    name: str
    model: str
    local_steps: int
    shape: tuple[int, int, int]
    num_train: int
    num_test: int

    def config(self, num_clients: int = 250) -> Config:
        """fedmpi's config of the job. The values of pixels do not matter for speed: they are synthetic.

        On the CPU, also where there is a GPU, as the plain loop is.
        """
        channels, height, width = self.shape
        text = f"""
            [run]
            num_rounds = 1_000_000
            eval_every = 0
            device = "cpu"
            [data]
            dataset = "synthetic"
            shape = [{channels}, {height}, {width}]
            train_samples = {self.num_train}
            test_samples = {self.num_test}
            num_clients = {num_clients}
            partition = "iid"
            [model]
            name = "{self.model}"
            [participation]
            selection = "uniform"
            clients_per_round = 10
            [algorithm]
            local_lr = 1e-3
            local_steps = {self.local_steps}
            batch_size = 16
        """
        return validate.parse(text, f"bench {self.name}")


@dataclass
class Times:
    """Measurements of one quantity, in seconds."""

    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The least disturbed one."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The usual one."""
        return float(np.median(self.seconds))


@dataclass(frozen=True)
class Trained:
    """Seconds of some rounds on one rank: total, in local SGD, and waiting for the slowest rank."""

    seconds: float
    local_sgd: float
    waiting: float

    @property
    def shares(self) -> tuple[float, float]:
        """Of a round: waiting for other ranks' local SGD; and what fedmpi needs besides local SGD."""
        own = self.seconds - self.local_sgd - self.waiting
        return self.waiting / self.seconds, own / self.seconds


class Fed:
    """fedmpi's side on the first ranks of a job; on the others it only waits."""

    def __init__(self, comm: Comm, config: Config, ranks: int) -> None:
        """Collective over `comm`."""
        self._world = comm
        some = comm.first(ranks)
        self.simulation: Simulation | None = prepare(some, config)[0] if some else None
        self._round = 0
        if self.simulation:
            self.simulation.run_round(0)  # the first one allocates
            self._round = 1
        comm.wait_asleep()

    def train(self, rounds: int) -> Trained:
        """Collective. Some rounds, and where this rank's time went."""
        begin, sgd, waiting = time.perf_counter(), 0.0, 0.0
        if self.simulation:
            clock = self.simulation.clock.seconds
            sgd, waiting = -clock[LOCAL_SGD], -clock[IDLE]
            for _ in range(rounds):
                self.simulation.run_round(self._round)
                self._round += 1
            sgd, waiting = sgd + clock[LOCAL_SGD], waiting + clock[IDLE]
        seconds = time.perf_counter() - begin
        self._world.wait_asleep()
        return Trained(seconds, sgd, waiting)

    def evaluate(self) -> float:
        """Collective. Seconds for one evaluation of both sets, as in a run: memory is kept between them."""
        from fedmpi.simulation.evaluate import Look, look_all

        begin = time.perf_counter()
        if (sim := self.simulation) is not None:
            x, observer = sim.global_params.copy(), sim.observer  # a new vector: looked at anew
            look_all(sim.comm, [Look(x, [observer.on_train, observer.on_test])])
        seconds = time.perf_counter() - begin
        self._world.wait_asleep()
        return seconds


class Plain:
    """The plain loop's side: a process that rank 0 sends commands to."""

    def __init__(self, job: Job, threads: int, folder: Path) -> None:
        numbers = np.random.default_rng(1)
        count = job.num_train + job.num_test
        images = numbers.integers(0, 256, (count, *job.shape), np.uint8)
        np.savez(folder / "data.npz", images=images, labels=numbers.integers(0, 10, count))
        description = {"data": str(folder / "data.npz"), "model": job.model, "threads": threads,
                       "local_steps": job.local_steps, "local_lr": 1e-3}  # fmt: skip
        (folder / "job.json").write_text(json.dumps(description))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedmpi.experiments.bench.plain", str(folder / "job.json")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=outside_mpi(threads),
            preexec_fn=_on_all_cores,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the plain loop ended; see its message above")
        return line

    def ask(self, order: str) -> float:
        """Seconds for a command."""
        print(order, file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def outside_mpi(threads: int) -> dict[str, str]:
    """The environment for a program that is not a rank of this job."""
    inside = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "MPIR_", "OMP_", "SLURM_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(inside)}
    allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return kept | {k: os.environ[k] for k in allowed if k in os.environ} | {"OMP_NUM_THREADS": str(threads)}


def _on_all_cores() -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # not on the core that rank 0 is bound to


@contextlib.contextmanager
def plain_loop(comm: Comm, job: Job, folder: Path) -> Iterator[Plain | None]:
    """Collective. The plain loop on rank 0, with as many threads as there are ranks; None elsewhere."""
    plain = Plain(job, comm.size, folder) if comm.is_root else None
    comm.wait_asleep()
    try:
        yield plain
    finally:
        if plain:
            plain.close()


def sgemm_rate() -> float:
    """FLOP/s of a large matrix product on this core."""
    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / min(_timed(8, lambda: a @ b))


class _Kernels(TorchDispatchMode):
    """Notes the convolutions and matrix products of what runs inside it."""

    names = ("convolution", "convolution_backward", "mm", "addmm", "bmm")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(
        self, function: Any, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        if function.overloadpacket.__name__ in self.names:
            self.calls.append(functools.partial(function, *args, **kwargs))
        return function(*args, **kwargs)


def kernel_seconds(simulation: Simulation) -> float:
    """The convolutions and matrix products of one local step, each repeated alone: the lower limit."""
    model, (images, labels) = simulation.model, _minibatch(simulation)
    with _Kernels() as kernels:
        model.gradient(torch.nn.functional.cross_entropy(model.forward(images), labels))
    with torch.no_grad():
        return sum(float(np.mean(_timed(30, call))) for call in kernels.calls)


def _minibatch(simulation: Simulation) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a local step, where the model is."""
    device = simulation.model.values.device
    images = torch.randn(16, *simulation.data.shape, device=device)
    return images, torch.zeros(16, dtype=torch.int64, device=device)


def _timed(count: int, call: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def step_flop(simulation: Simulation) -> int:
    """FLOP of one local step, counted by torch on the operations that are run."""
    from torch.utils.flop_counter import FlopCounterMode

    model, (images, labels) = simulation.model, _minibatch(simulation)
    with FlopCounterMode(display=False) as counter:
        loss = torch.nn.functional.cross_entropy(model.module(images), labels)
        torch.autograd.grad(loss, model.parameters)
    return counter.get_total_flops()
