"""Several availabilities at once: who is left, with what probability, and what a config may say."""

from __future__ import annotations

import json
import tomllib
from itertools import pairwise

import numpy as np
import pytest

from fedmpi.config import Config, validate
from fedmpi.config.effects import effective_toml, unused_keys
from fedmpi.config.json_schema import json_schema
from fedmpi.config.starting import starting_config
from fedmpi.errors import ConfigError
from fedmpi.participation import Participation, make_participation
from fedmpi.participation.composition import seeds_of
from fedmpi.participation.cycle import cycle_of, stored_cycle
from fedmpi.results.ends import read_end
from fedmpi.results.groups import value_text
from fedmpi.theory.long_run import long_run
from fedmpi.theory.weights import Weights
from tests.support.configs import SMALL
from tests.support.simulations import run_to_file

DAY = '{name = "sinusoidal", probability = 0.5, amplitude = 0.4, rounds_per_day = 12}'
CHAIN = '{name = "markov", to_active = 0.3, to_inactive = 0.2}'
REGION = '{name = "outages", outage_groups = 4, outage_probability = 0.25}'
TURNS = '{name = "periodic", num_groups = 2, rounds_per_group = 3}'
ALL = f"[{DAY}, {CHAIN}, {REGION}]"


def config_of(availability: str, *settings: str, clients: int = 20, seed: int = 1) -> Config:
    """`availability` as TOML; everybody available takes part."""
    text = SMALL.replace('selection = "uniform"\nclients_per_round = 3\n', 'selection = "all"\n')
    given = {"data.num_clients": clients, "run.seed": seed, "participation.availability": availability}
    return validate.parse(text, "c.toml", [*(f"{k}={v}" for k, v in given.items()), *settings])


def participation(availability: str, *settings: str, clients: int = 20, seed: int = 1) -> Participation:
    """Of that config."""
    return make_participation(config_of(availability, *settings, clients=clients, seed=seed), clients)


def sets(who: Participation, rounds: range) -> list[list[int]]:
    """Those available in each round."""
    return [who.available(t).tolist() for t in rounds]


@pytest.mark.parametrize("entries", [[DAY, CHAIN], [CHAIN, REGION, TURNS], [TURNS, DAY, CHAIN, REGION]])
def test_those_are_left_whom_all_parts_let(entries):
    """The set of a round is the intersection of what the parts, each with its own seed, have alone."""
    seeds = seeds_of(1, len(entries))
    alone = [
        sets(participation(f"[{entry}]", seed=seed), range(40))
        for entry, seed in zip(entries, seeds, strict=True)
    ]
    expected = [sorted(set.intersection(*map(set, parts))) for parts in zip(*alone, strict=True)]
    assert sets(participation(f"[{', '.join(entries)}]"), range(40)) == expected
    assert any(expected)
    assert len(set(seeds)) == len(entries)


def test_one_in_a_list_is_the_same_as_its_name():
    """A list of one has the bits of the name alone, and the first of several keeps its draws."""
    keys = ["participation.to_active=0.3", "participation.to_inactive=0.2"]
    name, one = participation('"markov"', *keys), participation('["markov"]', *keys)
    assert sets(name, range(30)) == sets(one, range(30)) == sets(participation(f"[{CHAIN}]"), range(30))
    several = sets(participation(f"[{CHAIN}, {REGION}]"), range(30))
    assert all(set(few) <= set(many) for few, many in zip(several, sets(name, range(30)), strict=True))


def test_the_same_twice_is_drawn_twice():
    """Two regions of different size, or the same law twice, are independent: chances multiply."""
    half = '{name = "bernoulli", probability = 0.5}'
    who = participation(f"[{half}, {half}]", clients=4000)
    assert abs(len(who.available(0)) / 4000 - 0.25) < 5 * np.sqrt(0.1875 / 4000)
    assert who.availability_chances(0, np.arange(3)).tolist() == [0.25] * 3


def test_chances_are_products_and_clients_come_with_them():
    """The probability of a round is that of the parts multiplied, and that is how often clients come."""
    who = participation(f"[{DAY}, {TURNS}, {REGION}]", clients=12)
    chances = np.array([who.availability_chances(t, np.arange(12)) for t in range(12)])
    there = np.zeros((12, 12))
    for t in range(12 * 600):
        there[t % 12, who.available(t)] += 1 / 600
    assert (np.abs(there - chances) <= 5 * np.sqrt(chances * (1 - chances) / 600) + 1e-12).all()
    assert chances[0, 6:].tolist() == [0] * 6


def test_it_is_a_function_of_seed_and_round():
    """Rounds asked for again, backwards or alone give the same sets; another seed gives others."""
    who, rounds = participation(ALL), range(25)
    forward = sets(who, rounds)
    assert sets(who, rounds[::-1])[::-1] == forward
    assert participation(ALL).available(17).tolist() == forward[17]
    assert sets(participation(ALL, seed=2), rounds) != forward


@pytest.mark.parametrize("at", [1, 7, 12])
@pytest.mark.parametrize("selection", ["permutation", "minimum-separation", "all"])
def test_going_on_from_a_checkpoint(at, selection):
    """Restored in the middle of a day, a turn and a chain, weights go on as if nothing had happened."""
    keys = [f"participation.selection={selection}"]
    keys += ["participation.clients_per_round=2"] if selection != "all" else []
    keys += ["participation.min_separation=2"] if selection == "minimum-separation" else []
    entries = f'[{CHAIN}, {TURNS}, {{name = "markov", to_active = 0.5, to_inactive = 0.1}}]'
    whole = participation(entries, *keys)
    expected = [tuple(map(tuple, whole.weights(t))) for t in range(30)]
    first, second = participation(entries, *keys), participation(entries, *keys)
    for t in range(at):
        first.weights(t)
    second.restore(at, {name: value.copy() for name, value in first.state().items()})
    assert [tuple(map(tuple, second.weights(t))) for t in range(at, 30)] == expected[at:]
    # Both chains are in the checkpoint: nothing is computed again from round 0.
    assert {"availability.0.active", "availability.2.active"} <= set(first.state())


def test_the_array_stays_the_same_while_the_set_does():
    """A selection may rely on it: another array only where the set differs."""
    who = participation(f'["always", {TURNS}]')
    arrays = [who.available(t) for t in range(12)]
    assert [a is b for a, b in pairwise(arrays)] == [t % 3 != 0 for t in range(1, 12)]


def test_a_key_that_two_would_read_is_refused():
    """The sentence names the key, who reads it and how to say whose it is; a table settles it."""
    given = {"probability": 0.5, "amplitude": 0.4, "rounds_per_day": 12}
    keys = [f"participation.{key}={value}" for key, value in given.items()]
    with pytest.raises(ConfigError) as error:
        config_of('["sinusoidal", "bernoulli"]', *keys)
    assert 'participation.probability: "sinusoidal" and "bernoulli" would all read it' in str(error.value)
    assert 'availability = [{name = "sinusoidal", probability = 0.5}, ...]' in str(error.value)
    config_of('["sinusoidal", {name = "bernoulli", probability = 0.9}]', *keys)


def test_names_alone_where_it_is_clear_whose_keys_are():
    """With both rates a chain needs no probability, and outages leave it to the others."""
    keys = [
        "participation.probability=0.5", "participation.amplitude=0.4", "participation.rounds_per_day=12",
        "participation.to_active=0.3", "participation.to_inactive=0.2", "participation.outage_groups=4",
        "participation.outage_probability=0.25",
    ]  # fmt: skip
    named = config_of('["sinusoidal", "markov", "outages"]', *keys)
    rounds = range(30)
    assert sets(make_participation(named, 20), rounds) == sets(participation(ALL), rounds)
    assert unused_keys(named) == []
    assert "probability = 0.5" in effective_toml(named)


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ('["markov", {name = "no"}]', 'a table with name = "no": expected one of "always"'),
        ('[{to_active = 0.3}]', "a table with name = None"),
        ('[{name = "markov", to_actve = 0.3}]', '"markov" does not read to_actve; did you mean to_active'),
        ('[{name = "always", probability = 1}]', '"always" does not read probability; it has no keys'),
        ('[{name = "bernoulli", probability = 2}]', '"bernoulli" with probability = 2.0: expected'),
        ('[{name = "bernoulli", probability = "x"}]', "expected a number from 0 to 1"),
        ('[{name = "bernoulli", probability = [0.5, 0.5]}]', "2 numbers for data.num_clients = 20"),
        ('["bernoulli", "always"]', 'probability: missing; availability = "bernoulli" needs it'),
        ('["periodic"]', "num_groups: missing"),
        ('[{name = "periodic", num_groups = 30, rounds_per_group = 2}]', "30 groups for 20 clients"),
        ("[]", "or a list of them"),
        ("[1]", "or a list of them"),
        ('[["markov"]]', "or a list of them"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(entries, match):
    """A bad entry is one sentence that names it."""
    with pytest.raises(ConfigError, match=match.replace("[", r"\[")):
        config_of(entries)


def test_what_one_part_does_not_know_nobody_knows(tmp_path):
    """Weights by inverse probability need it of every part; choosing S of a random number is refused."""
    (tmp_path / "t.csv").write_text("client,start,end\n0,0,9\n")
    inverse = 'participation.weighting="inverse-probability"'
    with pytest.raises(ConfigError, match='which availability = "trace" does not have'):
        config_of(f'[{DAY}, {{name = "trace", trace = "{tmp_path / "t.csv"}"}}]', inverse)
    some = ["participation.selection=uniform", "participation.clients_per_round=2"]
    with pytest.raises(ConfigError, match="how many others happen to be available"):
        config_of(f"[{TURNS}, {CHAIN}]", inverse, *some)
    with pytest.raises(ConfigError, match="11 exceeds the 10 clients of a group"):
        config_of(f"[{CHAIN}, {TURNS}]", some[0], "participation.clients_per_round=11")


def test_inverse_weights_are_even_in_the_mean():
    """1/(N p) with p the product: known exactly to the theory, which sees no bias."""
    config = config_of(ALL, 'participation.weighting="inverse-probability"')
    who = make_participation(config, 20)
    np.testing.assert_allclose(who.expected(5), 1 / 20, rtol=1e-12)
    seen = Weights.of_rounds([who.weights(t) for t in range(200)], 20)
    process = long_run(config, who, seen)
    assert process.means_from == "exact"
    assert not process.is_biased
    # A product of chains forgets at several rates: no proposition is claimed for it.
    assert process.proposition is None


def test_cycles_meet_where_all_of_them_do():
    """Of cycles of 6 and 20 rounds, 60; a part without one does not count."""
    law = '{name = "non-stationary", probability = 0.3, shape = "sine"}'
    assert cycle_of(config_of(f"[{TURNS}, {law}, {CHAIN}]").participation) == 60


def test_a_stored_config_has_its_cycle(tmp_path):
    """What a result file holds of a list is read as well: reports, ends and hints know the cycle."""
    config = config_of(f'[{TURNS}, {{name = "cyclic", cycle_rounds = 4, probability = 0.5}}]')
    run = run_to_file(config, tmp_path / "run.h5")
    assert stored_cycle(run.config) == 12
    assert read_end(tmp_path / "run.h5", "train_loss").cycle == 12
    assert "periodic (num_groups 2, rounds_per_group 3) and cyclic" in value_text(
        run.config["participation"]["availability"]
    )


def test_the_resolved_text_gives_the_same_config():
    """Tables come back as they were, numbers as their keys have them."""
    config = config_of('["always", {name = "bernoulli", probability = 1}]')
    text = config.to_toml()
    assert '{name = "bernoulli", probability = 1.0}' in text
    assert validate.parse(text, "again.toml") == config


def test_editors_accept_lists():
    """The JSON schema takes what the config does."""
    schema = json_schema()["properties"]["participation"]["properties"]["availability"]
    text = json.dumps(schema)
    assert '"type": "array"' in text
    assert '"required": ["name"]' in text


def test_a_starting_config_of_several():
    """`fedmpi new --participation a,b` writes a valid list of tables, each below what it stands for."""
    text = starting_config("fedavg", "sinusoidal,markov,outages")
    config = validate.parse(text, "new.toml")
    given = tomllib.loads(text)["participation"]["availability"]
    assert [entry["name"] for entry in given] == ["sinusoidal", "markov", "outages"]
    assert config.participation.availability == given
    assert unused_keys(config) == []
