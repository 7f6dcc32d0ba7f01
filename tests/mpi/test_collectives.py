"""The collectives, and what depends on how data are split over ranks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmpi.config import validate
from fedmpi.data.loading import load_shards
from fedmpi.data.shard import ClientData
from fedmpi.data.sources import load_dataset
from fedmpi.errors import UserError
from fedmpi.models import build_model
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import parcels
from fedmpi.simulation.aggregate import WeightedSum
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.evaluate import evaluate
from fedmpi.simulation.lending import Loans
from fedmpi.simulation.loop import Simulation
from fedmpi.simulation.rank_report import RankReport
from fedmpi.simulation.shares import NonFiniteUpdateError, Reduced, Share, placed
from tests.support.configs import SMALL
from tests.support.simulations import minibatches

pytestmark = pytest.mark.mpi
CPU = torch.device("cpu")


def reduce(comm, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted sum over ranks of one update per client."""
    clients = np.arange(len(updates))
    mine = np.flatnonzero(clients % comm.size == comm.rank)
    total = WeightedSum(comm, updates.shape[1], torch.float32, CPU)
    total.buffers(len(mine)).copy_(torch.from_numpy(updates[mine]))
    return reduced(total, clients, weights, mine).sums["weighted_sum"]


def reduced(total: WeightedSum, clients, weights, mine, report: RankReport | None = None) -> Reduced:
    """What comes out for one run; its error is raised."""
    rows = total.buffers(len(mine))
    (values,) = total.magnitudes([rows])
    share = Share(
        clients=clients, weights=weights, mine=mine, rows={"weighted_sum": rows},
        peaks=[placed(values, len(clients), mine)], report=report or RankReport(),
    )  # fmt: skip
    (answer,) = total.reduce([share], Stopwatch())
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_weighted_sum_is_exact(comm):
    """The sum over ranks is the correctly rounded sum of all contributions, to a part in 1e16."""
    draws = np.random.default_rng(0)
    updates = draws.standard_normal((10, 50)).astype(np.float32) * 10.0 ** draws.integers(-6, 3, (10, 50))
    updates, weights = updates.astype(np.float32), draws.random(10)
    total = reduce(comm, updates, weights)
    for column in range(50):
        exact = math.fsum(weights * updates[:, column].astype(float))
        assert abs(total[column] - exact) <= 1e-16 * np.abs(weights @ np.abs(updates)).max()


def test_a_non_finite_update_is_named_on_all_ranks(comm):
    """Every rank learns which client diverged, whoever trained it."""
    updates = np.ones((5, 3), np.float32)
    updates[3, 1] = np.nan
    with pytest.raises(NonFiniteUpdateError, match="client 3"):
        reduce(comm, updates, np.ones(5))


def test_ranks_that_disagree_on_participants_are_told(comm):
    """A participation that differs between ranks is refused instead of mixed up."""
    clients = np.array([0, 1 + comm.rank])
    mine = np.flatnonzero(clients % comm.size == comm.rank)
    total = WeightedSum(comm, 2, torch.float32, CPU)
    total.buffers(len(mine)).fill_(3)
    if comm.size == 1:  # who is alone agrees
        assert reduced(total, clients, np.ones(2), mine).sums["weighted_sum"].tolist() == [6, 6]
        return
    with pytest.raises(UserError, match="disagree on who takes part"):
        reduced(total, clients, np.ones(2), mine)


def test_a_wish_to_stop_reaches_all_ranks(comm):
    """Whichever rank got a signal, all ranks know the reason after the same reduction."""
    total = WeightedSum(comm, 2, torch.float32, CPU)
    total.buffers(0)
    nobody = np.arange(0)
    stop = 2 if comm.rank == comm.size - 1 else 0
    answer = reduced(total, nobody, np.ones(0), nobody, RankReport(stop=stop))
    assert answer.stop == 2
    assert answer.sums["weighted_sum"].tolist() == [0, 0]


def test_an_error_of_one_rank_reaches_all(comm):
    """`where` raises the same UserError everywhere, so that all ranks leave together."""

    def fail() -> None:
        raise UserError("no such file")

    with pytest.raises(UserError, match="no such file") as caught:
        comm.try_on_all(fail if comm.rank == comm.size - 1 else lambda: None)
    assert caught.value.agreed


def test_root_shares_its_result(comm):
    """`on_root` runs once and gives all ranks the result."""
    assert comm.on_root(lambda: ("x", comm.rank)) == ("x", 0)


def test_large_arrays_travel_in_chunks(comm, monkeypatch):
    """Sums and broadcasts beyond a message's limit go in pieces."""
    monkeypatch.setattr("fedmpi.mpi.comm._CHUNK", 7)
    values = np.arange(100) * (comm.rank + 1)
    comm.sum_in_place(values)
    assert (values == np.arange(100) * (comm.size * (comm.size + 1) // 2)).all()
    values = np.full(30, float(comm.rank))
    comm.broadcast(values)
    assert (values == 0).all()
    out = np.empty((5, 3), np.int64)
    comm.scatter_on_node(lambda rank: np.full((5, 3), rank), out)
    assert (out == comm.rank).all()


def test_ranks_hold_what_they_own(comm):
    """Together the ranks hold every training sample once, each those of its own clients."""
    config = validate.parse(SMALL, "test.toml")
    shards = load_shards(comm, config, CPU)
    clients, train, test, info = shards.clients, shards.train_set, shards.test_set, shards.info
    counts = np.array([len(clients.labels), len(train.labels), len(test.labels)])
    owned = sum(clients.size(n) for n in range(comm.rank, 7, comm.size))
    assert counts[0] == owned
    comm.sum_in_place(counts)
    assert counts.tolist() == [420, 420, 100]
    assert info.partition.sizes.sum() == 420


def test_evaluation_gives_true_means(comm):
    """Loss and accuracy over ranks equal those of one pass over the whole set."""
    config = validate.parse(SMALL, "test.toml", ["run.dtype=float64"])
    shards = load_shards(comm, config, CPU)
    shape, classes = shards.info.shape, shards.info.num_classes
    model = FlatModel(build_model(config, shape, classes), torch.float64, CPU)
    loss, accuracy = evaluate(comm, model, model.initial, shards.train_set)
    data = load_dataset(config.data)
    inputs = torch.from_numpy((data.train_inputs / 255 - 0.5) / 0.3)
    labels = torch.from_numpy(data.train_labels)
    outputs = model.module(inputs)
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, labels).item(), rel=1e-12)
    assert accuracy == (outputs.argmax(1) == labels).double().mean().item()


def test_initial_model_is_that_of_rank_0(comm, monkeypatch):
    """A model function that draws other numbers on every rank still gives one x_0."""
    monkeypatch.setattr("fedmpi.data.rng.integer", lambda *address: 100 + comm.rank)
    simulation = Simulation(comm, validate.parse(SMALL, "test.toml"), CPU)
    mine = simulation.state.global_params
    shared = mine.copy()
    comm.broadcast(shared)
    assert np.array_equal(mine, shared)


def test_lent_clients_give_the_same_minibatches(comm):
    """What a borrower trains on is what the owner would have trained on, full batches included."""
    for batch in (0, 8, 1000):
        config = validate.parse(SMALL, "test.toml", [f"algorithm.batch_size={batch}"])
        shards = load_shards(comm, config, CPU)
        clients, info = shards.clients, shards.info
        everyone = np.arange(info.partition.num_clients)
        trainers = (everyone + 1) % comm.size  # nobody trains its own, on two ranks and more
        drawn = np.arange(len(everyone))
        loans = Loans(comm, clients)
        loans.start(everyone, trainers, drawn, np.full(len(everyone), 3))
        received = {}
        for client in everyone[trainers == comm.rank].tolist():
            lent = client % comm.size != comm.rank
            samples = loans.receive(client, 3) if lent else None
            received[client] = [
                (x.numpy(), y.numpy())
                for x, y in minibatches(clients, client, int(drawn[client]), 3, samples)
            ]
        loans.finish()
        alone = ClientData(
            config, info.partition, (0, 1),
            torch.from_numpy(load_dataset(config.data).train_inputs[info.partition.order]),
            torch.from_numpy(load_dataset(config.data).train_labels[info.partition.order]),
            clients.normalise,
        )  # fmt: skip
        for client, batches in received.items():
            expected = minibatches(alone, client, int(drawn[client]), 3)
            for (x, y), (inputs, labels) in zip(batches, expected, strict=True):
                np.testing.assert_array_equal(x, inputs.numpy())
                np.testing.assert_array_equal(y, labels.numpy())


def test_arrays_of_a_parcel_are_shared_on_a_node(comm, monkeypatch):
    """All ranks see the same read-only memory; without a place for it each has a copy; nothing is left."""
    value = {"a": np.arange(300_000), "b": [np.eye(3)], "c": "text"}
    for place in (parcels._MEMORY, "/nowhere"):
        monkeypatch.setattr(parcels, "_MEMORY", place)
        got = comm.share_on_node(value if comm.node_rank == 0 else None)
        assert got["a"].tolist() == list(range(300_000))
        assert (got["b"][0] == np.eye(3)).all()
        assert got["c"] == "text"
        if comm.size > 1 and place == "/dev/shm":
            assert not got["a"].flags.writeable
            assert got["a"].ctypes.data % 8 == 0
    assert not list(Path("/dev/shm").glob("fedmpi-parcel-*"))


def test_large_objects_travel_in_pieces(comm, monkeypatch):
    """Arrays beyond a message's limit, of an object that rank 0 gives to all."""
    monkeypatch.setattr(parcels, "_PIECE", 1000)
    x = comm.on_root(lambda: {"x": np.arange(5000.0), "none": None})
    assert x["x"].tolist() == list(range(5000))
    x["x"][0] = 7  # ranks may change what is theirs
