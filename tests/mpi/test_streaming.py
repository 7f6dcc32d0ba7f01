"""Many participants: trained one after the other, their updates added as they come."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.config import validate
from fedmpi.errors import ClientError
from fedmpi.simulation.lockstep import in_lockstep
from fedmpi.simulation.loop import Simulation
from fedmpi.simulation.pack import make_pack
from fedmpi.simulation.parts import Part
from fedmpi.simulation.shares import NonFiniteUpdateError
from tests.mpi.test_packs import BASE, Notes, alone
from tests.support.simulations import simulate, single_rank

pytestmark = pytest.mark.mpi
CPU = torch.device("cpu")

EVERYBODY = ('participation.selection="all"', "run.num_rounds=4")
CASES = {
    "logistic": EVERYBODY,
    "client by client": (*EVERYBODY, 'algorithm.engine="loop"'),
    "rounds with many, few and none": (
        'participation.availability="bernoulli"', "participation.probability=0.3",
        'participation.selection="all"',
    ),
    "all lent by one rank": (
        'participation.availability="trace"', 'participation.selection="all"', "run.num_rounds=3",
        "data.num_clients=24",
    ),
    "mifa": (*EVERYBODY, 'algorithm.name="mifa"'),
    "scaffold": (*EVERYBODY, 'algorithm.name="scaffold"'),
    "amplified-scaffold": (*EVERYBODY, 'algorithm.name="amplified-scaffold"', "algorithm.amplify_every=2"),
    "focus": (*EVERYBODY, 'algorithm.name="focus"'),
    "fedexp": (*EVERYBODY, 'algorithm.name="fedexp"', "algorithm.epsilon=1e-4"),
    "fedstale": (*EVERYBODY, 'algorithm.name="fedstale"'),
    "fedawe": (*EVERYBODY, 'algorithm.name="fedawe"'),
    "mimelite": (*EVERYBODY, 'algorithm.name="mimelite"'),
    "unequal local steps": (
        *EVERYBODY, "algorithm.local_steps=[1, 4]", 'algorithm.local_steps_law="uniform"',
    ),
    "fedpbc": ('participation.selection="uniform"', 'algorithm.name="fedpbc"'),
}  # fmt: skip


@pytest.fixture
def shared_path(mpi_tmp_path):
    """A folder that all ranks see."""
    return mpi_tmp_path


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    """Already four participants are many, and two updates wait."""
    keep(monkeypatch, 3, 2)


def keep(monkeypatch, kept: int, passing: int) -> None:
    """From how many on updates are added as they come, and how many of them at a time."""
    monkeypatch.setattr("fedmpi.simulation.training.most_kept", lambda num_params: kept)
    monkeypatch.setattr("fedmpi.simulation.training.passing_rows", lambda num_params, group_size: passing)


def settings_of(comm, case: str, shared_path) -> tuple[str, ...]:
    """The case's settings; a trace in which only clients of rank 0 are available."""
    if "trace" not in "".join(CASES[case]):
        return CASES[case]
    path = shared_path / "trace.csv"
    if comm.is_root:
        rows = [f"{n},0,9" for n in range(0, 24, comm.size)]
        path.write_text("\n".join(["client,start,end", *rows]) + "\n")
    comm.barrier()
    return (*CASES[case], f'participation.trace="{path}"')


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_ranks_nor_on_who_waits(comm, shared_path, monkeypatch, case):
    """The same trajectory on these ranks and on one, with other numbers of updates that wait; and, up to
    rounding, that of updates which are all kept.
    """
    overrides = settings_of(comm, case, shared_path)
    _, here = simulate(comm, BASE, overrides)
    keep(monkeypatch, 3, 5)
    _, there = simulate(single_rank(), BASE, overrides)
    assert all(np.array_equal(x, y) for x, y in zip(here, there, strict=True))
    assert not np.array_equal(here[0], here[-1])
    keep(monkeypatch, 100, 5)
    _, kept = simulate(comm, BASE, overrides)
    np.testing.assert_allclose(here[-1], kept[-1], rtol=1e-5, atol=1e-7)


def test_one_sum_over_ranks_a_round(comm, monkeypatch):
    """However many participants, the vector goes over the ranks once a round."""
    sizes: list[int] = []
    whole = type(comm).sum_in_place

    def counted(self, values):
        sizes.append(len(values))
        whole(self, values)

    monkeypatch.setattr(type(comm), "sum_in_place", counted)
    config = validate.parse(BASE, "test.toml", EVERYBODY)
    simulation = Simulation(comm, config, CPU)
    sizes.clear()
    simulation.run_round(0)
    assert sizes == [2 * (simulation.model.num_params + 1)]


def test_a_total_longer_than_a_message(comm, monkeypatch):
    """Both words of all parameters go in pieces where they exceed the limit of a message: the same bits."""
    _, whole = simulate(comm, BASE, EVERYBODY)
    monkeypatch.setattr("fedmpi.mpi.comm._CHUNK", 101)
    simulation, in_pieces = simulate(comm, BASE, EVERYBODY)
    assert 2 * simulation.model.num_params > 5 * 101
    assert all(np.array_equal(x, y) for x, y in zip(whole, in_pieces, strict=True))


def test_runs_with_many_and_few_participants_in_one_pack(comm):
    """Each has the bits that it has alone."""
    each = [EVERYBODY, ("participation.clients_per_round=2",), (*EVERYBODY, "run.seed=5"), CASES["focus"]]
    configs = [validate.parse(BASE, "pack.toml", own) for own in each]
    runs, notes = make_pack(comm, configs, CPU, [None] * len(configs)), [Notes() for _ in configs]
    steps = [run.rounds(note) for run, note in zip(runs, notes, strict=True)]
    in_lockstep(comm, runs[0].training, runs[0].clock, steps)
    for own, note, config in zip(each, notes, configs, strict=True):
        note.assert_same(alone(comm, config), str(own))


def test_a_non_finite_update_is_named_on_all_ranks(comm, monkeypatch):
    """The first in the order of participants, whoever trained it and when."""
    simulation, _ = simulate(comm, BASE, (*EVERYBODY, "run.num_rounds=1"))
    finish = Part.finish

    def spoil(self, failures):
        finish(self, failures)
        self.task.local["update"][np.isin(self.clients, [4, 9]), 0] = np.nan

    monkeypatch.setattr(Part, "finish", spoil)
    with pytest.raises(NonFiniteUpdateError, match="client 4"):
        simulation.run_round(1)


def test_a_client_that_fails_ends_its_run_alone(comm, monkeypatch):
    """In a pack the run beside it goes on."""
    part = comm.split(0)
    each = [EVERYBODY, (*EVERYBODY, "run.seed=5")]
    configs = [validate.parse(BASE, "pack.toml", own) for own in each]
    runs, notes = make_pack(part, configs, CPU, [None, None]), [Notes(), Notes()]
    finish = type(runs[0].method).finish_clients

    def failing(self, local, current):
        if self is runs[0].method and current.t == 1 and part.rank == part.size - 1:
            raise ValueError("planted")
        finish(self, local, current)

    monkeypatch.setattr(type(runs[0].method), "finish_clients", failing)
    steps = [run.rounds(note) for run, note in zip(runs, notes, strict=True)]
    first, second = in_lockstep(part, runs[0].training, runs[0].clock, steps)
    part.free()
    assert isinstance(first, ClientError)
    assert "planted" in str(first)
    assert second.status == "done"
