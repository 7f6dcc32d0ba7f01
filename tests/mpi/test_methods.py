"""Every method against its slow twin, and the equalities that each must keep, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.config import METHODS, validate
from fedmpi.data import rng
from fedmpi.data.sources import load_dataset
from fedmpi.methods import METHODS as KINDS
from fedmpi.methods import returns
from fedmpi.participation import make_participation
from fedmpi.simulation.loop import Simulation
from fedmpi.storage.checkpoint import read_checkpoint, read_part, write_checkpoint, write_part
from tests.support import method_twins as twins
from tests.support.algorithm_twin import logistic_gradient, logistic_loss, quadratic_gradient
from tests.support.configs import SELECTION_OF
from tests.support.simulations import random_q, simulate, write_schedule

pytestmark = pytest.mark.mpi

# Name of the case: method, keys of [algorithm], its twin and the twin's options.
CASES = {
    "fedavg": ("fedavg", {}, twins.FedAvg, {}),
    "wait-minibatch": ("wait-minibatch", {"wait_rounds": 3}, twins.WaitMinibatch, {"cycle": 3}),
    "wait-full": ("wait-full", {"wait_rounds": 3}, twins.WaitFull, {"cycle": 3}),
    "mifa": ("mifa", {}, twins.Mifa, {"wait": True}),
    "mifa from zeros": ("mifa", {"warm_start": "false"}, twins.Mifa, {"wait": False}),
    "fedlaavg": ("fedlaavg", {}, twins.Mifa, {"wait": False}),
    "fedau": ("fedau", {}, twins.FedAU, {}),
    "fedau, K = 3": ("fedau", {"cutoff": 3}, twins.FedAU, {"cutoff": 3}),
    "fedvarp": ("fedvarp", {}, twins.FedVarp, {}),
    "scaffold": ("scaffold", {}, twins.Scaffold, {}),
    "amplified-scaffold": ("amplified-scaffold", {}, twins.AmplifiedScaffold, {}),
    "fedprox": ("fedprox", {"mu": 0.7}, twins.FedProx, {"mu": 0.7}),
    "fedadam": ("fedadam", {}, twins.FedAdam, {"b1": 0.9, "b2": 0.99, "tau": 1e-3}),
    "fedyogi": (
        "fedyogi",
        {"beta1": 0.8, "beta2": 0.9, "tau": 0.01},
        twins.FedYogi,
        {"b1": 0.8, "b2": 0.9, "tau": 0.01},
    ),
    "fedavgm": ("fedavgm", {}, twins.FedAvg, {}),
    "focus": ("focus", {}, twins.Focus, {}),
    "fedstale": ("fedstale", {"beta": 0.7}, twins.FedStale, {"beta": 0.7}),
    "debiasing-fedavg": ("debiasing-fedavg", {}, twins.DebiasingFedAvg, {}),
    "fedexp": ("fedexp", {}, twins.FedExP, {"epsilon": 1e-3}),
    "fedexp, small epsilon": ("fedexp", {"epsilon": 1e-4}, twins.FedExP, {"epsilon": 1e-4}),
    "feddyn": ("feddyn", {"alpha": 0.6}, twins.FedDyn, {"alpha": 0.6}),
    "fedawe": ("fedawe", {}, twins.FedAWE, {}),
    "fedawe, eta_g = 0.6": ("fedawe", {"echo": 0.6}, twins.FedAWE, {"echo": 0.6}),
    "fedpbc": ("fedpbc", {}, twins.FedPBC, {}),
    "f3ast": ("f3ast", {"rate_step": 0.2}, twins.F3AST, {"beta": 0.2}),
    "ca-fed": ("ca-fed", {}, twins.CAFed, {"tolerance": 0.0, "kappa": 1.0, "memory": 0.0}),
    "ca-fed, careful": (
        "ca-fed",
        {"tolerance": 0.01, "bias_weight": 3.0, "loss_memory": 0.6},
        twins.CAFed,
        {"tolerance": 0.01, "kappa": 3.0, "memory": 0.6},
    ),
    "fednova": ("fednova", {}, twins.FedNova, {}),
    "mimelite": ("mimelite", {"local_momentum": 0.8}, twins.MimeLite, {"beta": 0.8}),
}

QUADRATIC = """
[run]
num_rounds = 24
dtype = "float64"
seed = 5
[data]
dataset = "quadratic"
centers = {centers}
noise_std = 0.3
[model]
name = "quadratic"
initial = {initial}
[participation]
{participation}
[algorithm]
local_steps = 2
{algorithm}
"""

LOGISTIC = """
[run]
num_rounds = 16
dtype = "float64"
seed = 3
[data]
dataset = "synthetic"
num_clients = 7
train_samples = 300
test_samples = 20
num_classes = 4
shape = [1, 3, 5]
partition = "dirichlet"
alpha = 2.0
[model]
name = "logistic"
[participation]
{participation}
[algorithm]
local_steps = 3
batch_size = 8
{algorithm}
"""

AT_RANDOM = 'availability = "bernoulli"\nprobability = 0.4\nselection = "{}"\nclients_per_round = 3'
IN_TURN = (
    'availability = "periodic"\nnum_groups = 3\nrounds_per_group = 2\nprobability = 0.8\n'
    'selection = "{}"\nclients_per_round = 2'
)


@pytest.fixture
def shared_path(mpi_tmp_path):
    """One temporary folder for all ranks."""
    return mpi_tmp_path


def given(comm, folder, method: str, seed: int, rounds: int, clients: int) -> str:
    """[participation] that takes any weights from a file; some methods may not be told who takes part."""
    if method in SELECTION_OF:
        return AT_RANDOM.format(SELECTION_OF[method])
    q = random_q(seed, rounds, clients)
    write_schedule(comm, folder / "q.csv", q)
    return f'selection = "schedule"\nschedule = "{folder}/q.csv"'


def by_model(pattern: str, method: str) -> str:
    """[participation] with a pattern, whose weights are 1/S."""
    return pattern.format(SELECTION_OF.get(method, "uniform"))


def lines(keys: dict) -> str:
    """Keys as TOML."""
    return "\n".join(f"{key} = {value}" for key, value in keys.items())


def steps_by_hand(config, t: int, n: int) -> int:
    """I of a client in a round, from the config."""
    steps = config.algorithm.local_steps
    if isinstance(steps, int):
        return steps
    if config.algorithm.local_steps_law == "given":
        return steps[n]
    return int(rng.stream(config.run.seed, "local-steps", n, t).integers(steps[0], steps[1] + 1))


def assert_as_twin(comm, text: str, gradients, case: str) -> None:
    """The simulated x_t are those of the twin, for every t."""
    simulation, trajectory = simulate(comm, text)
    config, num_clients = simulation.config, simulation.data.partition.num_clients
    q = np.zeros((config.run.num_rounds, num_clients))
    participation = make_participation(config, num_clients)
    for t in range(len(q)):
        who, weights = participation.weights(t)
        q[t, who] = weights
    gradient, full_gradient, at_x = gradients(simulation)
    method, _, kind, options = CASES[case]
    how, default_lr = config.algorithm, 0.1 if method in ("fedadam", "fedyogi") else 1.0
    beta = how.server_momentum
    problem = twins.Problem(
        gradient=gradient,
        full_gradient=full_gradient,
        at_x=at_x,
        q=q,
        x_0=trajectory[0],
        gamma=lambda t: config.warmup.local_lr if t < config.warmup_rounds else how.local_lr,
        steps_of=lambda t, n: steps_by_hand(config, t, n),
        warmup_rounds=config.warmup_rounds,
        eta=how.amplification,
        period=how.amplify_every,
        server_lr=default_lr if how.server_lr is None else how.server_lr,
        momentum=beta if beta is not None else 0.9 if method == "fedavgm" else 0.0,
        per_round=config.participation.clients_per_round,
    )
    assert not np.array_equal(trajectory[0], trajectory[-1])
    for t, (x, twin) in enumerate(zip(trajectory, twins.run(problem, kind, **options), strict=True)):
        error = np.abs(x - twin).max() / max(np.abs(twin).max(), 1)
        assert error < 1e-10, f"round {t}: off by {error}"


WARMUP = "[warmup]\nnum_rounds = 7\nlocal_lr = 0.02\n"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", ["any weights", "server options", "in turn", "warm-up"])
def test_on_a_noisy_quadratic(comm, shared_path, case, setting):
    """x_t of every method with its options, for any weights, in turns, with amplification and warm-up."""
    draws = np.random.default_rng(len(case))
    centers, initial = draws.standard_normal((9, 4)), draws.standard_normal(4)
    method, keys, _, _ = CASES[case]
    keys = {"name": f'"{method}"', "local_lr": 0.03, **keys}
    if setting in ("in turn", "server options"):
        participation = by_model(IN_TURN if setting == "in turn" else AT_RANDOM, method)
    else:
        participation = given(comm, shared_path, method, len(case), 24, 9)
    if setting == "server options":
        keys |= {"server_lr": 0.6, "server_momentum": 0.3}
    if setting in ("in turn", "warm-up"):
        keys |= {"amplification": 1.7, "amplify_every": 4}
    text = QUADRATIC.format(
        centers=centers.tolist(), initial=initial.tolist(), participation=participation,
        algorithm=lines(keys),
    )  # fmt: skip
    gradient = quadratic_gradient(centers, 0.3, seed=5)
    text += WARMUP if setting == "warm-up" else ""
    exactly = lambda n, x: (0.5 * np.sum((x - centers[n]) ** 2), x - centers[n])  # noqa: E731
    assert_as_twin(comm, text, lambda simulation: (gradient, gradient, exactly), case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "steps", ["[2, 1, 4, 3, 1, 5, 2, 2, 3]", '[1, 4]\nlocal_steps_law = "uniform"'], ids=["given", "drawn"]
)
def test_with_unequal_local_steps(comm, shared_path, case, steps):
    """The same where each client takes steps of its own number, given or drawn anew in each round."""
    draws = np.random.default_rng(len(case))
    centers, initial = draws.standard_normal((9, 4)), draws.standard_normal(4)
    method, keys, _, _ = CASES[case]
    keys = {"name": f'"{method}"', "local_lr": 0.03, "amplification": 1.4, "amplify_every": 4, **keys}
    text = QUADRATIC.format(
        centers=centers.tolist(), initial=initial.tolist(), algorithm=lines(keys),
        participation=given(comm, shared_path, method, len(case), 24, 9),
    ).replace("local_steps = 2", f"local_steps = {steps}")  # fmt: skip
    gradient = quadratic_gradient(centers, 0.3, seed=5)
    exactly = lambda n, x: (0.5 * np.sum((x - centers[n]) ** 2), x - centers[n])  # noqa: E731
    assert_as_twin(comm, text, lambda simulation: (gradient, gradient, exactly), case)


@pytest.mark.parametrize("case", CASES)
def test_on_logistic_regression(comm, shared_path, case):
    """The same on minibatches (wait-full: on all data), with warm-up, amplification and server_lr."""
    method, keys, _, _ = CASES[case]
    keys = {"name": f'"{method}"', "local_lr": 0.1, "server_lr": 0.8, **keys}
    keys |= {"amplification": 1.5, "amplify_every": 3}
    participation = given(comm, shared_path, method, 11, 16, 7)
    text = LOGISTIC.format(participation=participation, algorithm=lines(keys))

    def gradients(simulation):
        data, partition = load_dataset(simulation.config.data), simulation.data.partition
        pixels = (data.train_inputs.reshape(300, -1) / 255 - 0.5) / 0.3
        rows = [partition.samples(n) for n in range(7)]
        samples = [pixels[r] for r in rows], [data.train_labels[r] for r in rows], 4
        by_batch, full = (logistic_gradient(*samples, batch, 3) for batch in (8, 0))
        loss = lambda n, x: logistic_loss(samples[0][n], samples[1][n], x)  # noqa: E731
        return by_batch, full, lambda n, x: (loss(n, x), full(n, 0, x))

    assert_as_twin(comm, text + WARMUP.replace("7", "2"), gradients, case)


def test_no_method_without_a_twin():
    """Every built-in method is among the cases."""
    assert {method for method, *_ in CASES.values()} == set(METHODS)


# --- What must hold for each method -------------------------------------------------------------------

CENTERS = np.random.default_rng(3).standard_normal((8, 5))
EVERYBODY = 'selection = "all"'
SOME = 'selection = "uniform"\nclients_per_round = 3'


def quadratic(comm, participation: str, rounds: int = 15, **keys):
    """A noisy quadratic run in float32; (simulation, x_0, x_1, ...)."""
    text = QUADRATIC.format(
        centers=CENTERS.tolist(), initial=[1.0] * 5, participation=participation,
        algorithm=lines({"local_lr": 0.05, **keys}),
    ).replace("float64", "float32").replace("num_rounds = 24", f"num_rounds = {rounds}")  # fmt: skip
    return simulate(comm, text)


def table(comm, simulation, name: str) -> np.ndarray:
    """Collective. A table of all clients, from all ranks; zero for those never seen."""
    full = np.zeros((8, 5))
    dumped = simulation.population.memory.dump()
    full[dumped["clients"]] = dumped[name]
    positive, negative = comm.maximum(full), comm.maximum(-full)
    return np.where(positive > 0, positive, -negative)


def assert_close(found, expected, tolerance: float = 1e-6) -> None:
    """The same to an absolute tolerance."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("warm_start", ["true", "false"])
def test_mifa_with_everybody_is_fedavg(comm, warm_start):
    """All available: MIFA equals FedAvg with 1/N to 1e-6, with either start."""
    _, mifa = quadratic(comm, EVERYBODY, name='"mifa"', warm_start=warm_start)
    _, plain = quadratic(comm, EVERYBODY + '\nweighting = "all"')
    assert_close(mifa, plain)


@pytest.mark.parametrize("name", ["mifa", "fedvarp", "fedlaavg"])
def test_the_running_mean_is_the_mean_of_the_table(comm, name):
    """What the server keeps up to date by changes is the mean of what all clients remember."""
    who = SOME.replace("uniform", SELECTION_OF.get(name, "uniform"))
    simulation, _ = quadratic(comm, who, name=f'"{name}"')
    assert_close(simulation.state.extras["mean"], table(comm, simulation, "memory").mean(axis=0), 1e-7)


def test_mifa_waits_for_everybody(comm):
    """x does not move before the last client was seen, and does from then on."""
    simulation, trajectory = quadratic(comm, SOME, name='"mifa"')
    participation, unseen, first = make_participation(simulation.config, 8), set(range(8)), None
    for t in range(15):
        unseen -= set(participation.weights(t)[0].tolist())
        if not unseen and first is None:
            first = t
    assert 1 < first < 14
    assert all(np.array_equal(x, trajectory[0]) for x in trajectory[: first + 1])
    assert not np.array_equal(trajectory[first + 1], trajectory[first])


def test_fedau_with_everybody_is_fedavg(comm):
    """Everybody in every round: all intervals are 1, and FedAU is FedAvg."""
    _, fedau = quadratic(comm, EVERYBODY, name='"fedau"')
    _, plain = quadratic(comm, EVERYBODY)
    assert_close(fedau, plain)


def test_fedau_with_cutoff_one_is_fedavg_over_all(comm):
    """K = 1 records nothing but ones: the weight is 1/N."""
    _, fedau = quadratic(comm, SOME, name='"fedau"', cutoff=1)
    _, plain = quadratic(comm, SOME + '\nweighting = "all"')
    assert_close(fedau, plain)


def test_fedvarp_with_everybody_is_fedavg(comm):
    """Full participation: v is the mean of the updates."""
    _, varp = quadratic(comm, EVERYBODY, name='"fedvarp"')
    _, plain = quadratic(comm, EVERYBODY)
    assert_close(varp, plain)


@pytest.mark.parametrize("name", ["scaffold", "amplified-scaffold"])
@pytest.mark.parametrize(
    "who", [SOME, EVERYBODY, AT_RANDOM.format("all").replace("clients_per_round = 3", "")]
)
def test_the_servers_control_is_the_mean_of_the_clients(comm, name, who):
    """c = mean of c_n, always; with amplification too."""
    simulation, _ = quadratic(comm, who, name=f'"{name}"', amplification=1.5, amplify_every=3)
    control = simulation.state.extras["control"]
    assert np.abs(control).max() > 0.01
    assert_close(control, table(comm, simulation, "control").mean(axis=0), 1e-7)


@pytest.mark.parametrize("who", [SOME, EVERYBODY])
def test_amplified_scaffold_without_amplification_is_scaffold(comm, who):
    """P = 1, eta = 1."""
    _, amplified = quadratic(comm, who, name='"amplified-scaffold"')
    _, plain = quadratic(comm, who, name='"scaffold"')
    assert_close(amplified, plain)


def test_scaffold_with_everybody_on_a_shared_hessian_is_fedavg(comm):
    """Gradients are linear with one slope for all: the corrections cancel in the mean."""
    _, corrected = quadratic(comm, EVERYBODY, name='"scaffold"')
    _, plain = quadratic(comm, EVERYBODY)
    assert_close(corrected, plain, 1e-5)


@pytest.mark.parametrize(
    "keys", [{"name": '"fedprox"', "mu": 0}, {"name": '"fedavgm"', "server_momentum": 0}]
)
def test_no_pull_and_no_momentum_are_fedavg(comm, keys):
    """FedProx with mu = 0 and FedAvgM with beta = 0 are FedAvg."""
    _, special = quadratic(comm, SOME, **keys)
    _, plain = quadratic(comm, SOME)
    assert_close(special, plain)


def test_fedstale_without_memory_is_fedavg_with_known_probabilities(comm):
    """beta = 0 with the weights 1 / (N p_n): the same bits as FedAvg with them."""
    known = AT_RANDOM.format("all").replace("clients_per_round = 3", 'weighting = "inverse-probability"')
    _, stale = quadratic(comm, known, name='"fedstale"', beta=0)
    _, plain = quadratic(comm, known)
    np.testing.assert_array_equal(stale, plain)


@pytest.mark.parametrize("who", [SOME, EVERYBODY])
def test_fedstale_with_beta_one_is_fedvarp(comm, who):
    """beta = 1 with the weights 1/S: FedVARP."""
    _, stale = quadratic(comm, who, name='"fedstale"', beta=1)
    _, varp = quadratic(comm, who, name='"fedvarp"')
    assert_close(stale, varp)


def test_debiasing_fedavg_with_everybody_is_fedavg(comm):
    """Everybody in every round: all rates are 1."""
    _, debiasing = quadratic(comm, EVERYBODY, name='"debiasing-fedavg"')
    _, plain = quadratic(comm, EVERYBODY)
    assert_close(debiasing, plain)


def test_debiasing_fedavg_learns_the_known_probability(comm):
    """In a long run its weights come to 1 / (N p_n)."""
    probability = [0.2, 0.9, 0.4, 0.7, 0.5, 0.3, 0.8, 0.6]
    simulation, _ = quadratic(
        comm, f'availability = "bernoulli"\nprobability = {probability}\nselection = "all"',
        rounds=1500, name='"debiasing-fedavg"', local_lr=1e-4,
    )  # fmt: skip
    method, everybody = simulation.method, np.arange(8)
    _, weights = method.participants(simulation.state, 1499, everybody, np.ones(8))
    np.testing.assert_allclose(weights * 8 * probability, 1, atol=0.15)


def test_fedexp_with_a_large_epsilon_is_fedavg(comm):
    """The server's rate is never below 1."""
    _, careful = quadratic(comm, SOME, name='"fedexp"', epsilon=1e9)
    _, plain = quadratic(comm, SOME)
    np.testing.assert_array_equal(careful, plain)


def test_fedexp_goes_further_where_clients_disagree(comm):
    """Where updates nearly cancel, the rate is above 1."""
    _, further = quadratic(comm, SOME, name='"fedexp"', epsilon=1e-4)
    _, plain = quadratic(comm, SOME)
    assert np.abs(further - np.array(plain)).max() > 1e-3


@pytest.mark.parametrize("who", [SOME, EVERYBODY])
def test_feddyns_server_keeps_the_mean_of_the_clients(comm, who):
    """h = mean of h_n, always."""
    simulation, _ = quadratic(comm, who, name='"feddyn"', alpha=0.5)
    control = simulation.state.extras["control"]
    assert np.abs(control).max() > 0.01
    assert_close(control, table(comm, simulation, "control").mean(axis=0), 1e-7)


@pytest.mark.parametrize("name", ["fedawe", "fedpbc"])
def test_own_models_with_everybody_are_fedavg(comm, name):
    """All start from the x that they got in the round before."""
    _, own = quadratic(comm, EVERYBODY, name=f'"{name}"')
    _, plain = quadratic(comm, EVERYBODY)
    assert_close(own, plain)


@pytest.mark.parametrize("name", ["fedawe", "fedpbc"])
def test_only_those_who_take_part_get_x(comm, name):
    """After a round their own model is x; all others have another one."""
    simulation, trajectory = quadratic(comm, SOME, name=f'"{name}"')
    who, _ = make_participation(simulation.config, 8).weights(14)
    own = trajectory[0] + table(comm, simulation, "own")
    assert_close(own[who], np.tile(trajectory[-1], (len(who), 1)))
    others = np.delete(own, who, axis=0)
    assert (np.abs(others - trajectory[-1]).max(axis=1) > 1e-3).all()


def test_amplification_after_intervals_that_are_observed(comm):
    """Groups in turns of three rounds: after the third cycle every twelfth round is amplified, and before
    by the periods seen so far; x moves by eta times what the interval gave.
    """
    who = 'availability = "periodic"\nnum_groups = 4\nrounds_per_group = 3\nselection = "all"'
    keys = {"amplification": 1.5, "amplify_every": 2, "amplify_law": '"observed"', "local_lr": 0.01}
    simulation, x = quadratic(comm, who, rounds=80, **keys)
    extras, ends, anchor = returns.initial(8), [], 0
    for t in range(80):
        extras |= returns.seen(extras, t, make_participation(simulation.config, 8).weights(t)[0])
        if t + 1 - anchor >= returns.interval(extras, 2):
            ends, anchor = [*ends, t], t + 1
    assert set(np.diff(ends)[-3:]) == {12}
    assert simulation.state.anchor_round == ends[-1] + 1
    gradient = quadratic_gradient(CENTERS, 0.3, seed=5)
    drawn, y, start = dict.fromkeys(range(8), 0), x[0], x[0]
    for t in range(80):
        moves = []
        for n in make_participation(simulation.config, 8).weights(t)[0].tolist():
            z = y
            for _ in range(2):
                z = z - 0.01 * gradient(n, drawn[n], z)
                drawn[n] += 1
            moves.append(z - y)
        y = y + np.mean(moves, axis=0)
        if t in ends:
            y = start = start + 1.5 * (y - start)
        assert_close(x[t + 1], y, 1e-5)


def test_f3ast_with_everybody_weighs_all_alike(comm):
    """All are chosen in every round: all rates are the same, and go to 1."""
    simulation, _ = quadratic(comm, EVERYBODY, name='"f3ast"', rate_step=0.5)
    np.testing.assert_allclose(simulation.state.extras["rates"], 1 - (7 / 8) * 0.5**15)


def test_f3ast_takes_turns(comm):
    """All available, two chosen at a time: everybody comes once before anybody comes again."""
    simulation, _ = quadratic(
        comm, 'selection = "by-method"\nclients_per_round = 2', rounds=12, name='"f3ast"', rate_step=0.1
    )
    assert (simulation.population.minibatches_drawn == 3 * 2).all()


def test_ca_fed_leaves_nobody_out_for_a_large_kappa(comm):
    """All that matters is bias: everybody available takes part, with 1 / (N pi_n)."""
    who = AT_RANDOM.format("all").replace("clients_per_round = 3", "")
    simulation, trajectory = quadratic(comm, who, name='"ca-fed"', bias_weight=1e9)
    _, plain = quadratic(comm, who, name='"debiasing-fedavg"')
    visits, q = simulation.state.extras["visits"], simulation.state.extras["allocation"]
    np.testing.assert_allclose(q, 1 / (8 * (visits + 0.5) / 16))
    assert not np.array_equal(trajectory[-1], trajectory[0])
    assert np.abs(trajectory[-1] - plain[-1]).max() < 0.3


def test_ca_fed_leaves_out_the_largest_losses_for_kappa_0(comm):
    """Without bias in the error those with the largest losses go, as long as the mean loss falls."""
    simulation, _ = quadratic(comm, EVERYBODY, name='"ca-fed"', bias_weight=0)
    q, losses = simulation.state.extras["allocation"], simulation.state.extras["losses"]
    assert q[losses.argmax()] == 0
    assert q[losses.argmin()] > 0
    assert losses[q > 0].mean() < losses.mean()


def test_mimelite_without_momentum_is_fedavg(comm):
    """b = 0."""
    _, mime = quadratic(comm, SOME, name='"mimelite"', local_momentum=0)
    _, plain = quadratic(comm, SOME)
    assert_close(mime, plain)


def test_fednova_with_equal_steps_is_fedavg(comm):
    """I_eff / I_n = 1."""
    _, nova = quadratic(comm, SOME, name='"fednova"')
    _, plain = quadratic(comm, SOME)
    np.testing.assert_array_equal(nova, plain)


def test_fednova_finds_the_mean_where_fedavg_follows_those_who_step_more(comm):
    """Two groups of clients; gamma is small. The fixed point of FedAvg is pulled to the second one."""
    centers = np.repeat([[0.0], [1.0]], 4, axis=0).tolist()
    keys = {"local_lr": 0.02, "local_steps": [1] * 4 + [9] * 4}
    text = QUADRATIC.replace("noise_std = 0.3\n", "").replace("local_steps = 2\n", "")
    ends = {}
    for name in ("fedavg", "fednova"):
        algorithm = lines({"name": f'"{name}"', **keys})
        words = {"centers": centers, "initial": [0.3], "participation": EVERYBODY, "algorithm": algorithm}
        ends[name] = simulate(comm, text.format(**words), ("run.num_rounds=150",))[1][-1][0]
    assert abs(ends["fednova"] - 0.5) < 0.03
    assert ends["fedavg"] > 0.85


def test_fedawe_moves_by_the_rounds_missed(comm, shared_path):
    """A client that comes for the first time in round 4 echoes its update five times, from x_0."""
    q = np.zeros((5, 8))
    q[4, 2] = 1
    write_schedule(comm, shared_path / "q.csv", q)
    who = f'selection = "schedule"\nschedule = "{shared_path}/q.csv"'
    _, late = quadratic(comm, who, rounds=5, name='"fedawe"')
    _, plain = quadratic(comm, who, rounds=5)
    assert_close(late[5] - late[0], 5 * (plain[5] - plain[0]))


def test_fedpbc_trains_those_who_are_absent(comm):
    """All clients go on in their data in every round; the result file has only those who took part."""
    simulation, _ = quadratic(comm, SOME, name='"fedpbc"')
    assert (simulation.population.minibatches_drawn == 15 * 2).all()


def test_fedavgm_is_fedavg_with_server_momentum(comm):
    """One mechanism, two names: the same bits."""
    _, named = quadratic(comm, SOME, name='"fedavgm"')
    _, option = quadratic(comm, SOME, server_momentum=0.9)
    np.testing.assert_array_equal(named, option)


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(SELECTION_OF)))
def test_p_1_with_eta_is_a_server_rate(comm, name):
    """Amplification after every round scales what a round adds, as server_lr does."""
    # With adaptive methods too: the direction does not depend on the rate.
    keys = {"wait_rounds": 4} if name.startswith("wait-") else {}
    rate = 0.1 if name in ("fedadam", "fedyogi") else 1.0
    _, amplified = quadratic(comm, SOME, name=f'"{name}"', amplification=0.5, server_momentum=0, **keys)
    _, scaled = quadratic(comm, SOME, name=f'"{name}"', server_lr=0.5 * rate, server_momentum=0, **keys)
    assert_close(amplified, scaled, 1e-5)


# --- Options of all methods ---------------------------------------------------------------------------


def test_a_far_off_clip_changes_nothing(comm):
    """No gradient is that long."""
    _, clipped = quadratic(comm, SOME, clip_norm=1e6)
    _, plain = quadratic(comm, SOME)
    assert_close(clipped, plain)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "focus", "fedprox"])
def test_clipped_gradients_are_no_longer_than_the_limit(comm, monkeypatch, name):
    """Every gradient that a method steps with has at most that norm; short ones stay."""
    norms = []
    if name == "fedavg":  # a step moves y by gamma times the gradient
        _, trajectory = quadratic(comm, EVERYBODY, clip_norm=0.01)
        moves = np.linalg.norm(np.diff(trajectory, axis=0), axis=1)
        assert moves.max() <= 0.05 * 2 * 0.01 * (1 + 1e-5)
        return
    original = KINDS[name].step

    def step(self, local, gradient, local_lr):
        norms.extend(gradient.norm(dim=1).tolist())
        original(self, local, gradient, local_lr)

    monkeypatch.setattr(KINDS[name], "step", step)
    quadratic(comm, SOME, name=f'"{name}"', clip_norm=2.0)
    everyone = np.zeros(2)
    if norms:
        everyone[:] = max(norms), -min(norms)
    longest, shortest = comm.maximum(everyone) * [1, -1]
    assert longest <= 2 + 1e-6
    assert shortest < 1.99


def test_rates_follow_their_schedule(comm):
    """A round at a smaller rate is the round of a run with that rate."""
    _, inverse = quadratic(comm, EVERYBODY, lr_schedule='"inverse"')
    x, steps = np.array(inverse), 2
    gradient = quadratic_gradient(CENTERS, 0.3, seed=5)
    for t in range(15):
        gamma, ends = 0.05 / (t + 1), []
        for n in range(8):
            y = x[t]
            for i in range(steps):
                y = y - gamma * gradient(n, steps * t + i, y)
            ends.append(y)
        assert_close(x[t + 1], np.mean(ends, axis=0), 1e-6)


def test_schedules_of_fedau_and_fedawe():
    """Halved every 1,000 rounds after round 10,000, ten times at most; and gamma / sqrt(t / 10 + 1)."""
    text = QUADRATIC.format(
        centers=[[0.0], [1.0]], initial=[0.0], participation="", algorithm="local_lr = 0.1\n{}"
    )
    delayed = 'lr_schedule = "step"\nlr_halve_every = 1000\nlr_halve_from = 10000\nlr_halve_times = 10'
    fedau = validate.parse(text.replace("{}", delayed), "c.toml")
    rates = [fedau.local_lr_at(t) for t in (0, 9_999, 10_000, 10_999, 11_000, 18_999, 19_000, 10**6)]
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.025, 0.1 / 2**9, 0.1 / 2**10, 0.1 / 2**10]
    fedawe = validate.parse(text.replace("{}", 'lr_schedule = "inverse-root"'), "c.toml")
    assert [fedawe.local_lr_at(t) for t in (0, 30, 80)] == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_schedules_count_from_the_end_of_the_warm_up():
    """constant, step and inverse: gamma of a few rounds by hand."""
    text = QUADRATIC.format(
        centers=[[0.0], [1.0]], initial=[0.0], participation="",
        algorithm='local_lr = 0.8\nlr_schedule = "{}"\nlr_halve_every = 3',
    ) + WARMUP  # fmt: skip
    rates = {
        name: [
            validate.parse(text.replace("{}", name), "c.toml").local_lr_at(t)
            for t in (0, 6, 7, 8, 9, 10, 13)
        ]
        for name in ("constant", "step", "inverse")
    }
    assert rates["constant"] == [0.02, 0.02, 0.8, 0.8, 0.8, 0.8, 0.8]
    assert rates["step"] == [0.02, 0.02, 0.8, 0.8, 0.8, 0.4, 0.2]
    assert_close(rates["inverse"], [0.02, 0.02, 0.8, 0.4, 0.8 / 3, 0.2, 0.8 / 7], 1e-15)


# --- Checkpoints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_restored_run_goes_on_with_the_same_bits(comm, shared_path, name):
    """State of the server and memory of the clients, through a checkpoint's files, in mid-interval."""
    who = SOME.replace("uniform", SELECTION_OF.get(name, "uniform"))
    keys = {"wait_rounds": 4} if name.startswith("wait-") else {}
    keys |= {"name": f'"{name}"', "amplification": 1.5, "amplify_every": 5}
    original, _ = quadratic(comm, who, rounds=8, **keys)
    original.completed, path = 8, shared_path / "r.h5"
    write_part(path, "id", 8, comm.rank, comm.size, original.population.memory.dump())
    if comm.is_root:
        write_checkpoint(path, original.checkpoint("id", {}))
    comm.barrier()
    resumed = Simulation(comm, original.config, torch.device("cpu"))
    checkpoint = read_checkpoint(shared_path / "r.h5.checkpoint-8")
    resumed.restore(checkpoint, lambda rank: read_part(path, checkpoint, rank))
    for t in range(8, 15):
        original.run_round(t)
        resumed.run_round(t)
        np.testing.assert_array_equal(resumed.state.global_params, original.state.global_params)
