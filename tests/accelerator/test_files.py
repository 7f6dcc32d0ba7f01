"""Whole runs on the device, with files: checkpoints, resume on another number of ranks, room."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.errors import UserError
from fedmpi.experiments.lifecycle import go_on, plan_resume, start
from fedmpi.mpi.device import settings_restored
from fedmpi.results.compare import first_difference
from fedmpi.storage.reader import load_run
from tests.accelerator import simulated_gpu
from tests.accelerator.cases import BASE, LOOP
from tests.accelerator.conftest import IS_REAL
from tests.accelerator.runs import plain_layouts

ROUNDS = 6
METHODS = ("fedavg", "scaffold", "amplified-scaffold", "mifa", "fedadam")


def config_of(method: str, device: str, *overrides: str):
    """A run with tables, amplification and evaluations."""
    return validate.parse(
        BASE, "base.toml",
        [f'algorithm.name="{method}"', f'run.device="{device}"', f"run.num_rounds={ROUNDS}",
         "algorithm.amplify_every=3", "algorithm.amplification=1.5", LOOP, *overrides],
    )  # fmt: skip


def run_to(comm, config, path: Path) -> None:
    """From its start, or from its checkpoint."""
    with settings_restored():
        if comm.on_root(path.exists):
            plan = comm.on_root(lambda: plan_resume(path, [f"run.num_rounds={ROUNDS}"]))
            prepared = go_on(comm, plan, path)
        else:
            prepared = start(comm, config, path)
        prepared.simulation.run(prepared.file)


@pytest.fixture
def folder(comm):
    """The same on all ranks."""
    with tempfile.TemporaryDirectory() as own:
        yield Path(comm.on_root(lambda: own))
        comm.barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_with_another_number_of_ranks(comm, device, folder, method):
    """From all ranks to one and back; the file has the bits of a run on the CPU in one go."""
    short = config_of(method, "cuda", "run.num_rounds=2")
    some = comm.first(1)
    run_to(comm, short, folder / "a.h5")
    if some:
        run_to(some, short, folder / "a.h5")
        run_to(some, short, folder / "b.h5")
    comm.barrier()
    run_to(comm, short, folder / "b.h5")
    with plain_layouts():
        run_to(comm, config_of(method, "cpu"), folder / "cpu.h5")
    if comm.is_root:
        expected = load_run(folder / "cpu.h5")
        for name in ("a.h5", "b.h5"):
            found = load_run(folder / name)
            if IS_REAL:  # other rounding
                np.testing.assert_allclose(
                    found.global_params, expected.global_params, rtol=1e-3, atol=1e-4
                )
                continue
            assert np.array_equal(found.global_params, expected.global_params)
            assert found.train["participants"].tolist() == expected.train["participants"].tolist()
            np.testing.assert_allclose(found.eval["train_loss"], expected.eval["train_loss"], rtol=1e-6)
        assert first_difference(load_run(folder / "a.h5"), load_run(folder / "b.h5")) is None
    if some:
        some.free()


def test_time_on_the_device_is_local_training(comm, simulated, folder):
    """The clock stops after the device did; and the file says what was recorded."""
    run_to(comm, config_of("fedavg", "cuda"), folder / "a.h5")
    run = load_run(folder / "a.h5")
    assert run.attributes["recorded"].startswith("yes")
    assert run.train["compute_time_s"].min() > 0


def test_a_file_costs_one_more_wait_a_round(comm, simulated, folder):
    """For the norm of what the round added; x itself is copied only when it is written."""
    config = config_of("fedavg", "cuda", "run.num_rounds=20", "run.eval_every=20")
    with settings_restored():
        prepared = start(comm, config, folder / "a.h5")
        simulation = prepared.simulation
        simulation.run(prepared.file)
        simulated_gpu.reset()
        for t in range(20, 30):
            simulation.run_round(t, prepared.file)
            simulation.completed = t + 1
            prepared.file.after_round(simulation, checkpoint=False)
    assert simulated_gpu.counts["waits"] <= 10 * 2 + 2  # a flush may be due
    assert simulated_gpu.counts["bytes_to_host"] <= 10 * (10 * 8 + 8) + 2 * 370 * 8


def test_a_gpu_that_is_too_small_is_refused_with_the_arithmetic(comm, simulated, folder):
    """Before the first round: data and evaluation sets; vectors (tables: tests/unit/test_memory.py)."""
    simulated_gpu.set_limit(simulated_gpu.live_bytes() + 50_000)
    with pytest.raises(UserError, match=r"GPU.*train on \+ 660 for evaluation.*MB are available"):
        run_to(comm, config_of("fedavg", "cuda"), folder / "a.h5")
    simulated_gpu.set_limit(simulated_gpu.live_bytes() + 75_000)
    with pytest.raises(UserError, match=r"370 parameters x \(7 x 8 bytes for x, u, .* are available"):
        run_to(comm, config_of("fedavg", "cuda"), folder / "a.h5")
