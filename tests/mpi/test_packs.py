"""Runs in lockstep: each has the bits that it has alone, whatever goes on beside it."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
import torch

from fedmpi.config import METHODS, validate
from fedmpi.errors import ClientError
from fedmpi.simulation.lockstep import PackError, in_lockstep
from fedmpi.simulation.loop import Simulation
from fedmpi.simulation.outcome import Output
from fedmpi.simulation.pack import make_pack
from tests.support.configs import SELECTION_OF

pytestmark = pytest.mark.mpi

BASE = """
[run]
num_rounds = 7
eval_every = 2
[data]
dataset = "synthetic"
num_clients = 11
train_samples = 330
test_samples = 150
shape = [1, 6, 6]
partition = "dirichlet"
alpha = 0.5
allow_empty = true
[model]
name = "logistic"
[participation]
selection = "uniform"
clients_per_round = 5
[algorithm]
local_lr = 0.05
local_steps = 3
batch_size = 8
"""

OWN, CODE = "tests.accelerator.own_code", "tests.support.user_code"
CNN = ('model.name="cnn-fashion"', "data.shape=[1,28,28]", "data.train_samples=110", "run.num_rounds=2")
SEEDS = tuple((f"run.seed={seed}",) for seed in (1, 2, 3))
RATES = (
    ("algorithm.local_lr=0.1",),
    ('algorithm.lr_schedule="inverse"', "run.seed=5"),
    ("algorithm.amplification=3.0", "algorithm.amplify_every=2"),
    ("algorithm.amplification=0.5", "algorithm.amplify_every=3", "algorithm.clip_norm=0.4"),
)
QUADRATIC = (
    'model.name="quadratic"', 'data.dataset="quadratic"', "data.num_clients=3", 'data.partition="natural"',
    "data.centers=[[0.0, 1.0], [2.0, 3.0], [1.0, 0.5]]", "participation.clients_per_round=2",
    "algorithm.batch_size=0",
)  # fmt: skip

# What all runs of a pack have, and what each has of its own.
PACKS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "seeds": ((), SEEDS),
    "one partition": (('data.partition="iid"', "data.train_samples=352"), SEEDS[:1] + RATES),
    "rates": ((), RATES),
    "seeds of an MLP": (('model.name="mlp"', "model.hidden=[33,17]"), SEEDS + RATES),
    "many": ((), tuple((f"run.seed={seed}", f"algorithm.local_lr={seed / 50}") for seed in range(1, 10))),
    "client by client": (('algorithm.engine="loop"',), SEEDS + RATES),
    "in float64": (('run.dtype="float64"',), SEEDS + RATES),
    "the paper's CNN": (CNN, SEEDS[:2] + RATES[:1]),
    "CNN by vmap": ((*CNN, 'algorithm.engine="batched"'), SEEDS[:2] + RATES[:1]),
    "dropout": ((f'model.name="{OWN}:dropout"',), SEEDS + RATES[:1]),
    "augmented": (("data.augment=true",), SEEDS),
    "the quadratic example": (QUADRATIC, SEEDS + RATES),
    "noise": ((*QUADRATIC, "data.noise_std=0.1"), SEEDS + RATES),
    "other numbers of steps, sizes of minibatches": (
        (), (("algorithm.local_steps=1",), ("algorithm.batch_size=0",), ("algorithm.batch_size=3",), ())
    ),
    "own models": (("algorithm.name=fedpbc",), SEEDS + RATES[:1]),  # more than are trained at once
    "unequal local steps": (
        ("algorithm.local_steps=[1, 4]", 'algorithm.local_steps_law="uniform"'),
        (*SEEDS[:2], ('algorithm.name="fednova"',), ('algorithm.name="scaffold"',), ("data.augment=true",)),
    ),
    "late updates": (
        ("participation.late_probability=0.5", "participation.late_rounds=[1, 2]"),
        (*SEEDS, ("participation.late_probability=0.0",), ('algorithm.name="fedprox"', "algorithm.mu=0.5"),
         ("participation.dropout=0.3", "algorithm.local_steps=2")),
    ),
    "other participation": (
        (), (
            ('participation.selection="all"',),
            ('participation.availability="bernoulli"', "participation.probability=0.15",
             'participation.selection="all"'),  # rounds without anybody
            ("participation.clients_per_round=1",),
            ('participation.selection="permutation"', "data.num_clients=6"),
        )
    ),
    "warm-up and none": ((), (("warmup.num_rounds=3", "warmup.local_lr=0.2"), ())),
    "methods": (
        (),
        tuple((f'algorithm.name="{name}"', "algorithm.amplify_every=3",
               f'participation.selection="{SELECTION_OF.get(name, "least-recent")}"') for name in METHODS
              if not name.startswith("wait")),
    ),
    "waiting": (
        ('participation.availability="periodic"', "participation.num_groups=3",
         "participation.rounds_per_group=1", "participation.clients_per_round=2"),
        (('algorithm.name="wait-minibatch"',), ('algorithm.name="wait-full"',), ()),
    ),
    "a method of the user's own": ((f'algorithm.name="{OWN}:Heavy"',), SEEDS + RATES[1:2]),
}  # fmt: skip


class Notes(Output):
    """Every row, x after every round, and how it ended."""

    takes_rows = True

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict]] = []
        self.trajectory: list[np.ndarray] = []
        self.status = ""

    def add(self, table, **row):
        """Without times, which differ."""
        kept = {key: np.array(v).tolist() for key, v in row.items() if not key.endswith("_s")}
        self.rows.append((table, kept))

    def after_round(self, simulation, *, checkpoint):
        """Called on all ranks."""
        self.trajectory.append(simulation.global_params.copy())

    def finish(self, simulation, outcome):
        """Called once."""
        self.status = outcome.status

    def assert_same(self, other: Notes, what: str) -> None:
        """Bit for bit."""
        assert self.status == other.status, what
        assert len(self.trajectory) == len(other.trajectory), what
        for t, (x, y) in enumerate(zip(self.trajectory, other.trajectory, strict=True)):
            assert np.array_equal(x, y, equal_nan=True), f"{what}: after round {t}"
        assert repr(self.rows) == repr(other.rows), what


def parse(shared: tuple[str, ...], own: tuple[str, ...]):
    """A config."""
    return validate.parse(BASE, "pack.toml", (*shared, *own))


def alone(comm, config) -> Notes:
    """A run by itself."""
    notes = Notes()
    Simulation(comm, config, torch.device("cpu")).run(notes)
    return notes


def together(comm, configs) -> tuple[list[Notes], list]:
    """All of them in lockstep; and what each returned, or the error that ended it."""
    pack, notes = make_pack(comm, configs, torch.device("cpu"), [None] * len(configs)), []
    runs: list[Generator] = []
    for simulation in pack:
        notes.append(Notes())
        runs.append(simulation.rounds(notes[-1]))
    return notes, in_lockstep(comm, pack[0].training, pack[0].clock, runs)


@pytest.mark.parametrize("name", PACKS)
def test_each_run_has_the_bits_that_it_has_alone(comm, name):
    """x after every round, all evaluations, all rows of the result file."""
    shared, each = PACKS[name]
    configs = [parse(shared, own) for own in each]
    notes, _ = together(comm, configs)
    for config, own, found in zip(configs, each, notes, strict=True):
        found.assert_same(alone(comm, config), f"{name}, {own}")
        assert found.status == "done"


def test_a_run_that_diverges_leaves_the_others_alone(comm):
    """It ends with its own status in its own round; the bits of the others are what they were."""
    each = (("run.seed=2",), ("algorithm.local_lr=1e36",), ("algorithm.local_lr=0.1",))
    shared = ('model.name="mlp"', "model.hidden=[9]")
    configs = [parse(shared, own) for own in each]
    notes, _ = together(comm, configs)
    assert [found.status for found in notes] == ["done", "diverged", "done"]
    for config, own, found in zip(configs, each, notes, strict=True):
        found.assert_same(alone(comm, config), str(own))


def test_runs_of_other_lengths(comm):
    """A short run ends; the others go on."""
    each = (("run.num_rounds=2",), ("run.num_rounds=7", "run.seed=3"), ("run.num_rounds=4", "run.seed=3"))
    configs = [parse((), own) for own in each]
    for config, own, found in zip(configs, each, together(comm, configs)[0], strict=True):
        found.assert_same(alone(comm, config), str(own))


@pytest.mark.parametrize("method", ["FailsInStep", "FailsAtTheEnd"])
def test_a_client_that_fails_ends_its_own_run(comm, method):
    """The error reaches that run alone, on all ranks."""
    each = (("run.seed=1",), (f'algorithm.name="{CODE}:{method}"',), ("run.seed=2",))
    configs = [parse((), own) for own in each]
    group = comm.split(0)  # as in a sweep; elsewhere an error on one rank ends the job
    notes, results = together(group, configs)
    group.free()
    assert isinstance(results[1], ClientError), results
    assert "ZeroDivisionError: in " in str(results[1])
    for place in (0, 2):
        notes[place].assert_same(alone(comm, configs[place]), str(place))


def test_other_models_are_refused(comm):
    """A user's function may build another model each time; such runs cannot be in one pack."""
    configs = [parse((f'model.name="{CODE}:growing_model"',), own) for own in SEEDS[:2]]
    with pytest.raises(PackError, match="other parameters"):
        make_pack(comm, configs, torch.device("cpu"), [None, None])
