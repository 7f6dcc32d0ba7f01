"""The paper's statements, on problems where every constant is known exactly."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedmpi import theory
from fedmpi.config import validate
from fedmpi.participation import make_participation
from fedmpi.theory import Weights
from fedmpi.theory.advice import Adviser, known_of_quadratic, look_ahead
from tests.support.algorithm_twin import algorithm_1, quadratic_gradient

N, DIM = 6, 3
CENTERS = np.random.default_rng(5).standard_normal((N, DIM)) * np.array([3.0, 1.0, 0.3])
DEVIATIONS = CENTERS.mean(axis=0) - CENTERS


@functools.cache
def realised(num_clients: int, rounds: int, seed: int = 1, **participation: object) -> Weights:
    """The weights of fedmpi's own participation."""
    keys = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in participation.items())
    text = f"""
        [run]
        num_rounds = {rounds}
        seed = {seed}
        [data]
        dataset = "synthetic"
        num_clients = {num_clients}
        [model]
        name = "logistic"
        [participation]
        {keys}
        [algorithm]
        local_lr = 0.1
        local_steps = 1
        amplify_every = {rounds}
    """
    config = validate.parse(text, "test", [])
    participation = make_participation(config, num_clients)
    found = [participation.weights(t) for t in range(rounds)]
    return Weights(
        np.repeat(np.arange(rounds), [len(clients) for clients, _ in found]),
        np.concatenate([clients for clients, _ in found]),
        np.concatenate([weights for _, weights in found]),
        rounds,
        num_clients,
    )


def dense(q: Weights) -> np.ndarray:
    """The matrix Q."""
    matrix = np.zeros((q.num_rounds, q.num_clients))
    matrix[q.rounds, q.clients] = q.weights
    return matrix


def random_q(seed: int, rounds: int = 40, num_clients: int = 9) -> np.ndarray:
    """Any weights that sum to 1 in each round, many of them 0."""
    draws = np.random.default_rng(seed)
    q = draws.random((rounds, num_clients)) * (draws.random((rounds, num_clients)) < 0.4)
    q[np.arange(rounds), draws.integers(num_clients, size=rounds)] += 0.1
    return q / q.sum(axis=1, keepdims=True)


# --- Definitions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 3, 7, 40])
def test_delta2_is_what_the_paper_defines(period):
    """Sparse code gives equations (7) and (15) as dense matrices do, absent clients included."""
    q = random_q(1)
    q[4] = 0  # a round without anybody
    deviations = np.random.default_rng(2).standard_normal((9, 4))
    deviations -= deviations.mean(axis=0)
    count = 40 // period
    qbar = q[: count * period].reshape(count, period, 9).mean(axis=1)
    expected = ((qbar @ deviations) ** 2).sum(axis=1)
    np.testing.assert_allclose(
        theory.exact_delta2(Weights.dense(q), deviations, period), expected, atol=1e-14
    )
    factors = 9 * ((qbar - qbar.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    np.testing.assert_allclose(theory.delta2_factors(Weights.dense(q), period), factors, atol=1e-14)
    d2 = (deviations**2).sum(axis=1).max()
    assert (expected <= factors * d2).all()


def test_beta_and_nu_are_a_decomposition():
    """Proposition 4.1: sum q |grad F_n - grad f|^2 = beta^2 + nu^2 in each round, to rounding."""
    q, deviations = random_q(3), np.random.default_rng(4).standard_normal((9, 5))
    deviations -= deviations.mean(axis=0)
    whole, beta2, nu2 = theory.round_split(Weights.dense(q), deviations)
    np.testing.assert_allclose(beta2 + nu2, whole, rtol=1e-13)
    np.testing.assert_allclose(beta2, ((q @ deviations) ** 2).sum(axis=1), rtol=1e-12)
    found = theory.divergence(Weights.dense(q), deviations)
    assert whole.max() <= found.d2
    assert beta2.min() > 0
    assert nu2.max() > 0


def test_a_gram_matrix_is_enough():
    """Divergences from inner products alone equal those from the gradients."""
    q, deviations = Weights.dense(random_q(6)), np.random.default_rng(7).standard_normal((9, 50))
    deviations -= deviations.mean(axis=0)
    short = theory.deviations_of_gram(deviations @ deviations.T)
    assert short.shape == (9, 9)
    for period in (1, 4):
        expected = theory.exact_delta2(q, deviations, period)
        np.testing.assert_allclose(theory.exact_delta2(q, short, period), expected, rtol=1e-9)
    np.testing.assert_allclose(theory.round_split(q, short), theory.round_split(q, deviations), rtol=1e-9)


def test_rho_and_absence_by_hand():
    """rho is 1/sqrt(S) for S equal weights; absence counts rounds before the first and after the last."""
    q = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0.25] * 4, [0.5, 0, 0.5, 0], [0, 0.5, 0.5, 0]])
    assert theory.rho(Weights.dense(q)) == np.sqrt(0.5)
    assert Weights.dense(q).longest_absence() == 2  # client 3 after round 2
    assert Weights.dense(q[:2]).longest_absence() == 1
    assert Weights.dense(q[:1]).longest_absence() == 1  # clients 2 and 3 never came


def test_bound_terms_by_hand():
    """The explicit bound with round numbers, term by term."""
    rates = theory.Rates(0.1, 2.0, 3, 2, 10)
    constants = theory.Constants(1.0, sigma2=2.0, beta2=0.5, nu2=1.0, delta2=0.25, rho=0.5, gap=5.0)
    terms = theory.bound_terms(rates, constants)
    expected = {"start": 10.0, "nu": 5.04, "beta": 25.92, "delta": 1.5, "noise": 1.78, "total": 44.24}
    assert terms == pytest.approx(expected)


def test_rates_meet_their_conditions():
    """Rates of Corollaries 3.2 and 3.3 satisfy Theorem 3.1; twice as much does not."""
    constants = theory.Constants(2.0, sigma2=0.7, beta2=1.0, nu2=1.0, delta2=0.0, rho=0.5, gap=3.0)
    for rates in (theory.rates_3_2(constants, 4, 3, 100), theory.rates_3_3(constants, 4, 3, 10_000)):
        assert all(theory.conditions(rates, 2.0).values())
    assert theory.suits_3_3(constants, 4, 3, 10_000)
    assert not theory.suits_3_3(constants, 400, 3, 10_000)
    loud = theory.Rates(1 / (12 * 2 * 3 * 4) * 1.01, 6.0, 4, 3, 7)
    assert list(theory.conditions(loud, 2.0).values()) == [False, False, False]
    assert theory.stochastic_interval(0.01, 4, 4, 100) == round(0.01 * 32 * 20)


def test_probable_forms_by_hand():
    """Chebyshev's and Hoeffding's delta^2 for numbers that can be computed in the head."""
    assert theory.expected_delta2(0.25, 2, 4) == 0.25
    assert theory.chebyshev_delta2(0.25, 2, 4, failure=0.5) == 0.5
    assert theory.hoeffding_delta2(2, 4, failure=2 / np.e) == pytest.approx(0.5)


# --- Evenness --------------------------------------------------------------------------------------------

REGULARIZED = [
    (12, 3, {"selection": "permutation", "clients_per_round": 4}),
    (12, 6, {"availability": "periodic", "num_groups": 3, "rounds_per_group": 2}),
    (12, 12, {"availability": "periodic", "num_groups": 3, "rounds_per_group": 4,
              "selection": "permutation", "clients_per_round": 1}),
    (12, 1, {}),
    (49, 7, {"selection": "permutation", "clients_per_round": 7}),  # 1/7 is no binary fraction
]  # fmt: skip


@pytest.mark.parametrize(("num_clients", "period", "how"), REGULARIZED)
def test_regularized_participation_has_delta2_zero(num_clients, period, how):
    """delta^2(P) is exactly 0 at the right P, for any gradients, and the smallest such P is found."""
    q = realised(num_clients, 60, **how)
    deviations = np.random.default_rng(1).standard_normal((num_clients, 3))
    deviations -= deviations.mean(axis=0)
    assert theory.regularized_interval(q) == period
    assert not theory.delta2_factors(q, period).any()
    assert not theory.exact_delta2(q, deviations, period).any()
    for shorter in range(1, period):
        assert theory.exact_delta2(q, deviations, shorter).max() > 1e-6


def test_uneven_participation_is_not_regularized():
    """One weight changed by a thousandth is enough; so is chance."""
    q = dense(realised(12, 60, selection="permutation", clients_per_round=4))
    q[40] *= np.linspace(0.999, 1.001, 12)
    assert theory.regularized_interval(Weights.dense(q)) is None
    assert theory.regularized_interval(realised(12, 60, selection="uniform", clients_per_round=4)) is None
    assert theory.regularized_interval(Weights.dense(np.zeros((5, 3)))) is None


@pytest.mark.parametrize("period", [5, 20, 80])
def test_independent_participation_falls_like_one_over_p(period):
    """Proposition 4.7: delta^2(P)/d^2 is N^2 upsilon^2 / P in the mean, less the N-th that mu takes up."""
    q = realised(20, 16_000, availability="bernoulli", probability=0.25, weighting="inverse-probability")
    variance = theory.independent_variance(0.25, weight=1 / (20 * 0.25))
    predicted = theory.expected_delta2(variance, 20, period) * (1 - 1 / 20)
    assert theory.delta2_factors(q, period).mean() == pytest.approx(predicted, rel=0.08)
    assert theory.sampled_long_run_variance(q, period) == pytest.approx(variance, rel=0.08)


@pytest.mark.parametrize("period", [100, 200])
def test_markov_participation_falls_with_its_long_run_variance(period):
    """Proposition 4.6: the constant is upsilon-hat^2, here 17/3 of the variance of a single round."""
    q = realised(
        20, 24_000, availability="markov", to_active=0.1, to_inactive=0.2, weighting="inverse-probability"
    )
    weight = 1 / (20 / 3)
    variance = theory.markov_long_run_variance(0.1, 0.2, weight)
    assert variance == pytest.approx(theory.independent_variance(1 / 3, weight) * 17 / 3)
    predicted = theory.expected_delta2(variance, 20, period) * (1 - 1 / 20)
    assert theory.delta2_factors(q, period).mean() == pytest.approx(predicted, rel=0.1)


# --- The bound -------------------------------------------------------------------------------------------

PATTERNS = {
    "permutation": {"selection": "permutation", "clients_per_round": 2},
    "periodic": {"availability": "periodic", "num_groups": 3, "rounds_per_group": 1},
    "uniform": {"selection": "uniform", "clients_per_round": 2},
    "markov": {"availability": "markov", "to_active": 0.3, "to_inactive": 0.2},
    "arbitrary": None,
}


def pattern(name: str, seed: int, rounds: int) -> np.ndarray:
    """A Q of some class whose weights sum to 1."""
    how = PATTERNS[name]
    return random_q(seed, rounds, N) if how is None else pattern_of(how, seed, rounds)


def pattern_of(how: dict[str, object], seed: int, rounds: int) -> np.ndarray:
    """A Q of fedmpi's own participation, which has no empty rounds."""
    q = dense(realised(N, rounds, seed=seed, **how))
    q[q.sum(axis=1) == 0] = 1 / N  # the theorem has no empty rounds
    return q


def mean_gradients(q: np.ndarray, rates: theory.Rates, noise_std: float, seeds: int) -> np.ndarray:
    """E |grad f(x_t)|^2 over the noise, for one Q."""
    runs = []
    for seed in range(seeds):
        gradient = quadratic_gradient(CENTERS, noise_std, seed)
        run = algorithm_1(
            gradient, q, np.full(DIM, 2.0), rates.local_lr, rates.amplification, rates.amplify_every,
            rates.local_steps,
        )  # fmt: skip
        runs.append(((np.array(run) - CENTERS.mean(axis=0)) ** 2).sum(axis=1))
    return np.mean(runs, axis=0)


def constants_of(q: np.ndarray, period: int, noise_std: float) -> theory.Constants:
    """All of them, exact."""
    weights = Weights.dense(q)
    found = theory.divergence(weights, DEVIATIONS)
    gap = ((2.0 - CENTERS.mean(axis=0)) ** 2).sum() / 2
    delta2 = theory.exact_delta2(weights, DEVIATIONS, period).max()
    return theory.Constants(
        1.0, noise_std**2 * DIM, found.beta2, found.nu2, delta2, theory.rho(weights), gap
    )


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_bound_holds(name, seed):
    """min_t E|grad f(x_t)|^2 stays below Theorem 3.1, at the largest rates and those of Corollary 3.2."""
    rounds, period, steps, noise_std = 48, 3, 2, 1.0
    q = pattern(name, seed, rounds)
    constants = constants_of(q, period, noise_std)
    largest = theory.Rates(1 / (12 * steps * period), 6.0, period, steps, rounds)
    for rates in (largest, theory.rates_3_2(constants, period, steps, rounds)):
        assert all(theory.conditions(rates, 1.0).values())
        seen = mean_gradients(q, rates, noise_std, seeds=8).min()
        assert seen <= theory.bound_terms(rates, constants)["total"]


BY_CHANCE = {
    "uniform": ({"selection": "uniform", "clients_per_round": 2}, 4),
    "markov": ({"availability": "markov", "to_active": 0.3, "to_inactive": 0.2}, 8),
}


@pytest.mark.parametrize("name", BY_CHANCE)
def test_the_bound_holds_in_expectation(name):
    """The mean over Q and noise stays below Theorem 3.1 with the mean of delta^2(P), which is less than
    most Q have in their worst interval and than Propositions 4.6 and 4.7 say."""
    how, period = BY_CHANCE[name]
    rounds, noise_std, draws = 48, 1.0, 40
    variance = theory.sampled_long_run_variance(Weights.dense(pattern_of(how, 0, 8000)), period)
    largest = ((DEVIATIONS**2).sum(axis=1)).max()
    expected = theory.expected_delta2(variance, N, period, d2=largest)

    several = [pattern_of(how, seed, rounds) for seed in range(1, draws + 1)]
    found = [theory.exact_delta2(Weights.dense(q), DEVIATIONS, period) for q in several]
    mean = float(np.mean(found))
    assert mean <= expected
    assert mean < np.median([each.max() for each in found])

    constants = [constants_of(q, period, noise_std) for q in several]
    worst = replace(
        constants[0], delta2=mean, beta2=max(c.beta2 for c in constants), nu2=max(c.nu2 for c in constants),
        rho=max(c.rho for c in constants),
    )  # fmt: skip
    for rates in (
        theory.Rates(1 / (12 * 2 * period), 6.0, period, 2, rounds),
        theory.rates_3_2(worst, period, 2, rounds),
    ):
        assert all(theory.conditions(rates, 1.0).values())
        seen = np.mean([mean_gradients(q, rates, noise_std, seeds=1) for q in several], axis=0)
        assert seen.min() <= theory.bound_terms(rates, worst)["total"]


def test_the_bound_needs_its_delta_term():
    """With one client alone all other terms vanish in time, and |grad f|^2 stays at delta^2(P)."""
    rounds = 4000
    q = np.zeros((rounds, N))
    q[:, 0] = 1
    constants = constants_of(q, 1, 0.0)
    rates = theory.Rates(0.01, 1.0, 1, 1, rounds)
    seen = mean_gradients(q, rates, 0.0, seeds=1)
    terms = theory.bound_terms(rates, constants)
    assert seen[-1] == pytest.approx(constants.delta2, rel=1e-6)
    assert seen[-1] > terms["total"] - terms["delta"]
    assert seen.min() <= terms["total"]


def test_the_bound_in_expectation_needs_its_delta_term():
    """One client drawn anew every 200 rounds: all are equal in the mean over Q, but only the mean of
    delta^2(P) keeps the bound above the mean of |grad f|^2."""
    rounds, block, period, draws = 4000, 200, 20, 24
    several = []
    for seed in range(draws):
        chosen = np.random.default_rng(seed).integers(N, size=rounds // block)
        several.append(np.eye(N)[np.repeat(chosen, block)])
    rates = theory.Rates(1e-4, 250.0, period, 1, rounds)
    assert all(theory.conditions(rates, 1.0).values())
    mean = np.mean([theory.exact_delta2(Weights.dense(q), DEVIATIONS, period) for q in several])
    terms = theory.bound_terms(rates, replace(constants_of(several[0], period, 0.0), delta2=float(mean)))
    seen = np.mean([mean_gradients(q, rates, 0.0, seeds=1) for q in several], axis=0).min()
    assert terms["total"] - terms["delta"] < seen <= terms["total"]


def test_linear_speed_up():
    """On a noisy quadratic, S clients in each round leave an S-th of one client's error (rho^2 = 1/S)."""
    rounds, num_clients, dim, gamma = 1200, 8, 8, 0.2
    errors = {}
    for per_round in (1, 2, 4, 8):
        q = dense(realised(num_clients, rounds, selection="permutation", clients_per_round=per_round))
        assert theory.rho(Weights.dense(q)) == pytest.approx(per_round**-0.5)
        gradient = quadratic_gradient(np.zeros((num_clients, dim)), 1.0, seed=per_round)
        run = algorithm_1(gradient, q, np.zeros(dim), gamma, 1.0, 1, 1)
        errors[per_round] = (np.array(run)[50:] ** 2).sum(axis=1).mean()
    alone = gamma / (2 - gamma) * dim  # the stationary variance of SGD's error
    for per_round, error in errors.items():
        assert error * per_round == pytest.approx(alone, rel=0.15)


# --- Advice ----------------------------------------------------------------------------------------------


def test_suggested_rates_lower_the_bound():
    """For quadratic problems the suggestion meets all conditions and its bound is below the config's."""
    text = f"""
        [run]
        num_rounds = 3000
        [data]
        dataset = "quadratic"
        centers = {CENTERS.tolist()}
        noise_std = 0.5
        [model]
        name = "quadratic"
        [participation]
        selection = "uniform"
        clients_per_round = 2
        [algorithm]
        local_lr = 0.0001
        local_steps = 2
        amplification = 2.0
        amplify_every = 5
    """
    config = validate.parse(text, "test", [])
    known = known_of_quadratic(config)
    adviser = Adviser(config, look_ahead(config, make_participation(config, N), N), known)
    report = adviser.report()
    assert known.sigma2 == 0.25 * DIM
    assert report["regularized_P"] is None
    assert all(report["conditions"].values())
    assert report["bound_suggested"]["total"] < report["bound"]["total"]
    rates, _, _ = adviser.suggested()
    assert all(theory.conditions(rates, 1.0).values())


def test_theory_needs_neither_torch_nor_mpi():
    """Importing it loads neither."""
    code = "import sys, fedmpi.theory.advice; assert not {'torch', 'mpi4py'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
