"""Methods of other papers that are settings here: RR-CLI and CyCP, beside loops that follow their text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmpi.data.sources import load_dataset
from fedmpi.participation import make_participation
from tests.support.algorithm_twin import logistic_gradient
from tests.support.simulations import simulate

pytestmark = pytest.mark.mpi

TEXT = """
[run]
num_rounds = 16
dtype = "float64"
seed = 4
[data]
dataset = "synthetic"
num_clients = 8
train_samples = 320
test_samples = 20
num_classes = 4
shape = [1, 3, 5]
partition = "iid"
[model]
name = "logistic"
[participation]
{participation}
[algorithm]
local_lr = 0.2
{algorithm}
"""


def run(comm, participation: str, algorithm: str):
    """(simulation, x_0 ... x_16, participants of each round, the gradient g_n(number, y), client sizes)."""
    simulation, x = simulate(comm, TEXT.format(participation=participation, algorithm=algorithm))
    config, partition = simulation.config, simulation.data.partition
    data = load_dataset(config.data)
    pixels = (data.train_inputs.reshape(320, -1) / 255 - 0.5) / 0.3
    rows = [partition.samples(n) for n in range(8)]
    gradient = logistic_gradient(
        [pixels[r] for r in rows], [data.train_labels[r] for r in rows], 4, config.algorithm.batch_size, 4
    )
    participation = make_participation(config, 8)
    who = [participation.weights(t)[0].tolist() for t in range(16)]
    assert not np.array_equal(x[0], x[-1])
    return simulation, x, who, gradient, [len(r) for r in rows]


def test_rr_cli(comm):
    """Malinovsky et al. (2023): in each meta-epoch the server permutes the clients and takes cohort after
    cohort; each client makes one pass over its reshuffled data from the model of the cohort before, the
    cohort is averaged; after the last cohort x <- x + theta (z - x), with z the model then. Here: selection
    "permutation" of the S of a cohort, P = N/S, eta = theta, and as many local steps as a pass has batches.
    """
    participation = 'selection = "permutation"\nclients_per_round = 2'
    algorithm = "local_steps = 5\nbatch_size = 8\namplification = 1.7\namplify_every = 4"
    _, found, who, gradient, sizes = run(comm, participation, algorithm)
    assert set(sizes) == {40}
    x = found[0]
    for epoch in range(4):
        cohorts = who[4 * epoch : 4 * epoch + 4]
        assert sorted(itertools.chain(*cohorts)) == list(range(8))  # each client once
        z = x
        for cohort in cohorts:
            ends = []
            for n in cohort:
                y = z
                for batch in range(5):
                    y = y - 0.2 * gradient(n, 5 * epoch + batch, y)
                ends.append(y)
            z = np.mean(ends, axis=0)
        x = x + 1.7 * (z - x)
        np.testing.assert_allclose(found[4 * epoch + 4], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("local", ["GD", "SGD", "SSGD"])
def test_cycp(comm, local):
    """Cho et al. (2023): K groups take turns; in each round M clients of the group, drawn without
    repetition, start from x, and their mean is the next x. Locally one step with all data (GD), some steps
    with minibatches (SGD), or a pass over shuffled components (SSGD). Here: availability "periodic" with
    turns of one round, selection "uniform" of M.
    """
    participation = (
        'availability = "periodic"\nnum_groups = 2\nrounds_per_group = 1\nselection = "uniform"\n'
        "clients_per_round = 2"
    )
    steps, batch = {"GD": (1, 0), "SGD": (3, 8), "SSGD": (5, 8)}[local]
    _, found, who, gradient, _ = run(comm, participation, f"local_steps = {steps}\nbatch_size = {batch}")
    x, drawn = found[0], dict.fromkeys(range(8), 0)
    for t in range(16):
        assert len(who[t]) == 2
        ends = []
        for n in who[t]:
            assert n // 4 == t % 2  # of the group whose turn it is
            y = x
            for i in range(steps):
                y = y - 0.2 * gradient(n, drawn[n] + i, y)
            drawn[n] += steps
            ends.append(y)
        x = np.mean(ends, axis=0)
        np.testing.assert_allclose(found[t + 1], x, rtol=0, atol=1e-12)
