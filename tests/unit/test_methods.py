"""The server's steps of Algorithm 1, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from fedmpi.config import Config, validate
from fedmpi.methods import METHODS, ServerState, make_method
from tests.support.configs import ROOT, SELECTION_OF, SMALL


def config_with(eta: float = 1.0, interval: int = 1, warmup: int = 0) -> Config:
    """A config with this amplification factor, interval P and warm-up."""
    overrides = [
        "run.num_rounds=100",
        f"algorithm.amplification={eta}",
        f"algorithm.amplify_every={interval}",
        *([f"warmup.num_rounds={warmup}", "warmup.local_lr=0.1"] if warmup else []),
    ]
    return validate.parse(SMALL, "small.toml", overrides)


def frozen(*values: float) -> np.ndarray:
    """A vector that cannot be written to."""
    array = np.array(values)
    array.flags.writeable = False
    return array


def state_of(x: tuple[float, ...], u: tuple[float, ...], anchor_round: int = 0) -> ServerState:
    """A server state whose arrays cannot be written to."""
    return ServerState(frozen(*x), frozen(*u), anchor_round)


def values(state: ServerState) -> tuple[list[float], list[float], int]:
    """(x, u, t_0) for comparisons."""
    return state.global_params.tolist(), state.accumulated.tolist(), state.anchor_round


def test_a_run_starts_with_nothing_accumulated():
    """t_0 = 0 and u = 0, of the shape of x and in float64."""
    state = make_method(config_with(), 7).init(frozen(1.0, -2.0, 0.5))
    assert values(state) == ([1.0, -2.0, 0.5], [0.0, 0.0, 0.0], 0)
    assert state.accumulated.dtype == np.float64


@pytest.mark.parametrize(
    ("x", "weighted_sum", "expected"),
    [
        ((1.0, 2.0), (0.5, -1.0), [1.5, 1.0]),
        ((0.0, 0.0), (0.25, 0.0), [0.25, 0.0]),
        ((1.0, 2.0), (0.0, 0.0), [1.0, 2.0]),  # nobody took part
        ((1.0, 1e-5), (1e-12, 0.0), [1.000000000001, 1e-5]),  # far below float32's resolution
    ],
)
def test_update_adds_the_weighted_sum_to_x(x, weighted_sum, expected):
    """Line 9: x_{t+1} = x_t + sum_n q_t^n Delta_t^n; u and t_0 stay."""
    state = make_method(config_with(eta=10.0), 7).update(state_of(x, (7.0, 8.0), 3), frozen(*weighted_sum))
    assert values(state) == (expected, [7.0, 8.0], 3)


def test_accumulate_adds_the_weighted_sum_to_u():
    """Line 10: u = u + sum_n q_t^n Delta_t^n; x and t_0 stay."""
    state = make_method(config_with(eta=10.0), 7).accumulate(
        state_of((1.0, 2.0), (7.0, 8.0), 3), frozen(0.5, -1.0)
    )
    assert values(state) == ([1.0, 2.0], [7.5, 7.0], 3)


@pytest.mark.parametrize(
    ("eta", "expected"),
    [
        (10.0, [6.0, -8.0]),  # 1.5 + 9 * 0.5, 1 - 9 * 1
        (2.0, [2.0, 0.0]),
        (1.0, [1.5, 1.0]),
        (0.5, [1.25, 1.5]),  # 1.5 - 0.5 * 0.5, 1 + 0.5 * 1
    ],
)
def test_amplify_adds_eta_minus_one_times_u(eta, expected):
    """Line 12: x_{t+1} = x_{t+1} + (eta - 1) u; u and t_0 stay."""
    state = make_method(config_with(eta=eta), 7).amplify(state_of((1.5, 1.0), (0.5, -1.0), 3), 5)
    assert values(state) == (expected, [0.5, -1.0], 3)


def test_the_warmup_is_not_amplified():
    """Before the warm-up has ended, eta = 1; the round after it has the eta of the config."""
    method = make_method(config_with(eta=10.0, interval=3, warmup=4), 7)
    state = state_of((1.5,), (0.5,))
    assert [method.amplify(state, t).global_params.item() for t in range(6)] == [
        1.5,
        1.5,
        1.5,
        1.5,
        6.0,
        6.0,
    ]


def test_restart_begins_the_next_interval():
    """Lines 13-14: t_0 = t + 1 and u = 0; x stays."""
    state = make_method(config_with(interval=3), 7).restart(state_of((1.0, 2.0), (7.0, 8.0), 3), 5)
    assert values(state) == ([1.0, 2.0], [0.0, 0.0], 6)


@pytest.mark.parametrize(
    ("interval", "warmup", "ends"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (3, 0, [2, 5, 8, 11]),
        (5, 0, [4, 9]),
        (12, 0, [11]),
        (13, 0, []),
        (3, 4, [3, 6, 9]),  # t_0 restarts at the warm-up's end, round 4
        (3, 7, [6, 9]),  # the warm-up is one interval, however long
        (5, 1, [0, 5, 10]),
        (1, 4, [3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (4, 4, [3, 7, 11]),
        (3, 12, [11]),
        (3, 20, []),
    ],
)
def test_intervals_end_every_p_rounds_counted_from_the_end_of_the_warmup(interval, warmup, ends):
    """t + 1 - t_0 = P after the warm-up; the warm-up itself is one interval."""
    method = make_method(config_with(eta=10.0, interval=interval, warmup=warmup), 7)
    state, found = method.init(frozen(0.0)), []
    for t in range(12):
        if method.interval_ends(state, t):
            found.append(t)
            state = method.restart(state, t)
    assert found == ends


@pytest.mark.parametrize(
    ("eta", "interval", "warmup", "expected"),
    [
        # The weighted sum of every round is 1; x after each of seven rounds.
        (1.0, 3, 0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),  # FedAvg
        (10.0, 3, 0, [1.0, 2.0, 30.0, 31.0, 32.0, 60.0, 61.0]),  # 3 + 9 * 3 = 30, 33 + 27 = 60
        (10.0, 1, 0, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]),  # two-sided learning rates
        (0.5, 2, 0, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0]),  # damped: 2 - 0.5 * 2 = 1
        (10.0, 3, 2, [1.0, 2.0, 3.0, 4.0, 32.0, 33.0, 34.0]),  # 5 + 9 * 3 = 32: without the warm-up's u
        (10.0, 2, 7, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    ],
)
def test_seven_rounds_by_hand(eta, interval, warmup, expected):
    """The steps in the order of Algorithm 1 give the x_t worked out by hand."""
    method = make_method(config_with(eta, interval, warmup), 7)
    state, found = method.init(frozen(0.0)), []
    for t in range(7):
        state = method.accumulate(method.update(state, frozen(1.0)), frozen(1.0))
        if method.interval_ends(state, t):
            state = method.restart(method.amplify(state, t), t)
        found.append(state.global_params.item())
    assert found == expected


def test_no_step_changes_the_state_it_is_given():
    """Every step returns a new record; the arrays of the old one keep their numbers."""
    method = make_method(config_with(eta=10.0), 7)
    old, weighted_sum = ServerState(np.array([1.0, 2.0]), np.array([3.0, 4.0]), 5), np.array([0.5, 0.25])
    for new in (
        method.update(old, weighted_sum),
        method.accumulate(old, weighted_sum),
        method.amplify(old, 7),
        method.restart(old, 7),
    ):
        assert new is not old
        assert values(new) != values(old)
        assert values(old) == ([1.0, 2.0], [3.0, 4.0], 5)
        assert weighted_sum.tolist() == [0.5, 0.25]


def test_x_and_u_do_not_share_memory():
    """What is accumulated is not a view of the model, at the start and after a restart."""
    method = make_method(config_with(), 7)
    state = method.init(np.array([1.0, 2.0]))
    for now in (state, method.restart(state, 0)):
        assert not np.shares_memory(now.global_params, now.accumulated)


def test_the_state_is_frozen():
    """A field of the state cannot be assigned."""
    state = make_method(config_with(), 7).init(frozen(1.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.anchor_round = 3


CLASSES = {
    "fedavg": "GeneralizedFedAvg", "fedavgm": "FedAvgM", "fedadam": "FedAdam", "fedyogi": "FedYogi",
    "fedau": "FedAU", "fedprox": "FedProx", "fedvarp": "FedVarp", "focus": "Focus", "mifa": "Mifa",
    "fedlaavg": "FedLaAvg", "scaffold": "Scaffold", "amplified-scaffold": "AmplifiedScaffold",
    "wait-minibatch": "WaitMinibatch", "wait-full": "WaitFull", "fedstale": "FedStale",
    "debiasing-fedavg": "DebiasingFedAvg", "fedexp": "FedExP", "feddyn": "FedDyn",
    "fedawe": "FedAwe", "fedpbc": "FedPbc",
    "f3ast": "F3ast", "ca-fed": "CaFed", "mimelite": "MimeLite", "fednova": "FedNova",
}  # fmt: skip
NEEDED = {
    **{name: [f"participation.selection={selection}"] for name, selection in SELECTION_OF.items()},
    "wait-minibatch": ["algorithm.wait_rounds=3"],
    "wait-full": ["algorithm.wait_rounds=3"],
}


def test_every_method_has_its_class():
    """No name is missing from the registry, or stands for another method's class."""
    assert {name: kind.__name__ for name, kind in METHODS.items()} == CLASSES


@pytest.mark.parametrize("name", CLASSES)
def test_the_method_is_chosen_by_name(name):
    """`algorithm.name` makes a method of the class that is registered under it."""
    changes = [f"algorithm.name={name}", *NEEDED.get(name, [])]
    method = make_method(validate.parse(SMALL, "small.toml", changes), 7)
    assert type(method).__name__ == CLASSES[name]


def test_reading_and_planning_need_neither_mpi_nor_torch():
    """With mpi4py barred, methods, participation, rng, config and reader import, and torch stays out."""
    code = """
import sys
sys.modules["mpi4py"] = None  # any import of it raises ImportError
import fedmpi, fedmpi.participation, fedmpi.methods, fedmpi.data.rng, fedmpi.storage.reader
import fedmpi.config, fedmpi.config.validate, fedmpi.errors
config = fedmpi.config.validate.load("configs/fashion-amplified.toml")
clients, weights = fedmpi.participation.make_participation(config, 250).weights(0)
fedmpi.methods.make_method(config, 7)
print(len(clients), "torch" in sys.modules)
"""
    job = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert job.stderr == ""
    assert job.stdout == "10 False\n"
