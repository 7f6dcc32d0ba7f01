"""The simulator against the slow twin of Algorithm 1, on whatever number of ranks this runs."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.data.sources import load_dataset
from tests.support.algorithm_twin import algorithm_1, logistic_gradient, quadratic_gradient
from tests.support.simulations import random_q, simulate, write_schedule

pytestmark = pytest.mark.mpi


@pytest.fixture
def shared_path(mpi_tmp_path):
    """One temporary folder for all ranks."""
    return mpi_tmp_path


QUADRATIC = """
[run]
num_rounds = {rounds}
dtype = "{dtype}"
seed = 5
[data]
dataset = "quadratic"
centers = {centers}
noise_std = {noise}
[model]
name = "quadratic"
initial = {initial}
[participation]
selection = "schedule"
schedule = "{schedule}"
[algorithm]
local_lr = {gamma}
local_steps = {steps}
amplification = {eta}
amplify_every = {period}
"""


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_random_schedule_on_quadratic(comm, shared_path, seed, dtype, tolerance):
    """Any Q on a quadratic problem gives x_t of Algorithm 1 for every t."""
    draws = np.random.default_rng(seed)
    rounds, clients = 40, 9
    q = random_q(seed, rounds, clients)
    centers, initial = draws.standard_normal((clients, 4)), draws.standard_normal(4)
    gamma, eta = draws.uniform(0.01, 0.3), float(draws.choice([0.5, 1.0, 3.0]))
    period, steps, noise = int(draws.integers(1, 7)), int(draws.integers(1, 5)), [0.0, 0.3][seed % 2]
    schedule = shared_path / f"{seed}-{dtype}.csv"
    write_schedule(comm, schedule, q)
    warmup = (10, 0.05) if seed % 3 == 0 else (0, 0.0)
    text = QUADRATIC.format(
        rounds=rounds, dtype=dtype, centers=centers.tolist(), noise=noise, initial=initial.tolist(),
        schedule=schedule, gamma=gamma, steps=steps, eta=eta, period=period,
    )  # fmt: skip
    if warmup[0]:
        text += f"[warmup]\nnum_rounds = {warmup[0]}\nlocal_lr = {warmup[1]}\n"
    expected = algorithm_1(
        quadratic_gradient(centers, noise, seed=5), q, initial, gamma, eta, period, steps, warmup
    )
    _, trajectory = simulate(comm, text)
    for t, (x, twin) in enumerate(zip(trajectory, expected, strict=True)):
        error = np.abs(x - twin).max() / max(np.abs(twin).max(), 1)
        assert error < tolerance, f"round {t}: off by {error}"


LOGISTIC = """
[run]
num_rounds = 12
dtype = "float64"
seed = 3
[data]
dataset = "synthetic"
num_clients = 7
train_samples = 300
test_samples = 20
num_classes = 4
shape = [1, 3, 5]
partition = "dirichlet"
alpha = 2.0
[model]
name = "logistic"
[participation]
selection = "schedule"
schedule = "{schedule}"
[algorithm]
local_lr = 0.1
local_steps = 3
batch_size = {batch}
amplification = 2.0
amplify_every = 5
[warmup]
num_rounds = 4
local_lr = 0.3
"""


@pytest.mark.parametrize("batch", [0, 8])
def test_logistic_regression(comm, shared_path, batch):
    """Full-batch and minibatch logistic regression with warm-up agree with the twin to 1e-12."""
    q = random_q(11, 12, 7)
    schedule = shared_path / f"logistic-{batch}.csv"
    write_schedule(comm, schedule, q)
    simulation, trajectory = simulate(comm, LOGISTIC.format(schedule=schedule, batch=batch))
    data = load_dataset(simulation.config.data)
    partition = simulation.data.partition
    pixels = (data.train_inputs.reshape(300, -1) / 255 - 0.5) / 0.3
    rows = [partition.samples(n) for n in range(7)]
    gradient = logistic_gradient(
        [pixels[r] for r in rows], [data.train_labels[r] for r in rows], 4, batch, 3
    )
    expected = algorithm_1(gradient, q, trajectory[0], 0.1, 2.0, 5, 3, warmup=(4, 0.3))
    for t, (x, twin) in enumerate(zip(trajectory, expected, strict=True)):
        assert np.abs(x - twin).max() < 1e-12, f"round {t}"


APPENDIX = """
[run]
num_rounds = 15
dtype = "float64"
[data]
dataset = "quadratic"
centers = [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.7320508075688772]]
[model]
name = "quadratic"
initial = [1.0, 2.0]
[participation]
availability = "periodic"
num_groups = 3
rounds_per_group = 1
[algorithm]
local_lr = {gamma}
local_steps = 1
amplification = {eta}
amplify_every = 3
"""

OPTIMUM = np.array([0, np.sqrt(3) / 3])


@pytest.mark.parametrize(
    ("gamma", "eta"),
    [(0.05, 1), (0.1, 1), (0.25, 1), (0.5, 1), (0.05, 2), (0.05, 5), (0.05, 10)],
)
def test_appendix_example(comm, gamma, eta):
    """The paper's example with three clients, for each (gamma, eta) of its two figures."""
    _, trajectory = simulate(comm, APPENDIX.format(gamma=gamma, eta=float(eta)))
    centers = np.array([[-1, 0], [1, 0], [0, np.sqrt(3)]])
    # In closed form: a round moves x by gamma towards the center whose turn it is.
    x, anchor = np.array([1.0, 2.0]), np.array([1.0, 2.0])
    for t in range(15):
        x = (1 - gamma) * x + gamma * centers[t % 3]
        if t % 3 == 2:
            x = anchor = anchor + eta * (x - anchor)
        np.testing.assert_allclose(trajectory[t + 1], x, rtol=0, atol=1e-13)


def test_appendix_conclusion(comm):
    """Amplification reaches the optimum where none of the plain rates of the figure does."""

    def distance(gamma: float, eta: float) -> float:
        _, trajectory = simulate(comm, APPENDIX.format(gamma=gamma, eta=float(eta)))
        return float(np.linalg.norm(trajectory[-1] - OPTIMUM))

    plain = [distance(gamma, 1) for gamma in (0.05, 0.1, 0.25, 0.5)]
    assert min(plain) > 4 * distance(0.05, 5)


def test_hand_computed_rounds(comm):
    """Two rounds in decimals: gamma 0.5, I 2, q (1/2, 1/2), eta 3, P 2, from x_0 = 8."""
    text = """
    [run]
    num_rounds = 2
    dtype = "float64"
    [data]
    dataset = "quadratic"
    centers = [[0.0], [4.0]]
    [model]
    name = "quadratic"
    initial = [8.0]
    [algorithm]
    local_lr = 0.5
    local_steps = 2
    amplification = 3.0
    amplify_every = 2
    """
    _, trajectory = simulate(comm, text)
    # Client 0: 8 -> 4 -> 2, update -6. Client 1: 8 -> 6 -> 5, update -3. x_1 = 8 - 4.5 = 3.5.
    # Client 0: 3.5 -> 0.875, -2.625. Client 1: 3.5 -> 3.75 -> 3.875, +0.375. x_2 = 3.5 - 1.125 = 2.375,
    # u = -5.625, amplified: 2.375 + 2 * -5.625 = -8.875.
    assert [x.item() for x in trajectory] == [8.0, 3.5, -8.875]


def test_empty_rounds_count(comm, shared_path):
    """A round without participants leaves the model as it is and counts towards P."""
    q = np.zeros((4, 2))
    q[0, 0] = q[3, 1] = 1
    write_schedule(comm, shared_path / "q.csv", q)
    text = QUADRATIC.format(
        rounds=4, dtype="float64", centers=[[0.0], [2.0]], noise=0.0, initial=[1.0],
        schedule=shared_path / "q.csv", gamma=0.5, steps=1, eta=2.0, period=3,
    )  # fmt: skip
    _, trajectory = simulate(comm, text)
    # x_1 = 0.5; nothing in rounds 1 and 2; after round 2 u = -0.5 is added once more; then towards 2.
    assert [x.item() for x in trajectory] == [1.0, 0.5, 0.5, 0.0, 1.0]


def test_more_participants_than_are_kept(comm, monkeypatch):
    """Updates that are added as they come give Algorithm 1 all the same."""
    monkeypatch.setattr("fedmpi.simulation.training.most_kept", lambda num_params: 2)
    monkeypatch.setattr("fedmpi.simulation.training.passing_rows", lambda num_params, group_size: 1)
    centers = np.arange(10.0).reshape(5, 2)
    text = f"""
    [run]
    num_rounds = 3
    dtype = "float64"
    [data]
    dataset = "quadratic"
    centers = {centers.tolist()}
    [model]
    name = "quadratic"
    [algorithm]
    local_lr = 0.25
    local_steps = 1
    """
    _, trajectory = simulate(comm, text)
    x = np.zeros(2)
    for t in range(3):
        x = x + 0.25 * (centers.mean(axis=0) - x)
        np.testing.assert_allclose(trajectory[t + 1], x, rtol=0, atol=1e-14)
