"""Updates that are lost on their way: what is left of the round, and what methods and files hold of it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedmpi.config import METHODS, Config, validate
from fedmpi.config.effects import unused_keys
from fedmpi.errors import ConfigError
from fedmpi.participation import make_participation
from fedmpi.participation.survey import survey, survey_lines
from fedmpi.theory.long_run import long_run
from fedmpi.theory.weights import Weights
from tests.support.configs import SMALL
from tests.support.simulations import run_to_file

EVERYBODY = SMALL.replace('selection = "uniform"\nclients_per_round = 3\n', 'selection = "all"\n')


def config_of(text: str = SMALL, **settings: object) -> Config:
    """A config; `__` in a name stands for a dot, by default of [participation]."""
    keys = {(k if "__" in k else f"participation__{k}").replace("__", "."): v for k, v in settings.items()}
    return validate.parse(text, "c.toml", [f"{key}={value}" for key, value in keys.items()])


def test_each_update_is_lost_with_its_own_chance():
    """One number for all, or one for each client; 0 loses nothing, 1 everything."""
    text = EVERYBODY.replace("num_clients = 7", "num_clients = 4")
    chances = [0.0, 0.3, 0.8, 1.0]
    who, arrived = make_participation(config_of(text, dropout=chances), 4), np.zeros(4)
    for t in range(4000):
        clients, weights = who.weights(t)
        lost, arrives = who.undelivered(t)
        assert sorted([*clients, *lost]) == [0, 1, 2, 3]
        assert weights.tolist() == [1 / len(clients)] * len(clients)
        assert (arrives == -1).all()
        arrived[clients] += 1 / 4000
    expected = 1 - np.array(chances)
    assert (np.abs(arrived - expected) <= 5 * np.sqrt(expected * (1 - expected) / 4000) + 1e-9).all()


def test_the_choice_is_the_same_with_and_without_losses():
    """What is lost is drawn after the choice, from a stream of its own; rounds may be asked for again."""
    with_losses, without = (make_participation(config_of(dropout=p), 7) for p in (0.4, 0.0))
    for t in (0, 1, 2, 9, 4, 4):
        lost, _ = with_losses.undelivered(t)
        assert sorted([*with_losses.weights(t)[0], *lost]) == without.weights(t)[0].tolist()
    assert any(len(with_losses.undelivered(t)[0]) for t in range(9))


# They hear everybody, or choose by themselves.
_NOT = ("wait-minibatch", "wait-full", "fedlaavg", "f3ast", "ca-fed")


@pytest.mark.parametrize("method", [name for name in METHODS if name not in _NOT])
@pytest.mark.parametrize("warmup", ["", "[warmup]\nnum_rounds = 2\nlocal_lr = 0.02\n"])
def test_a_run_is_that_of_the_updates_that_arrive(tmp_path, method, warmup):
    """Every method has the bits that it has when only those who are heard had been chosen."""
    text = SMALL.replace("num_rounds = 6", "num_rounds = 12") + warmup
    settings = {"algorithm__name": method, "algorithm__amplify_every": 4, "algorithm__amplification": 1.5}
    lossy = run_to_file(config_of(text, dropout=0.5, **settings), tmp_path / "lossy.h5")
    table = lossy.participation[["round", "client", "weight"]]
    assert (table["weight"] > 0).all()
    clean = make_participation(config_of(text, dropout=0.5, **settings), 7)
    rows = [(t, n, float(q)) for t in range(12) for n, q in zip(*clean.weights(t), strict=True)]
    lines = "\n".join(f"{t},{n},{q!r}" for t, n, q in rows)
    (tmp_path / "q.csv").write_text(f"round,client,weight\n{lines}\n")
    schedule = {"selection": "schedule", "schedule": f'"{tmp_path / "q.csv"}"'}
    given = run_to_file(config_of(text, **settings, **schedule), tmp_path / "given.h5")
    assert np.array_equal(lossy.global_params, given.global_params)
    assert len(lossy.undelivered) == 3 * 12 - len(rows) > 0
    assert given.undelivered is None


def test_weights_by_inverse_probability_count_the_losses(tmp_path):
    """1/(N p (1 - dropout)) is 1/N in the mean, exactly; the theory sees no bias, and closed forms hold."""
    config = config_of(
        EVERYBODY, availability="bernoulli", probability=0.5, dropout=[0.1 * n for n in range(7)],
        weighting='"inverse-probability"',
    )  # fmt: skip
    who = make_participation(config, 7)
    clients, weights = who.weights(0)
    np.testing.assert_allclose(weights, 1 / (7 * 0.5 * (1 - 0.1 * clients)))
    np.testing.assert_allclose(who.expected(0), 1 / 7)
    found = long_run(config, who, Weights.of_rounds([who.weights(t) for t in range(50)], 7))
    assert (found.proposition, found.variance_from) == ("4.7", "closed form")
    drawn = np.zeros((20_000, 7))
    for t in range(20_000):
        clients, weights = who.weights(t)
        drawn[t, clients] = weights
    assert abs(drawn.var(axis=0).mean() / found.variance - 1) < 0.05


def test_a_chain_that_is_not_always_heard_has_no_proposition():
    """Losses drawn anew in each round break the geometric memory of a chain: no closed form is claimed."""
    keys = {"availability": "markov", "to_active": 0.3, "to_inactive": 0.3, "weighting": "all"}
    for dropout, proposition in ((0.0, "4.6"), (0.3, None)):
        config = config_of(EVERYBODY, dropout=dropout, **keys)
        who = make_participation(config, 7)
        q = Weights.of_rounds([who.weights(t) for t in range(400)], 7)
        assert long_run(config, who, q).proposition == proposition


def test_mean_weights_of_some_chosen_are_estimated():
    """Of S chosen clients some are lost: how many are left changes the weights; no closed form is used."""
    who = make_participation(config_of(dropout=0.5), 7)
    assert who.expected(0) is None
    assert make_participation(config_of(dropout=0.0), 7).expected(0) is not None


def test_check_counts_them():
    """The survey says how many updates are lost, and nothing where none is."""
    lines = {}
    for dropout in (0.0, 0.25, 1.0):
        seen = survey(make_participation(config_of(dropout=dropout), 7), 7, 400, 10)
        lines[dropout] = "\n".join(survey_lines(seen))
        assert seen.lost == 1200 - seen.participants.sum()
    assert "lost" not in lines[0.0]
    assert re.search(r" [23]\d\d updates lost, 0 late", lines[0.25])
    assert "1,200 updates lost, 0 late" in lines[1.0]


def test_a_run_without_any_update_ends(tmp_path):
    """Everything lost: x stays where it was, and the file says who was chosen."""
    run = run_to_file(config_of(dropout=1.0), tmp_path / "run.h5")
    assert run.status == "done"
    assert len(run.participation) == 0
    assert len(run.undelivered) == 18
    assert run.eval.train_loss.nunique() == 1


def test_what_cannot_be_is_refused():
    """A list of another length, no chance, a method that hears everybody; a schedule says it by itself."""
    with pytest.raises(ConfigError, match=r"dropout: 2 numbers for data.num_clients = 7"):
        config_of(dropout=[0.5, 0.5])
    with pytest.raises(ConfigError, match=r"dropout = 1.5: expected a number from 0 to 1"):
        config_of(dropout=1.5)
    with pytest.raises(ConfigError, match=r"dropout: .*wait-minibatch.* waits for everybody"):
        config_of(dropout=0.5, algorithm__name="wait-minibatch", algorithm__wait_rounds=2)
    config = config_of(EVERYBODY, dropout=0.5, selection="schedule", schedule='"q.csv"')
    assert unused_keys(config) == ["participation.dropout has no effect with the other settings"]
