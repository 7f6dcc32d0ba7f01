"""Availability by chance, drawn afresh each round: the law of each kind, with fixed seeds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmpi.config import ParticipationConfig
from fedmpi.data.partition import ClientLabels, Partition
from fedmpi.errors import UserError
from fedmpi.participation import make_participation
from fedmpi.participation.availability import Availability
from fedmpi.participation.composition import make_availability
from fedmpi.participation.probabilities import draw_clients
from tests.unit.test_participation import config_of, counts, make, rounds

PROBABILITIES = [0.0, 0.01, 0.1, 0.5, 0.9, 1.0]


def available_of(
    num_clients: int, seed: int = 1, labels: ClientLabels | None = None, **who
) -> Availability:
    """The availability with these keys."""
    return make_availability(ParticipationConfig(**who), num_clients, seed, labels)


def presence(available: Availability, num_clients: int, count: int, first: int = 0) -> np.ndarray:
    """(rounds, clients): who is there."""
    matrix = np.zeros((count, num_clients), bool)
    for t in range(count):
        ids = available.available(first + t)
        assert (np.diff(ids) > 0).all(), f"round {t}: not ascending, or a client twice"
        matrix[t, ids] = True
    return matrix


def is_close(share: np.ndarray | float, law: np.ndarray | float, draws: int) -> bool:
    """Within five standard deviations of a mean of independent draws."""
    return bool(np.all(np.abs(share - law) <= 5 * np.sqrt(law * (1 - np.asarray(law)) / draws) + 1e-12))


# --- Drawing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("highest", [0.015, 0.5], ids=["few drawn", "all asked"])
def test_clients_are_drawn_independently_with_their_probability(highest):
    """Both ways of drawing: each client at its own rate, pairs at the product, counts as a sum of coins."""
    law = highest * np.array([1.0, 0.5, 0.1, 0.0, 1.0, 1.0])
    draws = np.random.default_rng(1)
    matrix = np.zeros((40_000, 6))
    for row in matrix:
        row[draw_clients(draws, 6, highest, law.__getitem__)] = 1
    assert is_close(matrix.mean(0), law, 40_000)
    assert is_close((matrix[:, 0] * matrix[:, 4]).mean(), law[0] * law[4], 40_000)
    spread = matrix.sum(1).var()
    assert abs(spread - (law * (1 - law)).sum()) < 0.03 * spread + 0.003


# --- Bernoulli ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_bernoulli_has_its_probability_in_every_client_and_round(probability):
    """Over 4,000 rounds of 30 clients: each client's share, and independence from round to round."""
    there = presence(available_of(30, availability="bernoulli", probability=probability), 30, 4000)
    assert is_close(there.mean(0), probability, 4000)
    assert is_close(there.mean(), probability, 120_000)
    assert is_close((there[1:] & there[:-1]).mean(), probability**2, 110_000)


def test_bernoulli_with_a_list_gives_each_client_its_own():
    """A probability per client."""
    there = presence(available_of(6, availability="bernoulli", probability=PROBABILITIES), 6, 8000)
    assert is_close(there.mean(0), np.array(PROBABILITIES), 8000)


@pytest.mark.parametrize(
    "who",
    [
        {"availability": "bernoulli", "probability": 0.01},
        {"availability": "bernoulli", "probability": 0.5},
        {"availability": "markov", "to_active": 0.3, "to_inactive": 0.3},
        {"availability": "sinusoidal", "probability": 0.5, "amplitude": 0.2, "rounds_per_day": 10.0},
        {"availability": "periodic", "num_groups": 2, "rounds_per_group": 5, "probability": 0.5},
        {"availability": "non-stationary", "probability": 0.5, "shape": "sine"},
    ],
    ids=lambda who: who["availability"],
)
def test_seeds_are_independent_and_asking_again_changes_nothing(who):
    """Two seeds agree no more than chance; one seed agrees with itself, in any order of rounds."""
    first, second = (presence(available_of(100, seed, **who), 100, 400) for seed in (1, 2))
    if who["availability"] != "periodic":  # where a whole group is away with any seed
        mean = (first.mean(0) + second.mean(0)) / 2
        product = ((first - mean) * (second - mean)).mean()
        assert abs(product) < 5 * mean.mean() / np.sqrt(400 * 100 / 4)
    assert (first != second).any()
    again = available_of(100, 1, **who)
    for t in [0, 7, 7, 3, 399, 12]:
        assert np.flatnonzero(first[t]).tolist() == again.available(t).tolist()
        assert again.available(t) is again.available(t)


def test_the_same_set_is_the_same_array():
    """A selection tells by identity that nothing changed: also when a draw gives the same clients."""
    available = available_of(3, availability="bernoulli", probability=0.5)
    sets = [available.available(t) for t in range(200)]
    same = [a is b for a, b in itertools.pairwise(sets)]
    assert same == [a.tolist() == b.tolist() for a, b in itertools.pairwise(sets)]
    assert 10 < sum(same) < 50  # one in eight


def test_permutation_is_even_while_the_set_changes_by_chance():
    """Half of 50 are there, 10 are taken: counts differ less than half as much as independent draws."""
    who = {"availability": "bernoulli", "probability": 0.5, "clients_per_round": 10}
    spread = {
        selection: counts(rounds(make(50, selection=selection, **who), 1000), 50).std()
        for selection in ("permutation", "uniform")
    }
    independent = np.sqrt(1000 * 0.2 * 0.8)
    assert spread["permutation"] < 0.5 * independent
    assert abs(spread["uniform"] - independent) < 0.4 * independent


# --- Sinusoidal ---------------------------------------------------------------------------------------

DAY = {"availability": "sinusoidal", "probability": 0.4, "amplitude": 0.3, "rounds_per_day": 20.0}


def test_a_day_in_one_place_follows_the_sine():
    """Without spread all clients have p(t) = 0.4 + 0.3 sin(2 pi t / 20), day after day."""
    there = presence(available_of(2000, phase_spread=0.0, **DAY), 2000, 100)
    law = 0.4 + 0.3 * np.sin(2 * np.pi * np.arange(20) / 20)
    assert is_close(there.reshape(5, 20, 2000).mean((0, 2)), law, 10_000)


def test_phases_are_strewn_over_the_day():
    """With all time zones as many are there at any hour, yet each client has its own rhythm."""
    available = available_of(4000, **DAY)
    there = presence(available, 4000, 200)
    assert (np.abs(there.mean(1) - 0.4) < 0.05).all()
    swing = there.reshape(10, 20, 4000).mean(0)
    own = np.abs(np.fft.fft(swing, axis=0)[1]) / 10  # amplitude of each client, with noise
    assert abs(np.sqrt(np.mean(own**2)) - 0.3) < 0.12
    probabilities = np.array([available.probability(t, np.arange(4000)) for t in range(20)])
    assert np.allclose(probabilities.mean(0), 0.4)
    assert np.allclose(np.ptp(probabilities, axis=0), 0.6, atol=0.01)


def test_a_day_is_cut_to_what_a_probability_can_be():
    """A mean of 0.1 with a swing of 1 is never below 0 nor above 1."""
    available = available_of(50, **DAY | {"probability": 0.1, "amplitude": 1.0})
    law = np.array([available.probability(t, np.arange(50)) for t in range(20)])
    assert law.min() == 0
    assert law.max() == 1


# --- Groups that take turns, with members who may stay away -------------------------------------------


def test_members_are_there_by_chance_in_their_turn_only():
    """Three groups, turns of 4 rounds: members with probability 0.3, the others never."""
    turns = {"availability": "periodic", "num_groups": 3, "rounds_per_group": 4}
    available = available_of(30, probability=0.3, **turns)
    there = presence(available, 30, 6000)
    whole = presence(available_of(30, **turns), 30, 6000)
    assert not (there & ~whole).any()
    assert is_close(there[whole].mean(), 0.3, 60_000)
    everybody = np.arange(30)
    assert available.probability(5, everybody).tolist() == [0.0] * 10 + [0.3] * 10 + [0.0] * 10
    assert [available.turn(t) for t in (0, 3, 4, 12)] == [0, 0, 1, 3]


def test_members_who_are_always_there_are_the_plain_groups():
    """probability = 1 is periodic without it."""
    turns = {"availability": "periodic", "num_groups": 3, "rounds_per_group": 4, "random_offset": True}
    certain, sure = available_of(10, **turns), available_of(10, probability=1.0, **turns)
    for t in range(40):
        assert certain.available(t).tolist() == sure.available(t).tolist()


# --- Probabilities from labels ------------------------------------------------------------------------


def labels_of(num_clients: int, num_classes: int) -> ClientLabels:
    """Client n has two samples of label n mod L and one of the next label; the last client has none."""
    client_of = np.repeat(np.arange(num_clients - 1), 3)
    labels = (client_of + np.tile([0, 0, 1], num_clients - 1)) % num_classes
    return ClientLabels(Partition.from_clients(client_of, num_clients), labels, num_classes)


def test_the_mean_over_a_clients_labels():
    """(2 a + b) / 3 for two samples of one label and one of the next; 0 without samples."""
    means = labels_of(5, 3).means(np.array([3.0, 6.0, 12.0]))
    assert means.tolist() == [4.0, 8.0, 9.0, 4.0, 0.0]


@pytest.mark.parametrize("keys", [{}, {"mean_probability": 0.3, "min_probability": 0.05}], ids=str)
def test_probabilities_from_labels_are_those_of_fedau(keys):
    """p_n = clip(mean * L * sum_l share_l r_l, min, 1), with r a draw that sums to one."""
    mean, least = keys.get("mean_probability", 0.1), keys.get("min_probability", 0.02)
    labels = labels_of(11, 10)
    who = {"availability": "bernoulli", "probability_from": "labels"} | keys
    seen = []
    for seed in range(300):
        p = available_of(11, seed, labels, **who).probability(0, np.arange(11))
        assert p.min() >= least
        assert p.max() <= 1
        assert p[10] == least  # nothing to go by
        seen.append(p)
    # Where no limit cuts, neighbours share labels: with r solved from p the shares sum to one.
    free = available_of(
        11, 3, labels, **who | {"min_probability": 1e-12, "label_concentration": 5.0}
    ).probability(0, np.arange(10))
    assert abs(free.sum() / 10 - mean) < 1e-9
    assert len({tuple(p) for p in seen}) == 300
    cut = np.mean(np.array(seen)[:, :10] == least)
    assert 0.2 < cut < 0.9  # concentration 0.1 leaves most labels with next to nothing


def test_labels_that_nobody_knows_are_a_user_error():
    """Without the data there is no label mix."""
    with pytest.raises(UserError, match="no labels are known"):
        available_of(5, availability="bernoulli", probability_from="labels")


@pytest.mark.parametrize("key", ["probability", "to_active", "to_inactive"])
def test_a_list_of_the_wrong_length_is_refused_where_n_comes_from_the_data(key):
    """The natural partition knows N only when the data are read."""
    who = {"availability": "markov", "to_active": 0.5, "to_inactive": 0.5} | {key: [0.1, 0.2]}
    if key == "probability":
        who = {"availability": "bernoulli", key: [0.1, 0.2]}
    with pytest.raises(UserError, match=rf"participation.{key}: 2 numbers for 5 clients; expected one"):
        available_of(5, **who)


# --- Weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "who",
    [
        {"availability": "bernoulli", "probability": [0.1, 0.2, 0.5, 0.8, 1.0]},
        {"availability": "markov", "to_active": [0.1, 0.2, 0.5, 0.8, 1.0], "to_inactive": 0.4},
        {"availability": "sinusoidal", "probability": 0.5, "amplitude": 0.4, "rounds_per_day": 7},
        {"availability": "non-stationary", "probability": 0.9, "shape": "staircase"},
        {"selection": "uniform", "clients_per_round": 2},
        {"selection": "permutation", "clients_per_round": 2},
    ],
    ids=str,
)
def test_inverse_probability_weights_are_one_over_n_on_average(who):
    """The mean of q over 20,000 rounds is 1/N for each client, however seldom it comes."""
    participation = make(5, weighting="inverse-probability", **who)
    total = np.zeros(5)
    for t in range(20_000):
        clients, weights = participation.weights(t)
        total[clients] += weights
    assert (np.abs(total / 20_000 - 0.2) < 0.02).all()


def test_inverse_probability_weights_by_hand():
    """q = 1 / (N p): for p = 0.25 of 4 clients 1, for 2 taken of 4 certain ones 1/2, in groups of 2 1/4."""
    q = make(4, availability="bernoulli", probability=0.25, weighting="inverse-probability")
    assert {w for t in range(50) for w in q.weights(t)[1].tolist()} == {1.0}
    q = make(4, selection="uniform", clients_per_round=2, weighting="inverse-probability")
    assert q.weights(3)[1].tolist() == [0.5, 0.5]
    turns = {"availability": "periodic", "num_groups": 2, "rounds_per_group": 3}
    q = make(4, weighting="inverse-probability", **turns)
    assert q.weights(4)[1].tolist() == [0.25, 0.25]
    q = make(4, weighting="inverse-probability", selection="permutation", clients_per_round=1, **turns)
    assert q.weights(4)[1].tolist() == [0.5]


# --- A million clients --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ({"availability": "bernoulli", "probability": 0.001}, 1000),
        ({"availability": "bernoulli", "probability": 0.3}, 300_000),
        ({"availability": "markov", "to_active": 0.001, "to_inactive": 0.009}, 100_000),
        (
            {"availability": "sinusoidal", "probability": 0.1, "amplitude": 0.1, "rounds_per_day": 9},
            100_000,
        ),
        (
            {"availability": "periodic", "num_groups": 4, "rounds_per_group": 2, "probability": 0.1},
            25_000,
        ),
    ],
    ids=lambda who: who["availability"] if isinstance(who, dict) else "",
)
def test_a_million_clients_are_no_burden(who, expected):
    """Twenty rounds of a million clients, 10 taken in each; as many available as the law says."""
    config = config_of(10**6, selection="uniform", clients_per_round=10, **who)
    participation = make_participation(config, 10**6)
    for t in range(20):
        assert len(participation.weights(t)[0]) == 10
        assert abs(len(participation.available(t)) - expected) < 5 * np.sqrt(expected)


# --- Cyclic -------------------------------------------------------------------------------------------


def fedau_cycle(switch: int, active: int, inactive: int, rounds: int) -> list[bool]:
    """FedAU's WorkerSampler (its util.py): absent for `switch` rounds, then a state that flips."""
    there, seen = False, []
    for _ in range(rounds):
        if switch == 0:
            there = not there
            switch = active if there else inactive
        switch -= 1
        seen.append(there)
    return seen


@pytest.mark.parametrize("cycle", [100, 7])
def test_cyclic_is_that_of_fedau(cycle):
    """Every client's rounds are those of the authors' counter, whatever its stretch, for three cycles."""
    chances = np.linspace(0.02, 0.9, 60).tolist()
    who = available_of(60, availability="cyclic", cycle_rounds=cycle, probability=chances)
    seen = presence(who, 60, 3 * cycle)
    for client, p in enumerate(chances):
        active = max(1, int(np.round(cycle * p)))
        first = int(np.flatnonzero(seen[:, client])[0])
        assert seen[:, client].tolist() == fedau_cycle(first, active, cycle - active, 3 * cycle)
        assert 0 <= first < cycle - active
        assert who.probability(0, np.array([client]))[0] == active / cycle


def test_phases_of_a_cycle_are_spread_evenly():
    """The stretch begins in every round of the absence alike; everybody is there once in a cycle."""
    who = available_of(20_000, availability="cyclic", cycle_rounds=10, probability=0.3)
    matrix = presence(who, 20_000, 10)
    begins = np.bincount(matrix.argmax(axis=0), minlength=7) / 20_000
    assert is_close(begins, 1 / 7, 20_000)
    assert (matrix.sum(axis=0) == 3).all()
    assert (presence(who, 20_000, 10, first=990) == matrix).all()


def test_extreme_shares_of_a_cycle():
    """Certain clients are always there, impossible ones never, and a small chance is one round."""
    who = available_of(3, availability="cyclic", cycle_rounds=10, probability=[1.0, 0.0, 0.001])
    assert presence(who, 3, 20).sum(axis=0).tolist() == [20, 0, 2]
