"""Clients whose size is just below, at and just above the batch size, beside each other and lent."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.data.prepared import Dataset, write_dataset
from tests.support.algorithm_twin import algorithm_1, logistic_gradient
from tests.support.simulations import random_q, simulate, write_schedule

pytestmark = pytest.mark.mpi

CONFIG = """
[run]
num_rounds = 6
dtype = "float64"
seed = 3
[data]
dataset = "{data}"
partition = "natural"
num_clients = {clients}
allow_empty = true
[model]
name = "logistic"
[participation]
selection = "schedule"
schedule = "{schedule}"
[algorithm]
local_lr = 0.1
local_steps = {steps}
batch_size = {batch}
engine = "{engine}"
"""


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("seed", range(8))
def test_any_sizes_around_the_batch_size(comm, mpi_tmp_path, seed, engine):
    """Each round is that of the slow twin: a client with exactly batch_size samples uses all of them."""
    draws = np.random.default_rng(seed)
    clients, batch, steps = 11, int(draws.integers(2, 9)), int(draws.integers(1, 4))
    near = [batch - 1, batch, batch, batch + 1, 2 * batch, 3 * batch + 1, 0]
    sizes = draws.choice(near, clients)
    sizes[:3] = batch, batch + 1, batch  # the mixture that once failed is in every case
    owner = np.repeat(np.arange(clients), sizes)
    inputs, labels = draws.standard_normal((len(owner), 5)), draws.integers(3, size=len(owner))

    # The data as a file, and who takes part: uneven over ranks, so that clients are lent.
    data, schedule = mpi_tmp_path / f"{seed}-{engine}.h5", mpi_tmp_path / f"{seed}-{engine}.csv"
    if comm.is_root:
        test = inputs[:2], labels[:2]
        write_dataset(data, Dataset("sizes", inputs, labels, *test, 3, train_clients=owner))
    q = random_q(seed, 6, clients)
    q[0] = 1 / clients
    write_schedule(comm, schedule, q)

    text = CONFIG.format(
        data=data, schedule=schedule, clients=clients, steps=steps, batch=batch, engine=engine
    )
    _, trajectory = simulate(comm, text)
    rows = [np.flatnonzero(owner == n) for n in range(clients)]
    gradient = logistic_gradient([inputs[r] for r in rows], [labels[r] for r in rows], 3, batch, 3)
    idle = sizes == 0  # without samples there is no gradient

    def or_nothing(client: int, number: int, y: np.ndarray) -> np.ndarray:
        return np.zeros_like(y) if idle[client] else gradient(client, number, y)

    expected = algorithm_1(or_nothing, q, trajectory[0], 0.1, 1.0, 1, steps)
    for t, (x, twin) in enumerate(zip(trajectory, expected, strict=True)):
        assert np.abs(x - twin).max() < 1e-12, f"round {t}, sizes {sizes.tolist()}, batch {batch}"
