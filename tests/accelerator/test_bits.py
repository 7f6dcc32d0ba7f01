"""Every branch of the path on a GPU computes what the CPU computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.mpi.cuda_aware import cuda_aware_mpi
from fedmpi.simulation.evaluate import Look, look_all
from tests.accelerator.cases import CASES
from tests.accelerator.conftest import IS_REAL
from tests.accelerator.runs import as_in_a_run, plain_layouts, simulate

CPU = torch.device("cpu")


@pytest.mark.mpi
@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES)
def test_a_run_has_the_bits_of_the_cpu(comm, device, overrides):
    """x after every round; an evaluation, with larger blocks on a GPU, and a real GPU's x closely."""
    if IS_REAL and comm.size > 1 and "run.cuda_aware=true" in overrides and not cuda_aware_mpi():
        pytest.skip("this MPI does not take GPU buffers")
    there = simulate(comm, device, overrides)
    engine = f'algorithm.engine="{there.simulation.engine.name}"'
    draws_there = IS_REAL and any("dropout" in setting for setting in overrides)  # other numbers than a CPU
    with plain_layouts():
        here = simulate(comm, device if draws_there else CPU, (*overrides, engine, "run.cuda_aware=false"))
    for t, (x, y) in enumerate(zip(there.trajectory, here.trajectory, strict=True)):
        if IS_REAL:
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4, err_msg=f"after round {t}")
        else:
            assert np.array_equal(x, y), f"after round {t}"
    assert there.evaluated == pytest.approx(here.evaluated, rel=1e-3 if IS_REAL else 1e-6, nan_ok=True)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["logistic", "loop"])
def test_each_client_is_evaluated_as_on_the_cpu(comm, device, name):
    """Loss and accuracy of each client, on a GPU from larger blocks."""
    found = []
    for where in (device, CPU):
        simulation = simulate(comm, where, (*CASES[name], "run.eval_clients_every=1"), rounds=2).simulation
        evaluator = simulation.observer.on_train
        look = Look(simulation.state.global_params, [evaluator], by_client=True)
        with as_in_a_run(where):
            look_all(comm, [look])
        found.append(evaluator.found_by_client)
    assert found[0].clients.tolist() == found[1].clients.tolist() != []
    for there, here in zip(found[0].metrics, found[1].metrics, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-3)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["logistic", "loop", "scaffold", "the paper's CNN"])
def test_the_same_run_again_has_the_same_bits(comm, device, name):
    """Deterministic kernels, and recordings that leave no trace."""
    first, second = (simulate(comm, device, CASES[name]) for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(first.trajectory, second.trajectory, strict=True))


@pytest.mark.parametrize("name", ["logistic", "mlp", "loop", "the paper's CNN", "clipped", "fedprox, loop"])
def test_bits_do_not_depend_on_neighbours(comm, device, name):
    """A client's update is the same alone and beside any number of others, recorded or not."""
    alone, together = [], []
    for clients, found in ((1, alone), (7, together)):
        overrides = (
            *CASES[name], f"participation.clients_per_round={clients}", "run.num_rounds=1",
            'participation.selection="all"' if clients == 7 else 'participation.selection="uniform"',
        )  # fmt: skip
        simulation = simulate(comm, device, overrides).simulation
        method = simulation.method
        with as_in_a_run(device):
            for t in range(1, 5):  # often enough to be recorded
                simulation.run_round(t)
            # Train clients 3, 5, ... from x_0 once more and look at the rows themselves.
            simulation.population.minibatches_drawn[:] = 0
            state = method.init(simulation.model.initial.copy())
            rows = _updates(simulation, method, state, [3] if clients == 1 else [1, 2, 3, 5, 7, 8, 9])
        found.append(rows[0] if clients == 1 else rows[2])
    assert torch.equal(alone[0], together[0])


def _updates(simulation, method, state, clients):
    from fedmpi.methods import Round
    from fedmpi.simulation.client import Failures
    from fedmpi.simulation.rank_report import RankReport
    from fedmpi.simulation.training import Order, task_of

    training, ids = simulation.training, np.array(clients)
    current = Round(0, ids, np.ones(len(ids)), 0.05)
    order = Order(
        population=simulation.population, method=method, state=state, current=current, report=RankReport()
    )
    order.population.start.copy_(torch.as_tensor(state.global_params))
    updates = training.weighted_sum.buffers(len(ids))
    task, failures = task_of(order, ids, updates), Failures()
    training.trainer.train(updates, [task], failures)
    failures.raise_first()
    return updates.clone().cpu()


@pytest.mark.mpi
@pytest.mark.parametrize(
    "name", ["logistic", "loop", "scaffold", "amplified-scaffold", "cuda_aware", "float64", "clipped"]
)
def test_updates_added_as_they_come_have_the_bits_of_the_cpu(comm, device, monkeypatch, name):
    """Running totals on the device, with other numbers of updates that wait."""
    monkeypatch.setattr("fedmpi.simulation.training.most_kept", lambda num_params: 3)
    monkeypatch.setattr("fedmpi.simulation.training.passing_rows", lambda num_params, size: 2 * size)
    there = simulate(comm, device, CASES[name])
    engine = f'algorithm.engine="{there.simulation.engine.name}"'
    monkeypatch.setattr("fedmpi.simulation.training.passing_rows", lambda num_params, size: 1)
    with plain_layouts():
        here = simulate(comm, CPU, (*CASES[name], engine, "run.cuda_aware=false"))
    for t, (x, y) in enumerate(zip(there.trajectory, here.trajectory, strict=True)):
        if IS_REAL:
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4, err_msg=f"after round {t}")
        else:
            assert np.array_equal(x, y), f"after round {t}"
