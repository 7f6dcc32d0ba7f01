"""`weights(t)` asked again or for an earlier round: the same answer or an error, never another answer."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from fedmpi.config import Config, validate
from fedmpi.participation import Participation, make_participation

CLIENTS, ROUNDS = 30, 40
TEXT = """
[run]
num_rounds = 40
[data]
dataset = "synthetic"
num_clients = 30
train_samples = 300
test_samples = 10
shape = [1, 2, 2]
partition = "iid"
[model]
name = "logistic"
[algorithm]
local_lr = 0.1
local_steps = 1
"""
AVAILABILITIES = {
    "always": {},
    "periodic": {"availability": "periodic", "num_groups": 3, "rounds_per_group": 5},
    "perhaps": {"availability": "periodic", "num_groups": 3, "rounds_per_group": 5, "probability": 0.6},
    "bernoulli": {"availability": "bernoulli", "probability": 0.4},
    "markov": {"availability": "markov", "to_active": 0.1, "to_inactive": 0.2},
    "sinusoidal": {"availability": "sinusoidal", "probability": 0.4, "amplitude": 0.4, "rounds_per_day": 9},
    "non-stationary": {"availability": "non-stationary", "probability": 0.5, "shape": "staircase"},
    "outages": {
        "availability": "outages",
        "probability": 0.6,
        "outage_groups": 3,
        "outage_probability": 0.4,
    },
    "cyclic": {"availability": "cyclic", "probability": 0.4, "cycle_rounds": 11},
    "trace": {"availability": "trace", "trace": "trace.csv", "trace_period": 12},
    "function": {"availability": "who_comes:some"},
}
STATELESS = {"all": {"selection": "all"}, "uniform": {"selection": "uniform", "clients_per_round": 4}}
WITH_STATE = {
    "permutation": {"selection": "permutation", "clients_per_round": 4},
    "least-recent": {"selection": "least-recent", "clients_per_round": 4},
    "minimum-separation": {"selection": "minimum-separation", "clients_per_round": 4, "min_separation": 2},
}
Answer = tuple[np.ndarray, np.ndarray]


def some(t: int, num_clients: int, seed: int) -> list[int]:
    """Another set every five rounds."""
    return [n for n in range(num_clients) if (n + t // 5) % 3]


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch) -> None:
    """A trace and a schedule in the folder of the test, and a function of a user."""
    rows = [f"{n},{n % 7},{n % 7 + 4}" for n in range(CLIENTS)]
    Path(tmp_path / "trace.csv").write_text("\n".join(["client,start,end", *rows]))
    rows = [f"{t},{n},0.25" for t in range(ROUNDS) for n in range(t % 5, t % 5 + 4)]
    Path(tmp_path / "schedule.csv").write_text("\n".join(["round,client,weight", *rows]))
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("who_comes")
    module.some = some
    monkeypatch.setitem(sys.modules, module.__name__, module)


@functools.cache
def parsed(*overrides: str) -> Config:
    """The config with this participation."""
    return validate.parse(TEXT, "c.toml", overrides)


def make(availability: str, selection: dict[str, object]) -> Participation:
    """A fresh participation."""
    who = AVAILABILITIES[availability] | selection
    return make_participation(parsed(*(f"participation.{k}={v}" for k, v in who.items())), CLIENTS)


def bits(answer: Answer) -> list[bytes]:
    """An answer that can be compared, and that later writes do not change."""
    return [array.tobytes() for array in answer]


def in_order(participation: Participation, first: int = 0) -> list[list[bytes]]:
    """The rounds from `first` on, each asked for once."""
    return [bits(participation.weights(t)) for t in range(first, ROUNDS)]


every_availability = pytest.mark.parametrize("availability", AVAILABILITIES)
every_state = pytest.mark.parametrize("selection", WITH_STATE.values(), ids=WITH_STATE)
every_selection = pytest.mark.parametrize(
    "selection", [*STATELESS.values(), *WITH_STATE.values()], ids=[*STATELESS, *WITH_STATE]
)


@every_selection
@every_availability
def test_the_same_round_again_is_the_same_answer(availability, selection):
    """Each round asked for three times: the bits of rounds asked for once, and the state is no other."""
    once = in_order(make(availability, selection))
    participation = make(availability, selection)
    again = []
    for t in range(ROUNDS):
        again.append(bits(participation.weights(t)))
        state = {name: value.copy() for name, value in participation.state().items()}
        assert bits(participation.weights(t)) == bits(participation.weights(t)) == again[t]
        assert state.keys() == participation.state().keys()
        assert all(np.array_equal(value, participation.state()[name]) for name, value in state.items())
    assert again == once


@every_state
@every_availability
def test_an_earlier_round_is_an_error(availability, selection):
    """A selection that depends on the rounds before refuses, and goes on as if nobody had asked."""
    once = in_order(make(availability, selection))
    participation = make(availability, selection)
    for t in range(ROUNDS):
        assert bits(participation.weights(t)) == once[t]
        for earlier in {0, t // 2, t - 1} - {t, -1}:
            with pytest.raises(RuntimeError, match=rf"weights\({earlier}\) asked for after round {t}: "):
                participation.weights(earlier)
        assert bits(participation.weights(t)) == once[t]


@pytest.mark.parametrize("selection", STATELESS.values(), ids=STATELESS)
@every_availability
def test_any_order_where_rounds_do_not_depend_on_each_other(availability, selection):
    """Without a state every order is allowed."""
    once = in_order(make(availability, selection))
    participation = make(availability, selection)
    for t in [7, 7, 3, 39, 0, 0, 21, 20]:
        assert bits(participation.weights(t)) == once[t]


def test_a_schedule_may_be_asked_in_any_order():
    """It is a table."""
    selection = {"selection": "schedule", "schedule": "schedule.csv"}
    once = in_order(make("always", selection))
    participation = make("always", selection)
    for t in [7, 7, 3, 39, 0]:
        assert bits(participation.weights(t)) == once[t]


@every_selection
@every_availability
@pytest.mark.parametrize("t", [1, 5, 17])
def test_the_same_holds_after_a_restore(availability, selection, t):
    """A restored object refuses rounds before its checkpoint, and repeats those that it has answered."""
    once = in_order(make(availability, selection))
    before = make(availability, selection)
    for earlier in range(t):
        before.weights(earlier)
        before.weights(earlier)  # a state taken after a second question is that of one
    state = {name: value.copy() for name, value in before.state().items()}
    after = make(availability, selection)
    after.restore(t, state)
    if selection in WITH_STATE.values():
        for earlier in (0, t - 1):
            with pytest.raises(
                RuntimeError, match=rf"weights\({earlier}\) asked for after round {t - 1}: "
            ):
                after.weights(earlier)
    for now in range(t, ROUNDS):
        assert bits(after.weights(now)) == bits(after.weights(now)) == once[now]


@every_state
@every_availability
def test_a_used_object_is_restored(availability, selection):
    """Restoring forgets the answer given last: the same round is then asked of the restored state."""
    used, before = make(availability, selection), make(availability, selection)
    for t in range(5):
        before.weights(t)
    state = {name: value.copy() for name, value in before.state().items()}
    once = in_order(before, first=5)
    for t in range(20):
        used.weights(t)
    used.restore(5, state)
    assert in_order(used, first=5) == once


def test_a_repeated_question_costs_nothing():
    """The answer is remembered, not copied or computed."""
    participation = make("always", WITH_STATE["permutation"])
    assert participation.weights(3) is participation.weights(3)
