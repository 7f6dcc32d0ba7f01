"""Which runs of a sweep go on in lockstep, and how many."""

from __future__ import annotations

import pytest

from fedmpi.config import validate
from fedmpi.experiments.sweep.packing import AUTO, Footprint, Packer, footprint, how_many, pack_key
from fedmpi.mpi import node_memory

BASE = """
[run]
num_rounds = 5
[data]
dataset = "synthetic"
num_clients = 10
train_samples = 100
shape = [1, 4, 4]
[model]
name = "logistic"
[participation]
selection = "uniform"
clients_per_round = 4
[algorithm]
local_lr = 0.1
local_steps = 1
"""


def config(*overrides):
    """The base, changed."""
    return validate.parse(BASE, "base.toml", overrides)


@pytest.mark.parametrize(
    ("override", "is_alike"),
    [("run.seed=7", True), ("run.num_rounds=3", True), ("algorithm.local_lr=0.5", True),
     ('algorithm.name="scaffold"', True), ("data.num_clients=5", True), ('data.partition="iid"', True),
     ("data.train_samples=90", False), ("data.shape=[1,5,5]", False), ('model.name="mlp"', False),
     ('run.dtype="float64"', False), ('algorithm.engine="loop"', False), ("run.threads=2", False)],
)  # fmt: skip
def test_runs_of_one_pack_share_samples_model_and_device(override, is_alike):
    """How samples are dealt, rates, methods and seeds may differ."""
    assert (pack_key(config()) == pack_key(config(override))) == is_alike


@pytest.mark.parametrize(
    ("wanted", "free", "num_groups", "fits", "on_gpu", "expected"),
    [(AUTO, 10, 2, 99, False, 5), (AUTO, 9, 2, 99, False, 5), (AUTO, 100, 1, 99, False, 16),
     (AUTO, 100, 1, 99, True, 64), (AUTO, 10, 1, 3, False, 3), (AUTO, 1, 4, 99, False, 1),
     (4, 10, 2, 99, False, 4), (4, 10, 2, 3, False, 3), (40, 10, 1, 99, False, 40)],
)  # fmt: skip
def test_how_many_runs_a_pack_has(wanted, free, num_groups, fits, on_gpu, expected):
    """An even share for each group, or what was asked for; never more than the memory holds."""
    assert how_many(wanted, free, num_groups, fits, on_gpu=on_gpu) == expected


def test_what_does_not_fit_in_memory_is_split():
    """Four fifths of the room: the samples once, and each run's vectors; at least one run."""
    needed = Footprint(shared=2_000, each=100)
    assert needed.most(10_000) == 60
    assert needed.most(2_600) == 1
    assert needed.most(100) == 1


def test_the_footprint_counts_samples_once_and_vectors_for_each_run():
    """Ten classes of 16 pixels: 170 parameters; twice the ranks own half of the tables and samples."""
    one, two = footprint(config('algorithm.name="scaffold"'), 1), footprint(
        config('algorithm.name="scaffold"'), 2
    )  # fmt: skip
    vectors = 170 * (6 * 8 + (3 + 4) * 4)
    assert one.each == vectors + 10 * 170 * 4
    assert two.each == 170 * (6 * 8 + (3 + 2) * 4) + 5 * 170 * 4
    assert two.shared < one.shared
    assert footprint(config(), 1).each == vectors


@pytest.fixture
def one_rank():
    """A world of one rank."""
    from fedmpi.mpi.world import session

    with session() as world:
        yield world


def test_a_pack_is_as_large_as_the_rank_has_room_for(one_rank, monkeypatch):
    """Never refused: with little memory runs go on one after another."""
    needed = footprint(config(), one_rank.size)
    for runs in (3, 1):
        room = (needed.shared + (runs + 0.5) * needed.each) / 0.8
        monkeypatch.setattr(node_memory, "room_for_rank", lambda *_, room=room: room)
        assert Packer(AUTO, 1, one_rank).size(config(), 10) == runs
    assert Packer(1, 1, one_rank).size(config(), 10) == 1


def test_runs_that_another_group_holds_are_not_counted(tmp_path):
    """Of ten runs another group holds six: two groups share the other four evenly."""
    from types import SimpleNamespace

    from fedmpi.experiments.sweep.claims import take
    from fedmpi.experiments.sweep.points import Point
    from fedmpi.experiments.sweep.store import Store
    from fedmpi.experiments.sweep.work import _look

    store = Store(tmp_path)
    points = [
        Point(index=n, name=f"r{n}", method="", settings={}, seed=n, config=config(f"run.seed={n}"))
        for n in range(10)
    ]
    store.create(points)
    held = [take(store.notes, f"r{n}") for n in range(6)]
    job = SimpleNamespace(store=store, points=points, began=0.0, warmups={})
    packer = SimpleNamespace(size=lambda _, free: how_many(AUTO, free, 2, 99, on_gpu=False))
    taken, _ = _look(job, packer)
    assert [one.index for one in taken] == [6, 7]
    for claim in [*held, *(claim for one in taken for claim in one.claims)]:
        claim.release()


def test_waiting_for_the_warm_up_of_another_group_is_no_stall(monkeypatch):
    """However long that takes: each look counts as progress, or the watchdog would end the whole sweep."""
    from types import SimpleNamespace

    from fedmpi.experiments.sweep import work
    from fedmpi.mpi.watch import pulse

    looks = []

    def look(*_):
        looks.append(pulse.here.slot[pulse.PROGRESS])
        return [], len(looks) < 4

    monkeypatch.setattr(work, "_look", look)
    monkeypatch.setattr(work.time, "sleep", lambda seconds: None)
    assert work._next(SimpleNamespace(stop=SimpleNamespace(code=0)), None, None) == []
    assert len(set(looks)) == 4
