"""What a round costs on a GPU, counted on the simulated one: figures that do not wander."""

from __future__ import annotations

import pytest

from fedmpi.config import validate
from fedmpi.simulation.lockstep import in_lockstep
from fedmpi.simulation.pack import make_pack
from tests.accelerator import simulated_gpu
from tests.accelerator.cases import BASE, BERNOULLI, CASES, DIRICHLET, LOOP, METHODS
from tests.accelerator.runs import as_in_a_run, look_at_test, simulate

WARM = 6  # rounds after which all that is frequent is recorded
PAPER = (
    'model.name="cnn-fashion"', "data.shape=[1,28,28]", "data.train_samples=560", "algorithm.local_steps=5",
    "algorithm.batch_size=16", "data.num_clients=14",
)  # fmt: skip


def last_round(comm, device, overrides, rounds=WARM):
    """What the last of some rounds cost."""
    return simulate(comm, device, overrides, rounds).counts[-1]


@pytest.mark.parametrize("name", ["logistic", "loop", "the paper's CNN", *METHODS])
def test_the_host_waits_at_most_three_times_a_round(comm, simulated, name):
    """For the updates' peaks, and for what MPI sums."""
    if name == "amplified-scaffold":  # beyond the round, its intervals read tables
        overrides = (*CASES[name], "algorithm.amplify_every=100")
    else:
        overrides = CASES[name]
    assert last_round(comm, simulated, overrides)["waits"] <= 3


def test_the_papers_round(comm, simulated):
    """S = 10, I = 5, batch 16, the paper's CNN: launches, waits, and bytes each way."""
    seen = last_round(comm, simulated, PAPER)
    assert seen["graph_launches"] == 3 * 5  # 4, 4 and 2 clients side by side
    assert seen["kernels"] <= 42  # 141 before programs were recorded with all they need
    assert seen["waits"] == 1
    assert seen["bytes_to_device"] <= 10 * 5 * 16 * 8 + 200  # positions of samples, and weights
    assert seen["bytes_to_host"] <= 10 * 8  # the updates' peaks
    assert seen["recordings"] == seen["sorts"] == 0
    clients_steps = 10 * 5
    assert seen["graph_kernels"] / clients_steps <= 50  # no made-up clients


def test_an_evaluation_waits_once(comm, simulated):
    """Whatever the number of samples."""
    ran = simulate(comm, simulated, ("data.test_samples=5000",), 1)
    ran.simulation.run_round(1)
    simulated_gpu.reset()
    look_at_test(ran.simulation)
    assert simulated_gpu.counts["waits"] == 1
    assert simulated_gpu.counts["bytes_to_host"] <= 5 * 16
    look_at_test(ran.simulation)  # the same x: nothing to do
    assert simulated_gpu.counts["waits"] == 1


@pytest.mark.parametrize("engine", [(), (LOOP,)], ids=["batched", "loop"])
@pytest.mark.parametrize(
    "overrides",
    [BERNOULLI, (*DIRICHLET, "data.train_samples=200"), ('algorithm.lr_schedule="inverse"',)],
    ids=["bernoulli", "dirichlet", "inverse"],
)
def test_recordings_and_memory_do_not_grow(comm, simulated, overrides, engine):
    """Fifty rounds of changing numbers of clients, minibatch sizes and step sizes."""
    ran = simulate(comm, simulated, (*overrides, *engine), 25)
    trainer, before = ran.simulation.training.trainer, simulated_gpu.live_bytes()
    recorded = sum(count["recordings"] for count in ran.counts)
    for t in range(25, 50):
        ran.simulation.run_round(t)
    assert 1 <= len(trainer.recordings) <= 4
    assert recorded <= 8
    assert simulated_gpu.live_bytes() <= 1.1 * before + 100_000
    assert trainer.recordings.why_not == ""


def test_a_decaying_rate_does_not_record_again(comm, simulated):
    """Gamma is read from the device."""
    for engine in ((), (LOOP,)):
        ran = simulate(comm, simulated, ('algorithm.lr_schedule="inverse"', *engine), 12)
        assert sum(count["recordings"] for count in ran.counts) <= 2
        assert ran.counts[-1]["graph_launches"] >= 3


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_kernels_of_a_round_of_a_run_fall_with_the_size_of_its_pack(comm, simulated, name):
    """Clients of all runs fill the groups, which are computed whole: fewer launches for each run."""
    kernels = {size: _kernels_of_a_run(comm, simulated, CASES[name], size) for size in (1, 4, 8)}
    assert kernels[8] < kernels[4] < kernels[1]
    assert kernels[8] < 0.7 * kernels[1]


def _kernels_of_a_run(comm, device, overrides, size: int) -> float:
    """Kernels, launched or replayed, in a warm round of a pack of seeds, for each of its runs."""
    configs = [validate.parse(BASE, "base.toml", [*overrides, f"run.seed={n}"]) for n in range(size)]
    with as_in_a_run(device):
        pack = make_pack(comm, configs, device, [None] * size)
        first = pack[0]
        for t in range(WARM):
            simulated_gpu.reset()
            in_lockstep(comm, first.training, first.clock, [run.one_round(t) for run in pack])
    return (simulated_gpu.counts["kernels"] + simulated_gpu.counts["graph_kernels"]) / size
