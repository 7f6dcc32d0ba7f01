"""Updates that arrive rounds after they were computed, against a twin that keeps a list of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedmpi.config import Config, validate
from fedmpi.errors import ConfigError, UserError
from fedmpi.experiments.replaying import replay
from fedmpi.participation import make_participation
from tests.support.configs import SMALL
from tests.support.simulations import run_to_file, simulate, single_rank

CENTERS = [[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25], [2.0, 2.0], [-3.0, -1.0], [0.0, 1.0], [1.5, 1.5]]
QUADRATIC = f"""
[run]
num_rounds = 40
dtype = "float64"
[data]
dataset = "quadratic"
centers = {CENTERS}
[model]
name = "quadratic"
initial = [0.3, -0.7]
[participation]
selection = "uniform"
clients_per_round = 4
dropout = 0.1
late_probability = 0.5
late_rounds = [1, 2, 5]
[algorithm]
local_lr = 0.05
local_steps = 3
amplification = 1.5
amplify_every = 6
"""


def config_of(text: str, *settings: str) -> Config:
    """A valid one."""
    return validate.parse(text, "c.toml", settings)


def twin(config: Config, mu: float = 0.0) -> list[np.ndarray]:
    """Algorithm 1 with a list of (round, client, update) that are on their way; line by line, no tables."""
    who, centers = make_participation(config, 7), np.array(CENTERS)
    x, u, on_the_way, seen = np.array([0.3, -0.7]), np.zeros(2), [], []
    seen.append(x.copy())
    for t in range(config.run.num_rounds):
        clients, weights = who.weights(t)
        away, arrives = who.undelivered(t)
        arrived = {n: update for due, n, update in on_the_way if due == t}
        on_the_way = [item for item in on_the_way if item[0] > t]

        def trained(n, x=x):
            y = x.copy()
            for _ in range(3):
                y -= 0.05 * (y - centers[n] + mu * (y - x))
            return y - x

        on_the_way += [(due, n, trained(n)) for n, due in zip(away, arrives, strict=True) if due >= 0]
        assert len({n for _, n, _ in on_the_way}) == len(on_the_way)  # one a client at most
        assert not {n for _, n, _ in on_the_way} & set(clients.tolist())
        step = np.zeros(2)
        for n, q in zip(clients.tolist(), weights, strict=True):
            step += q * (arrived[n] if n in arrived else trained(n))
        x, u = x + step, u + step
        if (t + 1) % 6 == 0:
            x, u = x + 0.5 * u, np.zeros(2)
        seen.append(x)
    return seen


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("method", "mu"), [("fedavg", 0.0), ("fedprox", 0.7)])
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_against_the_twin(seed, method, mu, engine):
    """x_t is that of the twin: the update of x_t counts in round t + k, with the weight of that round."""
    own = [f"algorithm.mu={mu}"] if mu else []
    given = (f"run.seed={seed}", f"algorithm.name={method}", f"algorithm.engine={engine}", *own)
    config = config_of(QUADRATIC, *given)
    _, trajectory = simulate(single_rank(), QUADRATIC, given)
    for t, (x, expected) in enumerate(zip(trajectory, twin(config, mu), strict=True)):
        np.testing.assert_allclose(x, expected, atol=1e-12, err_msg=f"round {t}")


def test_the_law_of_late_updates():
    """Half of what is not lost is late, by 1, 2 or 5 rounds alike; busy clients are not available."""
    config = config_of(QUADRATIC, "run.num_rounds=4000")
    who, late, sent, busy = make_participation(config, 7), [], 0, {}
    for t in range(4000):
        free = who.available(t).tolist()
        assert free == [n for n in range(7) if busy.get(n, -1) < t]
        clients, weights = who.weights(t)
        assert who.available(t).tolist() == free
        away, arrives = who.undelivered(t)
        come = [n for n, due in busy.items() if due == t]
        assert set(come) <= set(clients.tolist())
        sent += len(clients) - len(come) + int((arrives >= 0).sum())
        late += (arrives[arrives >= 0] - t).tolist()
        busy |= {n: due for n, due in zip(away.tolist(), arrives.tolist(), strict=True) if due >= 0}
        assert weights.tolist() == [1 / max(len(clients), 1)] * len(clients)
    assert abs(len(late) / sent - 0.5) < 5 * np.sqrt(0.25 / sent)
    for delay in (1, 2, 5):
        assert abs(late.count(delay) / len(late) - 1 / 3) < 5 * np.sqrt(2 / 9 / len(late))


@pytest.mark.parametrize("selection", ["permutation", "minimum-separation", "least-recent", "uniform"])
@pytest.mark.parametrize("at", [1, 7, 20])
def test_participation_goes_on_from_a_checkpoint(selection, at):
    """With updates on their way, restored weights and fates are those of one without a break."""
    own = ["participation.min_separation=1"] if selection == "minimum-separation" else []
    config = config_of(QUADRATIC, f"participation.selection={selection}", *own)

    def seen(who, rounds):
        return [[a.tolist() for a in (*who.weights(t), *who.undelivered(t))] for t in rounds]

    expected = seen(make_participation(config, 7), range(40))
    first, second = make_participation(config, 7), make_participation(config, 7)
    seen(first, range(at))
    second.restore(at, {name: value.copy() for name, value in first.state().items()})
    assert seen(second, range(at, 40)) == expected[at:]


def test_late_by_nobody_is_the_run_without(tmp_path):
    """A probability of 0 keeps the bits, whatever `late_rounds` says."""
    plain = run_to_file(config_of(SMALL), tmp_path / "a.h5")
    none = run_to_file(config_of(SMALL, "participation.late_rounds=3"), tmp_path / "b.h5")
    assert np.array_equal(plain.global_params, none.global_params)


def test_the_file_says_who_is_late_and_replay_refuses_what_it_cannot_do(tmp_path):
    """/undelivered has the round of arrival, in which /participation has the client; replay says so."""
    path = tmp_path / "run.h5"
    text = SMALL.replace("num_rounds = 6", "num_rounds = 30")
    settings = ["participation.late_probability=0.6", "participation.late_rounds=3"]
    run = run_to_file(config_of(text, *settings), path)
    rows = set(zip(run.participation["round"], run.participation["client"], strict=True))
    late = run.undelivered
    assert len(late) > 5
    assert (late.arrives == late["round"] + 3).all()
    came = late[late.arrives < 30]
    assert {(t, n) for t, n in zip(came.arrives, came.client, strict=True)} <= rows
    first = came.iloc[0]
    with pytest.raises(UserError, match="was late: computed in an earlier round"):
        replay(path, int(first.arrives), int(first.client))
    on_time = sorted(rows - set(zip(came.arrives, came.client, strict=True)))[-1]
    assert replay(path, *map(int, on_time)).is_same


def test_theory_and_schedules_say_what_they_cannot(fedmpi_cli, tmp_path):
    """`advise` names the condition that fails, `participation` that a schedule is another experiment."""
    (tmp_path / "c.toml").write_text(QUADRATIC)
    told = fedmpi_cli("advise", "c.toml")
    assert "FAILS: updates count in their own round" in told.stdout, told.stderr
    told = fedmpi_cli("participation", "c.toml", "--out", "q.h5")
    assert "note: late updates stand in the round in which they arrive" in told.stdout
    told = fedmpi_cli("check", "c.toml")
    assert re.search(r"updates lost, \d+ late by a round or more", told.stdout)
    assert "(late_update)" in told.stdout  # the memory that it takes
    for command in ("advise", "participation"):
        more = ["--out", "p.h5"] if command == "participation" else []
        told = fedmpi_cli(command, "c.toml", "--set", "participation.late_probability=0", *more)
        assert "their own round" not in told.stdout
        assert "late" not in told.stdout


def test_what_has_no_meaning_is_refused():
    """Methods that keep or send more than an update, and weights that need a chance, say so."""
    late = "participation.late_probability=0.5"
    for method in ("scaffold", "mifa", "fedvarp", "wait-minibatch"):
        own = f"algorithm.name={method}", "algorithm.wait_rounds=3"
        with pytest.raises(ConfigError, match=f'algorithm.name = "{method}": only updates are kept'):
            config_of(SMALL, late, *own)
    with pytest.raises(ConfigError, match="the chance to be heard in a round depends"):
        config_of(SMALL, late, "participation.weighting=inverse-probability")
    with pytest.raises(ConfigError, match=r"late_rounds = 0: expected an integer >= 1"):
        config_of(SMALL, late, "participation.late_rounds=0")
