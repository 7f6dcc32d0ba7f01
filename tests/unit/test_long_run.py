"""Bias and chance in who takes part: mean weights in the long run, their variance, what `advise` says."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from fedmpi import theory
from fedmpi.config import validate
from fedmpi.participation import make_participation
from fedmpi.participation.expectation import expected_weights
from fedmpi.theory import Weights
from fedmpi.theory.advice import look_ahead
from fedmpi.theory.long_run import LongRun, estimated_bias, long_run, seen
from tests.support.algorithm_twin import algorithm_1, quadratic_gradient

UNEQUAL = [0.9, 0.5, 0.2, 0.1]
NOISE_STD = 0.05


def config_text(num_clients: int, rounds: int = 2000, **participation: object) -> str:
    """A quadratic problem, F_n(x) = |x - n|^2 / 2, with this participation."""
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in participation.items())
    return f"""
[run]
num_rounds = {rounds}
[data]
dataset = "quadratic"
centers = {[[float(n)] for n in range(num_clients)]}
[model]
name = "quadratic"
[participation]
{keys}
[algorithm]
local_lr = 0.001
local_steps = 1
"""


def process_of(num_clients: int, rounds: int = 2000, **participation: object) -> tuple[LongRun, Weights]:
    """What is known of this participation, and the rounds that were examined."""
    config = validate.parse(config_text(num_clients, rounds, **participation), "test", [])
    who = make_participation(config, num_clients)
    q = look_ahead(config, who, num_clients)
    return long_run(config, who, q), q


# --- Mean weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chances", [UNEQUAL, [1.0, 0.5, 0.0], [0.01, 0.02, 0.3], [1.0] * 4, [0.3] * 9])
def test_mean_of_equal_weights_is_the_sum_over_all_sets(chances):
    """E 1/participants by one integral is what the 2^N sets of available clients give."""
    chances, expected = np.array(chances), np.zeros(len(chances))
    for present in itertools.product([0, 1], repeat=len(chances)):
        share = np.where(present, chances, 1 - chances).prod()
        expected += share * np.array(present) / max(sum(present), 1)
    np.testing.assert_allclose(expected_weights(chances, "equal", None), expected, atol=1e-14)


def test_mean_of_chosen_clients():
    """S of a random number of alike clients: all the same, E min(available, S) of them in a round."""
    pmf = [1.0]
    for _ in range(10):
        pmf = np.convolve(pmf, [0.7, 0.3])
    wanted = sum(share * min(k, 4) for k, share in enumerate(pmf))
    np.testing.assert_allclose(expected_weights(np.full(10, 0.3), "all", 4), wanted / 10 / 10)
    np.testing.assert_allclose(expected_weights(np.full(10, 0.3), "equal", 4), (1 - 0.7**10) / 10)
    half = np.repeat([1.0, 0.0], 5)
    np.testing.assert_allclose(expected_weights(half, "equal", 2), half / 5)
    assert expected_weights(np.array(UNEQUAL), "equal", 2) is None
    assert expected_weights(np.array(UNEQUAL), "my_weights:f", None) is None


UNBIASED = {
    "bernoulli": {"availability": "bernoulli", "probability": 0.3},
    "inverse": {"availability": "bernoulli", "probability": UNEQUAL, "weighting": "inverse-probability"},
    "markov": {"availability": "markov", "to_active": 0.1, "to_inactive": 0.3},
    "periodic": {"availability": "periodic", "num_groups": 2, "rounds_per_group": 7},
    "uniform": {"selection": "uniform", "clients_per_round": 1},
    "permutation": {"selection": "permutation", "clients_per_round": 3},
}
BIASED = {
    "bernoulli": {"availability": "bernoulli", "probability": UNEQUAL},
    "all": {"availability": "bernoulli", "probability": UNEQUAL, "weighting": "all"},
    "markov": {"availability": "markov", "to_active": UNEQUAL, "to_inactive": 0.3},
    "uneven groups": {"availability": "periodic", "num_groups": 3, "rounds_per_group": 5},
    "chosen": {"availability": "bernoulli", "probability": UNEQUAL, "selection": "uniform",
               "clients_per_round": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", UNBIASED)
def test_even_chances_are_no_bias(name):
    """Neither by the closed form nor from 2,000 rounds alone, where chance makes means differ."""
    process, q = process_of(4, **UNBIASED[name])
    assert not process.is_biased
    assert process.means_from == "exact"
    assert process.floor == pytest.approx(0, abs=1e-12)
    assert not seen(q).is_biased


@pytest.mark.parametrize("name", BIASED)
def test_uneven_chances_are_bias(name):
    """The floor is below delta^2(P) of every P, and the estimate from the rounds agrees with it."""
    process, q = process_of(4, **BIASED[name])
    assert process.is_biased
    assert process.means_from == ("estimated from 2,000 rounds" if name == "chosen" else "exact")
    means, floor, is_biased = estimated_bias(q)
    assert is_biased
    assert floor == pytest.approx(process.floor, rel=0.15)
    np.testing.assert_allclose(means, process.means, atol=0.03)
    for period in theory.interval_grid(2000):
        assert theory.delta2_factors(q, period).mean() > 0.9 * process.floor


CYCLIC = {
    "equal": {"probability": UNEQUAL},
    "all": {"probability": UNEQUAL, "weighting": "all"},
    "inverse": {"probability": UNEQUAL, "weighting": "inverse-probability"},
    "alike": {"probability": 0.4},
}


@pytest.mark.parametrize("name", CYCLIC)
def test_mean_weights_of_a_cycle_are_exact(name):
    """Clients with phases of their own: the mean weights are those of any whole cycle of the run."""
    process, q = process_of(4, availability="cyclic", cycle_rounds=20, **CYCLIC[name])
    assert process.means_from == "exact"
    rounds = q.num_rounds // 20 * 20
    inside = q.rounds < rounds
    means = np.bincount(q.clients[inside], q.weights[inside], 4) / rounds
    np.testing.assert_allclose(process.means, means, atol=1e-12)
    assert process.is_biased == (name != "inverse")  # who shares a stretch with others weighs less


def test_a_choice_in_a_cycle():
    """S of those who are there: exact if drawn anew in each round, not known of a permutation."""
    who = {"availability": "cyclic", "cycle_rounds": 10, "probability": [0.9, 0.5, 0.5, 0.4],
           "clients_per_round": 1}  # fmt: skip
    process, q = process_of(4, 40_000, selection="uniform", **who)
    assert process.means_from == "exact"
    np.testing.assert_allclose(process.means, estimated_bias(q)[0], atol=0.03)
    assert process_of(4, selection="permutation", **who)[0].means_from == "estimated from 2,000 rounds"


def test_chance_is_seldom_called_bias():
    """Of 200 unbiased draws of 400 rounds none is called biased, nor are clients in unfinished turns."""
    draws = np.random.default_rng(1)
    assert not any(estimated_bias(Weights.dense(draws.random((400, 5))))[2] for _ in range(200))
    turns = np.repeat(np.eye(5), 100, axis=0)
    assert not estimated_bias(Weights.dense(np.vstack([turns] * 4 + [turns[:300]])))[2]


# --- Variance --------------------------------------------------------------------------------------------


def test_variance_of_a_slow_chain_is_the_closed_form():
    """Chains that change once in 500 rounds: 7.80, where windows of 64 rounds saw 0.87."""
    slow = {"availability": "markov", "to_active": 0.002, "to_inactive": 0.002}
    process, _ = process_of(4, **slow, weighting="all")
    assert process.variance == pytest.approx(theory.markov_long_run_variance(0.002, 0.002, 1 / 4))
    assert round(process.variance, 2) == 7.80
    assert (process.variance_from, process.proposition) == ("closed form", "4.6")


def test_windows_are_long_against_the_memory_of_a_chain():
    """Where weights depend on the others, more rounds are drawn than the run has; bias is no variance."""
    slow = {"availability": "markov", "to_active": 0.01, "to_inactive": 0.01, "selection": "all"}
    process, q = process_of(30, **slow, rounds=600)
    assert q.num_rounds == 600
    assert process.variance_from == "16 windows of 1,000 rounds"
    # Equal weights: by the delta method 1/(N p) (a_n - mean of a), of which the chain is the only part.
    predicted = theory.markov_long_run_variance(0.01, 0.01, 1 / 15) * (1 - 1 / 30)
    assert process.variance == pytest.approx(predicted, rel=0.25)
    frozen, _ = process_of(30, **slow | {"to_active": 1e-5, "to_inactive": 1e-5}, rounds=600)
    assert frozen.variance_from.endswith("too short for this chain's memory: the true one is larger")
    constant = np.tile([0.7, 0.2, 0.1], (160, 1))
    assert seen(Weights.dense(constant)).variance == pytest.approx(0, abs=1e-30)


VARIANCES = {
    "bernoulli": ({"availability": "bernoulli", "probability": 0.25, "weighting": "all"}, "4.7"),
    "inverse": ({"availability": "bernoulli", "probability": [0.25, 0.5] * 4,
                 "weighting": "inverse-probability"}, "4.7"),
    "uniform": ({"selection": "uniform", "clients_per_round": 2}, "4.7"),
    "equal": ({"availability": "bernoulli", "probability": 0.6}, "4.7"),
    "markov": ({"availability": "markov", "to_active": 0.4, "to_inactive": 0.2, "weighting": "all"}, "4.6"),
    "alternating": ({"availability": "markov", "to_active": 0.9, "to_inactive": 0.8, "weighting": "all"},
                    "4.6"),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANCES)
def test_variance_is_that_of_long_averages(name):
    """upsilon^2 of Propositions 4.6 and 4.7 is P Var(qbar) over P = 50 rounds, 400 times."""
    how, proposition = VARIANCES[name]
    process, _ = process_of(8, **how)
    assert process.proposition == proposition
    config = validate.parse(config_text(8, **how, rounds=20_000), "test", [])
    who = make_participation(config, 8)
    q = Weights.of_rounds([who.weights(t) for t in range(20_000)], 8)
    assert process.variance == pytest.approx(theory.sampled_long_run_variance(q, 50), rel=0.1)


def test_no_proposition_without_its_conditions():
    """Biased, remembered, alternating for ever, or even: neither 4.6 nor 4.7 is claimed."""
    cases = [
        BIASED["bernoulli"], UNBIASED["permutation"], UNBIASED["periodic"], {},
        {"availability": "markov", "to_active": 1.0, "to_inactive": 1.0},
    ]  # fmt: skip
    assert [process_of(4, **how)[0].proposition for how in cases] == [None] * 5


# --- In expectation, and with a probability --------------------------------------------------------------


def test_hoeffding_needs_a_union_bound():
    """(17) holds for one client with probability 1 - c; for the sum over 40 it fails more often than c.

    With the union bound over clients it holds, and Chebyshev's form needs none.
    """
    clients, period, failure = 40, 30, 0.5
    draws = np.random.default_rng(2)
    # Weights of 0 or 1, which Hoeffding's inequality has in mind, each of their own sum apart.
    qbar = draws.integers(0, 2, (4000, period, clients)).mean(axis=1)
    squares = (qbar - 0.5) ** 2
    one = theory.hoeffding_delta2(1, period, failure)
    assert (squares[:, 0] > one).mean() <= failure
    assert (squares.max(axis=1) > one).mean() > failure
    together = theory.hoeffding_delta2(1, period, failure, events=clients)
    assert (squares.max(axis=1) > together).mean() <= failure
    factors = clients * squares.sum(axis=1)
    variance = theory.independent_variance(0.5, 1.0)
    assert (factors > theory.chebyshev_delta2(variance, clients, period, failure)).mean() <= failure
    assert theory.expected_delta2(variance, clients, period) == pytest.approx(factors.mean(), rel=0.02)


def mean_run(weights: list[np.ndarray], centers: np.ndarray, rates: theory.Rates) -> np.ndarray:
    """E |grad f(x_t)|^2 over the given Qs and the noise."""
    runs = []
    for seed, q in enumerate(weights):
        gradient = quadratic_gradient(centers, NOISE_STD, seed)
        x = algorithm_1(
            gradient, q, np.full(centers.shape[1], 1.0), rates.local_lr, rates.amplification,
            rates.amplify_every, rates.local_steps,
        )  # fmt: skip
        runs.append(((np.array(x) - centers.mean(axis=0)) ** 2).sum(axis=1))
    return np.mean(runs, axis=0)


def bound_in_expectation(
    weights: list[np.ndarray], centers: np.ndarray, rates: theory.Rates, delta2: float
) -> dict[str, float]:
    """Theorem 3.1 with constants that hold for all Qs, and delta^2(P) that holds in expectation."""
    deviations = centers.mean(axis=0) - centers
    splits = [theory.divergence(Weights.dense(q), deviations) for q in weights]
    constants = theory.Constants(
        1.0, NOISE_STD**2 * centers.shape[1], max(s.beta2 for s in splits), max(s.nu2 for s in splits),
        delta2, max(theory.rho(Weights.dense(q)) for q in weights),
        ((1 - centers.mean(axis=0)) ** 2).sum() / 2,
    )  # fmt: skip
    return theory.bound_terms(rates, constants)


@pytest.mark.parametrize("how", [
    {"selection": "uniform", "clients_per_round": 2},
    {"availability": "markov", "to_active": 0.3, "to_inactive": 0.3, "selection": "uniform",
     "clients_per_round": 1},
])  # fmt: skip
def test_the_bound_holds_in_expectation_over_participation(how):
    """Theorem 3.1 with delta^2(P) of Proposition 4.6 or 4.7, over 25 draws of fedmpi's participation.

    gamma is tiny and eta as large as allowed, so that of the bound only delta^2 is left in the end; without
    it the bound would not hold.
    """
    centers, rounds, weights = np.random.default_rng(5).standard_normal((6, 3)), 1000, []
    rates = theory.Rates(1e-5, 1 / (2 * 2 * 1e-5), 2, 1, rounds)
    for seed in range(25):
        config = validate.parse(config_text(6, **how), "test", [f"run.seed={seed}"])
        who = make_participation(config, 6)
        q = np.zeros((rounds, 6))
        for t in range(rounds):
            clients, values = who.weights(t)
            q[t, clients] = values
        q[q.sum(axis=1) == 0] = 1 / 6  # the theorem has no empty rounds
        weights.append(q)
    process, _ = process_of(6, **how)
    d2 = ((centers - centers.mean(axis=0)) ** 2).sum(axis=1).max()
    delta2 = theory.expected_delta2(process.variance, 6, rates.amplify_every, d2)
    assert all(theory.conditions(rates, 1.0).values())
    terms = bound_in_expectation(weights, centers, rates, delta2)
    reached = mean_run(weights, centers, rates).min()
    assert terms["total"] - terms["delta"] < reached <= terms["total"]


def test_the_bound_in_expectation_needs_its_delta_term():
    """One client at a time that stays for ever: |grad f|^2 tends to E |grad F_n - grad f|^2 = delta^2.

    Proposition 4.6 needs its variance of the average, which for a process that never changes does not fall.
    """
    centers, rounds = np.random.default_rng(6).standard_normal((5, 3)), 3000
    weights = [np.tile(np.eye(5)[n], (rounds, 1)) for n in range(5)]
    rates = theory.Rates(0.01, 1.0, 1, 1, rounds)
    deviations2 = ((centers - centers.mean(axis=0)) ** 2).sum(axis=1)
    terms = bound_in_expectation(weights, centers, rates, deviations2.mean())
    reached = mean_run(weights, centers, rates)
    assert reached[-500:].mean() == pytest.approx(deviations2.mean(), rel=0.1)
    assert reached.min() <= terms["total"]
    assert reached[-500:].mean() > terms["total"] - terms["delta"]
    variance = rounds * theory.independent_variance(1 / 5, 1.0)  # P Var(qbar) with P = T
    assert theory.expected_delta2(variance, 5, rounds, deviations2.max()) >= deviations2.mean()


# --- What a user sees ------------------------------------------------------------------------------------


def test_advice_warns_of_bias_first(fedmpi_cli, tmp_path):
    """The second line says it, with the floor and remedies; no P is suggested, nor drawn as a help."""
    (tmp_path / "b.toml").write_text(config_text(4, availability="bernoulli", probability=UNEQUAL))
    done = fedmpi_cli("advise", "b.toml", "--plot", "b.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("BIASED ")
    assert "mean q from 0.04208 (client 3) to 0.5887 (client 0), exact" in lines[1]
    assert "delta^2(P) stays at about 0.737 d^2" in lines[2]
    assert 'participation.weighting = "inverse-probability"; algorithm.name = "fedau"' in done.stdout
    assert "suggested      none: participation is biased" in done.stdout
    assert "amplify_every =" not in done.stdout
    found = json.loads(fedmpi_cli("advise", "b.toml", "--json").stdout)
    assert found["suggested"]["amplify_every"] is found["suggested"]["local_lr"] is None
    assert found["bound_suggested"] is None
    assert found["bias"]["is_biased"]
    means = np.array([0.58875, 0.24608, 0.08708, 0.04208])
    assert found["bias"]["floor"] == pytest.approx(4 * ((means - means.mean()) ** 2).sum(), rel=1e-3)
    # Here exactly: |sum_n mean_n (n - 1.5)|^2.
    assert found["bias"]["floor_delta2"] == pytest.approx((means @ [-1.5, -0.5, 0.5, 1.5]) ** 2, rel=1e-3)


def test_the_remedy_ends_the_warning(fedmpi_cli, tmp_path):
    """With inverse probabilities there is a proposition instead, and a P; for a trace it is no remedy."""
    (tmp_path / "b.toml").write_text(config_text(4, availability="bernoulli", probability=UNEQUAL))
    done = fedmpi_cli("advise", "b.toml", "--set", "participation.weighting=inverse-probability")
    assert "BIASED" not in done.stdout
    assert "Proposition 4.7" in done.stdout
    assert "suggested      amplify_every =" in done.stdout
    (tmp_path / "t.csv").write_text("client,start,end\n0,0,9\n1,2,4\n2,9,10\n3,5,6\n")
    trace = config_text(4, availability="trace", trace="t.csv", trace_period=10)
    (tmp_path / "t.toml").write_text(trace)
    found = json.loads(fedmpi_cli("advise", "t.toml", "--json").stdout)["bias"]
    assert found["is_biased"]
    assert found["remedies"] == ['algorithm.name = "fedau", "mifa" or "fedvarp"']


@pytest.mark.parametrize("name", ["mifa", "fedau"])
def test_no_word_of_weights_that_a_method_ignores(fedmpi_cli, tmp_path, name):
    """No bias, delta^2(P) or P of weights that do not count; nulls in the object; a picture is refused."""
    biased = config_text(4, availability="bernoulli", probability=UNEQUAL)
    (tmp_path / "b.toml").write_text(biased + f'name = "{name}"\n')
    text = fedmpi_cli("advise", "b.toml").stdout
    assert f"weights q, which algorithm.name = '{name}' ignores" in text
    assert not any(word in text for word in ("BIASED", "delta^2", "mean q", "sum of q", "suggested"))
    found = json.loads(fedmpi_cli("advise", "b.toml", "--json").stdout)
    assert found["bias"] is found["suggested"] is found["delta2"] is None
    assert (found["weights_count"], found["rounds_seen"]) == (False, 2000)
    refused = fedmpi_cli("advise", "b.toml", "--plot", "b.png")
    assert (refused.returncode, "--set algorithm.name=fedavg" in refused.stderr) == (2, True)
    assert fedmpi_cli("advise", "b.toml", "--set", "algorithm.name=fedavg").stdout.count("BIASED") == 1


def test_propositions_are_printed(fedmpi_cli, tmp_path):
    """In expectation, as the paper has it with probability 1 - c, and with the union bound."""
    (tmp_path / "u.toml").write_text(config_text(20, 1000, selection="uniform", clients_per_round=4))
    found = json.loads(fedmpi_cli("advise", "u.toml", "--json").stdout)["proposition"]
    assert (found["name"], found["c"]) == ("4.7", 0.05)
    period, expected, probable, for_all = found["rows"][0]
    assert (period, expected) == (1, pytest.approx(400 * 0.01))
    assert probable == pytest.approx(400 * np.log(2 / 0.05) / 2)
    assert for_all == pytest.approx(400 * np.log(2 * 20 * 1000 / 0.05) / 2)
    text = fedmpi_cli("advise", "u.toml").stdout
    assert "upsilon^2 = 0.01 (closed form)" in text
    assert "the sum over clients needs the union bound" in text
    chain = {"availability": "markov", "to_active": 0.2, "to_inactive": 0.2, "weighting": "all"}
    (tmp_path / "m.toml").write_text(config_text(4, 1000, **chain))
    found = json.loads(fedmpi_cli("advise", "m.toml", "--json").stdout)["proposition"]
    _, expected, probable, for_all = found["rows"][0]
    assert found["name"] == "4.6"
    assert probable == pytest.approx(expected / 0.05)
    assert for_all == pytest.approx(1000 * probable)


def test_nearly_regularized_is_said(fedmpi_cli, tmp_path):
    """A random offset splits a pass of the permutation: nearly even over the cycle, and so it is called."""
    cycle = {
        "availability": "periodic", "num_groups": 2, "rounds_per_group": 200, "random_offset": True,
        "selection": "permutation", "clients_per_round": 2,
    }  # fmt: skip
    (tmp_path / "p.toml").write_text(config_text(20, 2000, **cycle))
    found = json.loads(fedmpi_cli("advise", "p.toml", "--json", "--set", "run.seed=3").stdout)
    period, value = found["nearly_regularized"]
    assert found["regularized_P"] is None
    assert period == 400  # the cycle, though the config has P = 1
    assert 0 < value <= 1e-3
    text = fedmpi_cli("advise", "p.toml", "--set", "run.seed=3").stdout
    assert f"regularized    nearly: delta^2(P) is at most {value:.1g} d^2 at P = 400" in text
