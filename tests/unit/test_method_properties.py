"""What methods promise: FedAU's weights, least-recent selection, a method of the user's own."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.errors import ConfigError, UserError
from fedmpi.experiments.preview import table_lines
from fedmpi.methods import Method, Round, make_method
from fedmpi.participation import make_participation
from fedmpi.participation.selection import LeastRecent, MinimumSeparation, Uniform
from tests.support.configs import SMALL


def fedau_weights(present: np.ndarray, *overrides: str) -> np.ndarray:
    """w_n after these rounds; `present` is (rounds, clients)."""
    config = validate.parse(SMALL, "c.toml", ["algorithm.name=fedau", *overrides])
    count = present.shape[1]
    method = make_method(config, count)
    state = method.init(np.zeros(1))
    for t, row in enumerate(present):
        who, weights = method.participants(state, t, np.flatnonzero(row), np.ones(row.sum()))
        _, state = method.increment(state, Round(t, who, weights, 0.1, {"weighted_sum": np.zeros(1)}))
    everyone = np.arange(count)
    return count * method.participants(state, len(present), everyone, np.ones(count))[1]


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 1.0])
def test_fedau_weights_tend_to_one_over_p(p):
    """Bernoulli participation with a constant p: the mean interval is 1/p within 3 % over 60 clients."""
    present = np.random.default_rng(1).random((2_000, 60)) < p
    weights = fedau_weights(present)
    assert weights.mean() == pytest.approx(1 / p, rel=0.03)
    assert np.abs(weights * p - 1).max() < 0.5


def test_fedau_weights_by_hand():
    """Intervals 2, 1, 3 without cutoff; with K = 2 the last becomes 2 and 1, and absence is 2, 2, 2."""
    present = np.array([[0, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], bool).T
    assert fedau_weights(present).tolist() == [2.0, 1.0, 1.0]
    assert fedau_weights(present, "algorithm.cutoff=2").tolist() == [(2 + 1 + 2 + 1) / 4, 2.0, 1.0]


def test_fedau_with_cutoff_one_weighs_everybody_with_one():
    """K = 1 records nothing but ones."""
    present = np.random.default_rng(2).random((50, 9)) < 0.2
    assert fedau_weights(present, "algorithm.cutoff=1").tolist() == [1.0] * 9


def test_least_recent_never_skips():
    """Nobody who was available is passed over for one who took part later; S take part if so many can."""
    draws, selection = np.random.default_rng(3), LeastRecent(4, 20, seed=7)
    last = np.full(20, -1)
    for t in range(300):
        available = np.flatnonzero(draws.random(20) < 0.5)
        chosen = selection.select(t, available, 0)
        assert len(chosen) == min(4, len(available))
        assert (np.diff(chosen) > 0).all()
        assert set(chosen) <= set(available)
        left = np.setdiff1d(available, chosen)
        if len(left):
            assert last[chosen].max() <= last[left].min()
        last[chosen] = t


def test_least_recent_takes_everybody_in_turn():
    """With everybody available, N/S rounds see each client once."""
    selection = LeastRecent(3, 12, seed=1)
    for cycle in range(5):
        seen = [selection.select(4 * cycle + k, np.arange(12), 0) for k in range(4)]
        assert sorted(np.concatenate(seen)) == list(range(12))


def test_least_recent_can_be_resumed():
    """A participation restored after round 10 gives the rounds that the original gives."""
    overrides = ["participation.selection=least-recent", "run.num_rounds=30"]
    config = validate.parse(SMALL, "c.toml", overrides)
    original = make_participation(config, 7)
    for t in range(10):
        original.weights(t)
    resumed = make_participation(config, 7)
    resumed.restore(10, {name: value.copy() for name, value in original.state().items()})
    for t in range(10, 30):
        assert resumed.weights(t)[0].tolist() == original.weights(t)[0].tolist()


@pytest.mark.parametrize("wait", [1, 3, 9])
def test_minimum_separation_waits(wait):
    """Nobody comes again before R rounds have passed, and S come whenever so many may."""
    draws, selection = np.random.default_rng(3), MinimumSeparation(4, 20, 7, min_separation=wait)
    last = np.full(20, -100)
    for t in range(300):
        available = np.flatnonzero(draws.random(20) < 0.7)
        chosen = selection.select(t, available, 0)
        assert len(chosen) == min(4, np.count_nonzero(t - last[available] > wait))
        assert set(chosen) <= set(available)
        assert (t - last[chosen] > wait).all()
        last[chosen] = t


def test_minimum_separation_at_its_ends():
    """R = 0 is the uniform draw; R = N - 1 with S = 1 a fixed order of all clients, again and again."""
    free, uniform = MinimumSeparation(4, 20, 7, min_separation=0), Uniform(4, 20, 7)
    cyclic, everybody = MinimumSeparation(1, 6, 7, min_separation=5), np.arange(20)
    for t in range(30):
        assert free.select(t, everybody, 0).tolist() == uniform.select(t, everybody, 0).tolist()
    order = [int(cyclic.select(t, np.arange(6), 0)[0]) for t in range(24)]
    assert order == order[:6] * 4
    assert sorted(order[:6]) == list(range(6))


def test_minimum_separation_has_no_known_chance():
    """Weights by the probability are refused, with methods that estimate it; expected weights unknown."""
    overrides = ["participation.selection=minimum-separation", "participation.min_separation=1"]
    config = validate.parse(SMALL, "c.toml", overrides)
    assert make_participation(config, 7).expected(0) is None
    with pytest.raises(ConfigError, match="debiasing-fedavg"):
        validate.parse(SMALL, "c.toml", [*overrides, "participation.weighting=inverse-probability"])
    with pytest.raises(ConfigError, match="min_separation: missing"):
        validate.parse(SMALL, "c.toml", overrides[:1])


class Own(Method):
    """A method of the user's own."""

    tables = ("one", "two")


def test_a_users_class_is_a_method():
    """module:Class is imported; what is no Method is refused."""
    config = validate.parse(SMALL, "c.toml", ["algorithm.name=tests.unit.test_method_properties:Own"])
    assert make_method(config, 7).tables == ("one", "two")
    config = validate.parse(SMALL, "c.toml", ["algorithm.name=collections:OrderedDict"])
    with pytest.raises(UserError, match="expected a class derived from"):
        make_method(config, 7)


def test_check_states_the_memory_of_tables(monkeypatch):
    """Tables x owned clients x parameters x bytes, with a warning where there is no room; else no line."""
    config = validate.parse(SMALL, "c.toml", ["algorithm.name=scaffold"])
    monkeypatch.setattr("fedmpi.experiments.preview.available_bytes", lambda: 1_000_000)
    assert table_lines(config, Own(config, 7), 1_000, 2) == [
        "tables         a rank, once all clients took part: 2 x 4 clients x 1,000 parameters x 4 bytes "
        "= 32.0 kB (one, two)"
    ]
    (_, warning) = table_lines(config, Own(config, 7), 1_000_000, 1)
    assert "more than the 1.0 MB available" in warning
    assert table_lines(config, Method(config, 7), 1_000, 2) == []
