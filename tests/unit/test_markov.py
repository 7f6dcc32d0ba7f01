"""Availability by a two-state chain: its stationary law, its memory, and going on from a state."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.config import ParticipationConfig
from fedmpi.errors import UserError
from fedmpi.participation.markov import Markov, rates_of
from tests.unit.test_chance import is_close, labels_of, presence
from tests.unit.test_participation import make


def chain(num_clients: int, seed: int = 1, labels=None, **who) -> Markov:
    """A chain with these keys."""
    return Markov(ParticipationConfig(availability="markov", **who), num_clients, seed, labels)


RATES = [(0.05, 0.2), (0.3, 0.1), (0.9, 0.8), (0.01, 0.01)]


@pytest.mark.parametrize(("to_active", "to_inactive"), RATES)
def test_every_round_has_the_stationary_law(to_active, to_inactive):
    """From round 0 on a share to_active / (to_active + to_inactive) is there: no run-in."""
    there = presence(chain(20_000, to_active=to_active, to_inactive=to_inactive), 20_000, 30)
    law = to_active / (to_active + to_inactive)
    for row in there:
        assert is_close(row.mean(), law, 20_000)


@pytest.mark.parametrize(("to_active", "to_inactive"), RATES)
def test_the_autocorrelation_is_geometric(to_active, to_inactive):
    """Correlation over k rounds is (1 - to_active - to_inactive)^k."""
    there = presence(chain(20_000, to_active=to_active, to_inactive=to_inactive), 20_000, 30)
    law = to_active / (to_active + to_inactive)
    deviation = there - law
    for lag in (1, 2, 5, 10):
        correlation = (deviation[lag:] * deviation[:-lag]).mean() / (law * (1 - law))
        assert abs(correlation - (1 - to_active - to_inactive) ** lag) < 0.025, f"lag {lag}"


def test_changes_have_their_rates():
    """Of those away a share to_active comes, of those there a share to_inactive leaves."""
    there = presence(chain(5000, to_active=0.05, to_inactive=0.2), 5000, 40)
    before, after = there[:-1], there[1:]
    assert is_close(after[~before].mean(), 0.05, int((~before).sum()))
    assert is_close((~after)[before].mean(), 0.2, int(before.sum()))


def test_each_client_has_its_own_rates():
    """Lists: a client that never leaves, one that never comes, one in between."""
    there = presence(chain(3, to_active=[0.5, 0.0, 0.2], to_inactive=[0.0, 0.5, 0.6]), 3, 20_000)
    assert there[:, 0].all()
    assert not there[:, 1].any()
    # Correlated rounds count for fewer: 0.25 * 0.75 * (1 + 0.2) / (1 - 0.2) / 20,000.
    assert abs(there[:, 2].mean() - 0.25) < 5 * np.sqrt(0.1875 * 1.5 / 20_000)


@pytest.mark.parametrize("limit", [0.05, 0.5, 1.0])
def test_rates_of_a_probability_keep_it_exactly(limit):
    """to_inactive = to_active (1/p - 1); where that exceeds 1, to_active is lowered instead."""
    p = np.array([0.0, 0.001, 0.02, 0.1, 0.5, 0.9, 1.0])
    to_active, to_inactive = rates_of(p, np.full(7, limit))
    assert (to_active >= 0).all()
    assert (to_active <= limit).all()
    assert (to_inactive >= 0).all()
    assert (to_inactive <= 1).all()
    assert np.allclose(to_active / (to_active + to_inactive), p, rtol=1e-12)
    is_free = p * 1 >= limit * (1 - p)
    assert (to_active[is_free] == limit).all()
    assert np.allclose(to_inactive[is_free], limit * (1 / p[is_free] - 1))


def test_probabilities_from_labels_become_stationary():
    """FedAU's chain: to_active 0.05, each client's share of rounds from its labels."""
    labels = labels_of(11, 10)
    available = chain(11, 4, labels, to_active=0.05, probability_from="labels")
    law = available.probability(0, np.arange(11))
    there = presence(available, 11, 60_000)
    # A round counts for about (1 + c) / (1 - c), c the correlation of neighbours: at most 39.
    assert (np.abs(there.mean(0) - law) < 5 * np.sqrt(law * (1 - law) * 39 / 60_000) + 1e-12).all()
    assert len(set(law.tolist())) > 2


@pytest.mark.parametrize("stop", [0, 1, 2, 17, 49])
def test_a_chain_goes_on_from_its_state(stop):
    """Stopped after any round, a fresh chain with the state gives the rest."""
    keys = {"to_active": 0.1, "to_inactive": 0.3}
    whole = presence(chain(40, **keys), 40, 60)
    before = chain(40, **keys)
    presence(before, 40, stop + 1)
    state = before.state()
    presence(before, 40, 5, first=stop + 1)  # the state is a copy
    after = chain(40, **keys)
    after.restore(state)
    assert (presence(after, 40, 59 - stop, first=stop + 1) == whole[stop + 1 :]).all()


def test_a_state_is_used_and_not_computed_again():
    """Going on costs one step: another state gives other rounds."""
    available = chain(1000, to_active=0.001, to_inactive=0.001)
    available.restore({"active": np.arange(1000) < 100, "round": np.array(10**9)})
    now = available.available(10**9 + 1)
    assert np.abs(len(now) - 100) < 10
    assert np.isin(np.arange(100), now).mean() > 0.9


def test_the_state_is_part_of_the_participation():
    """A checkpoint holds the chain beside the selection, and going on uses it."""
    who = {"availability": "markov", "to_active": 0.001, "to_inactive": 0.001}
    keys = who | {"selection": "permutation", "clients_per_round": 5}
    participation = make(1000, **keys)
    participation.weights(0)
    state = participation.state()
    assert set(state) == {"level", "front", "queue", "availability.active", "availability.round"}
    state |= {"availability.active": np.arange(1000) < 100, "availability.round": np.array(10**9)}
    after = make(1000, **keys)
    after.restore(10**9 + 1, state)
    assert after.available(10**9).tolist() == list(range(100))
    assert np.isin(after.weights(10**9 + 1)[0], after.available(10**9 + 1)).all()


def test_an_earlier_round_is_computed_again():
    """Rounds in any order, and skipped ones, are those of the ascending order."""
    keys = {"to_active": 0.2, "to_inactive": 0.3}
    whole = presence(chain(30, **keys), 30, 40)
    available = chain(30, **keys)
    for t in (39, 5, 6, 6, 30, 0):
        assert available.available(t).tolist() == np.flatnonzero(whole[t]).tolist()


def test_before_the_first_round_there_is_no_state():
    """A fresh chain has nothing to keep, and takes nothing up."""
    available = chain(5, to_active=0.5, to_inactive=0.5)
    assert available.state() == {}
    available.restore({})
    assert available.available(3).tolist() == chain(5, to_active=0.5, to_inactive=0.5).available(3).tolist()


def test_a_chain_that_never_moves_is_refused_where_n_comes_from_the_data():
    """No stationary law: the client is named."""
    with pytest.raises(UserError, match="client 1 has to_active = to_inactive = 0"):
        chain(3, to_active=[0.5, 0.0, 0.5], to_inactive=[0.5, 0.0, 0.5])
