"""Keys of methods that choose clients, and of unequal local steps: what is refused, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.data.local_steps import LocalSteps
from fedmpi.errors import ConfigError, UserError
from fedmpi.methods import make_method
from fedmpi.methods.ca_fed import CaFed
from tests.support.configs import SMALL

CA_FED = ["algorithm.name=ca-fed", "participation.selection=all"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["algorithm.local_steps=[1, 2]"], "2 numbers for data.num_clients = 7"),
        (["algorithm.local_steps_law=uniform"], "needs [least, most], such as [2, 8]"),
        (["algorithm.local_steps=[3, 2]", "algorithm.local_steps_law=uniform"], "[3, 2]: local_steps_law"),
        (["algorithm.local_steps=[1, 2, 3]", "algorithm.local_steps_law=uniform"], "needs [least, most]"),
        (["algorithm.local_steps=[0, 2]"], "expected an integer >= 1, or a list of integers >= 1"),
        (["algorithm.local_steps=[]"], "expected an integer >= 1, or a list of integers >= 1"),
        (["algorithm.local_steps=2.5"], "expected an integer >= 1, or a list of integers >= 1"),
        (["algorithm.local_steps_law=normal"], 'expected one of "given", "uniform"'),
        (["algorithm.name=f3ast"], 'itself chooses among all who are available; expected "by-method"'),
        (["algorithm.name=ca-fed"], 'and how many; expected "all"'),
        (["participation.selection=by-method"], '"by-method" needs a method that chooses'),
        (
            [
                "algorithm.name=f3ast",
                "participation.selection=by-method",
                "participation.clients_per_round=9",
            ],
            "9 exceeds data.num_clients = 7",
        ),
    ],
)
def test_refused_in_words(changes, words):
    """Each mistake is one sentence with what would do."""
    with pytest.raises(ConfigError) as error:
        validate.parse(SMALL, "c.toml", changes)
    assert words in str(error.value)


def test_ca_fed_asks_the_most_correlated_first_then_the_least_available(monkeypatch):
    """Two passes over all clients, in these orders, whatever the losses are."""
    method = make_method(validate.parse(SMALL, "c.toml", CA_FED), 7)
    orders, state = [], method.init(np.zeros(3))
    once = CaFed._without
    monkeypatch.setattr(
        CaFed,
        "_without",
        lambda self, q, order, *rest: (orders.append(order), once(self, q, order, *rest))[1],
    )
    # Client 0 is always there, 1 in every second round, 2 in stretches of four, all others never.
    for t in range(24):
        there = [n for n, comes in enumerate((True, t % 2 == 0, t // 4 % 2 == 0)) if comes]
        state = method.notice(state, t, np.array(there), np.ones(len(there)))
    by_correlation, by_availability = (order.tolist() for order in orders[-2:])
    assert by_correlation[0] == 1  # it changes in every round: lambda near -1
    assert by_correlation.index(2) == 1  # 0.75 of its states stay
    assert by_availability[-1] == 0
    assert set(by_availability[:4]) == {3, 4, 5, 6}


def test_as_many_steps_as_clients_where_only_the_data_tell_how_many():
    """A data set may know N; then the list is counted when the run begins."""
    config = validate.parse(SMALL, "c.toml", ["algorithm.local_steps=[1, 2, 3, 4, 5, 6, 7]"])
    with pytest.raises(UserError, match="7 numbers for 3 clients; expected one for each"):
        LocalSteps(config, 3)


def test_drawn_steps_are_addressed():
    """Between least and most, each as often, and the same for a client whoever else is asked for."""
    changes = ["algorithm.local_steps=[2, 5]", "algorithm.local_steps_law=uniform"]
    steps = LocalSteps(validate.parse(SMALL, "c.toml", changes), 7)
    everybody = np.array([steps.of(t, np.arange(7)) for t in range(600)])
    counts = np.bincount(everybody.ravel(), minlength=7)
    assert counts[[0, 1, 6]].sum() == 0
    np.testing.assert_allclose(counts[2:6] / everybody.size, 0.25, atol=0.03)
    assert [steps.of(t, np.array([4, 1])).tolist() for t in range(9)] == everybody[:9, [4, 1]].tolist()
