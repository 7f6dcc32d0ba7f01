"""P observed from how long clients take to come back (algorithm.amplify_law = "observed")."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.methods import returns
from fedmpi.participation import make_participation
from tests.support.configs import SMALL

TURNS = (
    'availability = "periodic"\nnum_groups = 5\nrounds_per_group = {}\nrandom_offset = true\n'
    'selection = "{}"\nclients_per_round = {}'
)


def rounds_of(participation: str, count: int, num_clients: int) -> list[np.ndarray]:
    """Who takes part in the first rounds."""
    text = SMALL.replace("num_clients = 7", f"num_clients = {num_clients}")
    text = text.replace('selection = "uniform"\nclients_per_round = 3', participation)
    model = make_participation(validate.parse(text, "c.toml"), num_clients)
    return [model.weights(t)[0] for t in range(count)]


def observed(rounds: list[np.ndarray], num_clients: int) -> list[int]:
    """P after each round."""
    extras, found = returns.initial(num_clients), []
    for t, who in enumerate(rounds):
        extras |= returns.seen(extras, t, who)
        found.append(returns.interval(extras, otherwise=7))
    return found


def by_hand(rounds: list[np.ndarray], num_clients: int) -> float:
    """The same from the whole list of each client's participations."""
    periods = []
    for n in range(num_clients):
        times = [t for t, who in enumerate(rounds) if n in who]
        longest, begin, period = 0, times[0] if times else None, None
        for before, now in itertools.pairwise(times):
            absence = now - before
            if absence > 2 * longest:
                period, begin = now - times[0], now
            elif 2 * absence > longest:
                period, begin = now - begin, now
            longest = max(longest, absence)
        periods += [] if period is None else [period]
    return float(np.median(periods)) if periods else 7


@pytest.mark.parametrize(
    "participation",
    [
        TURNS.format(4, "permutation", 3),
        'availability = "bernoulli"\nprobability = 0.2\nselection = "all"',
        'availability = "markov"\nto_active = 0.1\nto_inactive = 0.2\nselection = "all"',
    ],
)
def test_as_from_whole_histories(participation):
    """After every round P is what the lists of participations give."""
    rounds = rounds_of(participation, 120, 20)
    for t, found in enumerate(observed(rounds, 20)):
        assert found == max(round(by_hand(rounds[: t + 1], 20)), 1)


@pytest.mark.parametrize(("length", "selection", "count"), [(100, "permutation", 10), (40, "uniform", 10)])
def test_the_cycle_of_groups_in_turns_is_found(length, selection, count):
    """Once most clients have come back, P is the cycle, to one part in a hundred, and stays there."""
    cycle = 5 * length
    found = observed(rounds_of(TURNS.format(length, selection, count), 6 * cycle, 250), 250)
    assert all(abs(p - cycle) <= 0.01 * cycle for p in found[3 * cycle :])


def test_before_anybody_comes_back_the_given_one_counts():
    """No return, no estimate."""
    assert observed([np.array([n]) for n in range(5)], 5) == [7] * 5


def test_the_state_of_before_stays_as_it_is():
    """A round that is not counted in the end leaves no trace."""
    extras = returns.initial(3)
    returns.seen(extras, 4, np.array([1]))
    assert all((extras[name] == values).all() for name, values in returns.initial(3).items())
