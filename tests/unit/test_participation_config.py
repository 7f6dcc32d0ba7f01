"""[participation]: what each availability needs, what clashes, what has no effect."""

from __future__ import annotations

import pytest

from fedmpi.config.effects import unused_keys
from tests.unit.test_config import BASE, QUADRATIC, edit, parse, problems_of

PLAIN = edit(BASE, ('selection = "uniform"', ""), ("clients_per_round = 3", ""))
DAY = {"availability": "sinusoidal", "probability": 0.5, "amplitude": 0.1, "rounds_per_day": 24}
SEVEN = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


def overrides(who: dict[str, object]) -> list[str]:
    """--set for each key of [participation]."""
    return [f"participation.{key}={value}" for key, value in who.items()]


GOOD = {
    "number": {"availability": "bernoulli", "probability": 0.1},
    "whole number": {"availability": "bernoulli", "probability": 1},
    "list": {"availability": "bernoulli", "probability": SEVEN},
    "list of whole numbers": {"availability": "bernoulli", "probability": [0, 1, 0, 1, 0, 1, 1]},
    "labels": {"availability": "bernoulli", "probability_from": "labels", "label_concentration": 0.5},
    "rates": {"availability": "markov", "to_active": 0.1, "to_inactive": SEVEN},
    "long run": {"availability": "markov", "to_active": 0.05, "probability": SEVEN},
    "long run from labels": {"availability": "markov", "to_active": 0.05, "probability_from": "labels"},
    "day": DAY,
    "cycle": {"availability": "cyclic", "probability": SEVEN, "cycle_rounds": 10},
    "cycle from labels": {"availability": "cyclic", "probability_from": "labels", "cycle_rounds": 100},
    "day of half a round": DAY | {"rounds_per_day": 0.5, "phase_spread": 0.25},
    "groups": {"availability": "periodic", "num_groups": 2, "rounds_per_group": 2, "probability": 0.5},
    "known": {"availability": "bernoulli", "probability": 0.1, "weighting": "inverse-probability"},
    "known choice": {
        "selection": "permutation",
        "clients_per_round": 2,
        "weighting": "inverse-probability",
    },
    "known choice of groups": {
        "availability": "periodic",
        "num_groups": 2,
        "rounds_per_group": 2,
        "selection": "uniform",
        "clients_per_round": 2,
        "weighting": "inverse-probability",
    },
}


@pytest.mark.parametrize("who", GOOD.values(), ids=GOOD)
def test_what_is_complete_is_accepted_and_read(who):
    """The config is valid, every key has an effect, and the resolved text gives it again."""
    config = parse(PLAIN, *overrides(who))
    assert unused_keys(config) == []
    assert parse(config.to_toml()) == config


MARKOV = {"availability": "markov", "to_active": 0.1}
UNKNOWN = ["participation.weighting", '"inverse-probability" needs a known probability', "weighting ="]
CHANCE = ["participation.weighting", "depends on how many others", 'selection = "all"']
CLASHES = {
    "no probability": (
        {"availability": "bernoulli"},
        ["participation.probability: missing", '"bernoulli"', 'probability_from = "labels"', "a number"],
    ),
    "no mean": (
        {"availability": "sinusoidal", "amplitude": 0.1, "rounds_per_day": 24},
        ["participation.probability: missing", '"sinusoidal"'],
    ),
    "no amplitude": (
        {"availability": "sinusoidal", "probability": 0.1, "rounds_per_day": 24},
        ["participation.amplitude: missing", '"sinusoidal"', "a number from 0 to 1"],
    ),
    "no day": (
        {"availability": "sinusoidal", "probability": 0.1, "amplitude": 0.1},
        ["participation.rounds_per_day: missing", '"sinusoidal"', "a number > 0"],
    ),
    "two probabilities": (
        {"availability": "bernoulli", "probability": 0.1, "probability_from": "labels"},
        ["participation.probability_from", "clashes with participation.probability"],
    ),
    "no to_active": (
        {"availability": "markov", "to_inactive": 0.1},
        ["participation.to_active: missing", '"markov"', "a number, or one for each client"],
    ),
    "no to_inactive": (MARKOV, ["participation.to_inactive: missing", "probability_from"]),
    "three rates": (
        MARKOV | {"to_inactive": 0.1, "probability": 0.5},
        ["participation.to_inactive", "follows from to_active and the probability"],
    ),
    "never moves": (
        {"availability": "markov", "to_active": 0, "to_inactive": 0},
        ["participation.to_active", "never change", "one above 0"],
    ),
    "one never moves": (
        {"availability": "markov", "to_active": [1, 0, 1, 1, 1, 1, 1], "to_inactive": 0},
        ["participation.to_active", "never change", "one above 0"],
    ),
    "never comes": (
        {"availability": "markov", "to_active": 0, "probability": 0.5},
        ["participation.to_active", "never change", "above 0"],
    ),
    "list too short": (
        {"availability": "bernoulli", "probability": [0.1, 0.2]},
        ["participation.probability: 2 numbers for data.num_clients = 7", "one for each client"],
    ),
    "rates too long": (
        {"availability": "markov", "to_active": [0.1] * 8, "to_inactive": 0.1},
        ["participation.to_active: 8 numbers for data.num_clients = 7", "one for each client"],
    ),
    "least above mean": (
        {"availability": "bernoulli", "probability_from": "labels", "min_probability": 0.2},
        ["participation.min_probability: 0.2 exceeds mean_probability = 0.1"],
    ),
    "above one": (
        {"availability": "bernoulli", "probability": 1.5},
        ["participation.probability = 1.5: expected a number from 0 to 1, or a list of numbers from 0"],
    ),
    "one above one": (
        {"availability": "bernoulli", "probability": [0.5, 2]},
        ["participation.probability = [0.5, 2.0]: expected a number from 0 to 1, or a list"],
    ),
    "words": (
        {"availability": "bernoulli", "probability": "often"},
        ['participation.probability = "often": expected a number'],
    ),
    "from elsewhere": (
        {"availability": "bernoulli", "probability_from": "sizes"},
        ['participation.probability_from = "sizes": expected one of "labels", "label-halves"'],
    ),
    "weights of a trace": (
        {"availability": "trace", "trace": "t.csv", "weighting": "inverse-probability"},
        [*UNKNOWN, '"trace" does not have'],
    ),
    "weights of a function": (
        {"availability": "a.b:c", "weighting": "inverse-probability"},
        [*UNKNOWN, '"a.b:c" does not have'],
    ),
    **{
        f"weights of a choice among {who['availability']}": (
            who | {"weighting": "inverse-probability", "selection": "uniform", "clients_per_round": 2},
            CHANCE,
        )
        for who in (GOOD["number"], GOOD["rates"], GOOD["day"], GOOD["groups"])
    },
}


@pytest.mark.parametrize(("who", "parts"), CLASHES.values(), ids=CLASHES)
def test_what_cannot_work_is_one_problem_that_names_the_key(who, parts):
    """Missing, contradictory and impossible keys: what, what is accepted, what would do."""
    [problem] = problems_of(PLAIN, *overrides(who))
    assert problem.startswith(f"config {parts[0]}")
    for part in parts:
        assert part in problem


def test_labels_of_quadratic_data_do_not_exist():
    """The quadratic problem has no labels to draw from."""
    who = {"availability": "bernoulli", "probability_from": "labels"}
    [problem] = problems_of(QUADRATIC, *overrides(who))
    assert problem.startswith("config participation.probability_from")
    assert '"quadratic" does not have' in problem


UNUSED = {
    "probability": {"probability": 0.1},
    "probability_from": {"probability_from": "labels"},
    "mean_probability": {**GOOD["number"], "mean_probability": 0.2},
    "min_probability": {**GOOD["number"], "min_probability": 0.01},
    "label_concentration": {**GOOD["number"], "label_concentration": 0.5},
    "to_active": {**GOOD["number"], "to_active": 0.2},
    "to_inactive": {**DAY, "to_inactive": 0.2},
    "rounds_per_day": {**GOOD["rates"], "rounds_per_day": 5},
    "amplitude": {**GOOD["rates"], "amplitude": 0.5},
    "phase_spread": {**GOOD["groups"], "phase_spread": 0.5},
}


@pytest.mark.parametrize(("key", "who"), UNUSED.items(), ids=UNUSED)
def test_keys_without_effect_are_named(key, who):
    """A key of another availability is noted, not refused."""
    notes = unused_keys(parse(PLAIN, *overrides(who)))
    assert notes == [f"participation.{key} has no effect with the other settings"]
