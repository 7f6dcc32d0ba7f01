"""Who takes part, and how often: the laws of each availability and selection."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmpi.config import Config, validate
from fedmpi.errors import UserError
from fedmpi.participation import Participation, make_participation
from fedmpi.participation.composition import make_availability
from tests.support.configs import SMALL

PAPER = {
    "availability": "periodic",
    "num_groups": 5,
    "rounds_per_group": 100,
    "random_offset": "true",
    "selection": "permutation",
    "clients_per_round": 10,
}


def config_of(num_clients: int, seed: int = 1, **who: object) -> Config:
    """A config with these keys of [participation]."""
    config = parsed(num_clients, *(f"participation.{key}={value}" for key, value in who.items()))
    return replace(config, run=replace(config.run, seed=seed))


@functools.cache
def parsed(num_clients: int, *overrides: str) -> Config:
    """The small config with another participation."""
    text = SMALL.replace('selection = "uniform"\nclients_per_round = 3\n', "")
    return validate.parse(text, "small.toml", [f"data.num_clients={num_clients}", *overrides])


def make(num_clients: int, seed: int = 1, **who: object) -> Participation:
    """The participation with these keys."""
    return make_participation(config_of(num_clients, seed, **who), num_clients)


def rounds(participation: Participation, count: int) -> list[np.ndarray]:
    """The participants of the first rounds, checked for what always holds."""
    result = []
    for t in range(count):
        clients, weights = participation.weights(t)
        assert (np.diff(clients) > 0).all(), f"round {t}: not ascending, or a client twice"
        assert len(clients) == len(weights)
        result.append(clients)
    return result


def counts(chosen: list[np.ndarray], num_clients: int) -> np.ndarray:
    """How often each client took part."""
    return np.bincount(np.concatenate(chosen), minlength=num_clients)


# --- The paper's set-up: 250 clients, 10 a round, 5 groups of 50 for 100 rounds each ------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_turn_of_the_paper_takes_each_of_its_clients_20_times(seed):
    """In every full turn the 50 clients of one group take part exactly 20 times each, nobody else."""
    chosen = rounds(make(250, seed, **PAPER), 1200)
    group_of = [set((clients // 50).tolist()) for clients in chosen]
    assert all(len(groups) == 1 for groups in group_of)
    turns = [(group, len(list(members))) for (group,), members in itertools.groupby(group_of)]
    # The groups follow each other; all turns but the first and the last last 100 rounds.
    assert [group for group, _ in turns] == [i % 5 for i in range(len(turns))]
    assert 1 <= turns[0][1] <= 100
    assert {length for _, length in turns[1:-1]} == {100}
    start = turns[0][1]
    for number in range(1, 11):
        turn = chosen[start : start + 100]
        start += 100
        expected = np.zeros(250, int)
        expected[50 * (number % 5) : 50 * (number % 5) + 50] = 20
        assert counts(turn, 250).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_the_offset_shortens_the_first_turn(seed):
    """With offset o in [0, 100) the first group has 100 - o rounds, then the second begins."""
    config = config_of(250, seed, **PAPER)
    offset = make_availability(config.participation, 250, seed).offset
    chosen = rounds(make_participation(config, 250), 101)
    groups = [clients[0] // 50 for clients in chosen]
    assert groups == [0] * (100 - offset) + [1] * (offset + 1)


def test_the_offset_is_uniform_over_seeds():
    """Over 2,000 seeds every offset of [0, 100) occurs, each tenth of the range equally often."""
    config = config_of(250, **PAPER).participation
    offsets = np.array([make_availability(config, 250, seed).offset for seed in range(2000)])
    assert sorted(set(offsets.tolist())) == list(range(100))
    # 200 in each tenth, within five standard deviations of sqrt(2000 * 0.1 * 0.9) = 13.4.
    tenths = np.bincount(offsets // 10, minlength=10)
    assert (np.abs(tenths - 200) < 67).all()


def test_without_a_random_offset_the_first_turn_is_whole():
    """random_offset = false starts with a full turn of the first group."""
    chosen = rounds(make(250, 1, **PAPER | {"random_offset": "false"}), 101)
    assert [clients[0] // 50 for clients in chosen] == [0] * 100 + [1]


def test_the_warmup_does_not_move_the_turns():
    """A warm-up changes neither the offset nor who takes part."""
    config = config_of(250, 1, **PAPER)
    text = config.to_toml() + "[warmup]\nnum_rounds = 3\nlocal_lr = 0.1\n"
    warm = validate.parse(text, "warm.toml")
    plain, shifted = (rounds(make_participation(c, 250), 120) for c in (config, warm))
    assert all(np.array_equal(a, b) for a, b in zip(plain, shifted, strict=True))


# --- Availability -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_clients", "num_groups"), [(250, 5), (7, 3), (10, 4), (5, 5), (11, 2), (6, 1)]
)
def test_groups_cover_all_clients(num_clients, num_groups):
    """Groups are contiguous, as equal as can be, and hold every client once, whatever N and groups are."""
    who = {"availability": "periodic", "num_groups": num_groups, "rounds_per_group": 3, "selection": "all"}
    chosen = rounds(make(num_clients, **who), 3 * num_groups)
    assert np.concatenate(chosen[::3]).tolist() == list(range(num_clients))
    sizes = [len(clients) for clients in chosen[::3]]
    assert max(sizes) - min(sizes) <= 1
    for first, second, third in zip(chosen[::3], chosen[1::3], chosen[2::3], strict=True):
        assert first.tolist() == second.tolist() == third.tolist()


def test_groups_take_turns_for_ever():
    """After the last group the first has its turn again."""
    who = {"availability": "periodic", "num_groups": 3, "rounds_per_group": 2, "selection": "all"}
    chosen = rounds(make(3, **who), 9)
    assert [clients.tolist() for clients in chosen] == [[0], [0], [1], [1], [2], [2], [0], [0], [1]]


# --- Permutation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_always_and_permutation_takes_each_client_once_in_25_rounds(seed):
    """250 clients, 10 a round: each client exactly once in every 25 rounds, in another order each time."""
    chosen = rounds(make(250, seed, selection="permutation", clients_per_round=10), 100)
    passes = [chosen[i : i + 25] for i in range(0, 100, 25)]
    for one in passes:
        assert counts(one, 250).tolist() == [1] * 250
    orders = {tuple(np.concatenate(one).tolist()) for one in passes}
    assert len(orders) == 4


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("num_clients", "per_round"),
    [(50, 7), (5, 3), (5, 4), (7, 6), (7, 7), (3, 1), (10, 6), (11, 2), (1, 1)],
)
def test_permutation_takes_all_once_before_any_again(num_clients, per_round, seed):
    """Also when S does not divide N: S different clients a round, and never two rounds ahead of another."""
    chosen = rounds(make(num_clients, seed, selection="permutation", clients_per_round=per_round), 300)
    taken = np.zeros(num_clients, int)
    for t, clients in enumerate(chosen):
        assert len(clients) == per_round
        taken[clients] += 1
        assert taken.max() - taken.min() <= 1, f"round {t}"
    assert taken.sum() == 300 * per_round


def test_permutation_within_turns_starts_anew_with_each_turn():
    """Groups of 50, 7 a round, turns of 10 rounds: 70 places are 20 clients twice and 30 once."""
    who = PAPER | {"clients_per_round": 7, "rounds_per_group": 10, "random_offset": "false"}
    chosen = rounds(make(250, **who), 200)
    for first in range(0, 200, 10):
        taken = counts(chosen[first : first + 10], 250)
        assert sorted(taken[taken > 0].tolist()) == [1] * 30 + [2] * 20


def test_a_pass_is_in_random_order():
    """Over seeds each of five clients comes first, and each pair of neighbours, equally often."""
    orders = [
        np.concatenate(rounds(make(5, seed, selection="permutation", clients_per_round=1), 5))
        for seed in range(1000)
    ]
    firsts = np.bincount([order[0] for order in orders], minlength=5)
    assert (np.abs(firsts - 200) < 64).all()  # five standard deviations of sqrt(1000 * 0.2 * 0.8) = 12.6
    pairs = np.bincount([5 * order[0] + order[1] for order in orders], minlength=25).reshape(5, 5)
    assert (np.diag(pairs) == 0).all()
    assert (np.abs(pairs[~np.eye(5, dtype=bool)] - 50) < 35).all()  # sqrt(1000 * 0.05 * 0.95) = 6.9


# --- Uniform ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uniform_rounds() -> list[np.ndarray]:
    """4,000 rounds of 5 among 20."""
    return rounds(make(20, selection="uniform", clients_per_round=5), 4000)


def test_uniform_takes_every_client_and_every_pair_equally_often(uniform_rounds):
    """Each of 20 clients is in 1/4 of the rounds with S = 5, each pair in 1/19 of them."""
    chosen = uniform_rounds
    assert {len(clients) for clients in chosen} == {5}
    matrix = np.zeros((4000, 20))
    for t, clients in enumerate(chosen):
        matrix[t, clients] = 1
    together = matrix.T @ matrix
    assert (np.abs(np.diag(together) - 1000) < 137).all()  # 5 * sqrt(4000 / 4 * 3 / 4)
    pairs = together[~np.eye(20, dtype=bool)]
    assert (np.abs(pairs - 4000 / 19) < 71).all()  # 5 * sqrt(4000 / 19 * 18 / 19)


@pytest.mark.parametrize("lag", [1, 2, 7])
def test_uniform_draws_each_round_independently(uniform_rounds, lag):
    """Two rounds share S * S / N = 1.25 clients on average, as independent draws do."""
    chosen = uniform_rounds
    shared = [len(np.intersect1d(a, b)) for a, b in zip(chosen, chosen[lag:], strict=False)]
    assert abs(np.mean(shared) - 1.25) < 0.07  # variance of one: 0.74; 5 * sqrt(0.74 / 4000)
    assert abs(np.var(shared) - 0.74) < 0.1


def test_uniform_is_a_pure_function_of_the_round():
    """Rounds may be asked for in any order and again."""
    who = {"selection": "uniform", "clients_per_round": 5}
    forward = rounds(make(20, **who), 50)
    participation = make(20, **who)
    for t in [49, 3, 3, 17, 0]:
        assert participation.weights(t)[0].tolist() == forward[t].tolist()


# --- What holds for all -------------------------------------------------------------------------------

ALL_KINDS = [
    {"selection": "all"},
    {"selection": "uniform", "clients_per_round": 4},
    {"selection": "permutation", "clients_per_round": 4},
    *(
        {"availability": "periodic", "num_groups": 3, "rounds_per_group": 5, "random_offset": "true"}
        | selection
        for selection in (
            {"selection": "all"},
            {"selection": "uniform", "clients_per_round": 4},
            {"selection": "permutation", "clients_per_round": 4},
        )
    ),
]


@pytest.mark.parametrize("who", ALL_KINDS)
def test_two_objects_built_apart_agree(who):
    """Every rank builds its own participation and gets the same clients and weights."""
    first, second = make(20, **who), make(20, **who)
    for t in range(60):
        (clients, weights), (same_clients, same_weights) = first.weights(t), second.weights(t)
        assert clients.tolist() == same_clients.tolist()
        assert weights.tolist() == same_weights.tolist()


@pytest.mark.parametrize("who", [kind for kind in ALL_KINDS if "clients_per_round" in kind])
def test_seeds_give_different_participants(who):
    """Another seed chooses others: of 60 rounds most differ."""
    first, second = rounds(make(20, 1, **who), 60), rounds(make(20, 2, **who), 60)
    assert sum(a.tolist() != b.tolist() for a, b in zip(first, second, strict=True)) > 30


@pytest.mark.parametrize(
    ("weighting", "who", "expected"),
    [
        ("equal", {"selection": "all"}, [1 / 7] * 7),
        ("equal", {"selection": "uniform", "clients_per_round": 4}, [0.25] * 4),
        ("equal", {"selection": "permutation", "clients_per_round": 2}, [0.5] * 2),
        ("all", {"selection": "all"}, [1 / 7] * 7),
        ("all", {"selection": "uniform", "clients_per_round": 4}, [1 / 7] * 4),
        ("all", {"selection": "permutation", "clients_per_round": 2}, [1 / 7] * 2),
        (
            "equal",
            {"availability": "periodic", "num_groups": 7, "rounds_per_group": 1},
            [1.0],
        ),
        ("all", {"availability": "periodic", "num_groups": 7, "rounds_per_group": 1}, [1 / 7]),
    ],
)
def test_weights_are_one_over_participants_or_one_over_all(weighting, who, expected):
    """q = 1 / participants with weighting "equal", q = 1 / N with "all"."""
    participation = make(7, weighting=weighting, **who)
    for t in range(10):
        assert participation.weights(t)[1].tolist() == expected


@pytest.mark.parametrize("selection", ["uniform", "permutation"])
def test_a_million_clients_are_no_burden(selection):
    """200 rounds of 10 among 10**6 clients: no client twice in so few rounds of a permutation."""
    chosen = rounds(make(10**6, selection=selection, clients_per_round=10), 200)
    assert all(len(clients) == 10 for clients in chosen)
    distinct = len(set(np.concatenate(chosen).tolist()))
    assert distinct == 2000 if selection == "permutation" else 1980 < distinct <= 2000


# --- Availability functions of the user's own ---------------------------------------------------------


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module into the working directory; gives its name. Forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)

    def write(text: str) -> str:
        name = f"availability_of_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("availability_of_"):
            del sys.modules[name]


@pytest.mark.parametrize("selection", ["all", "uniform", "permutation"])
@pytest.mark.parametrize(
    ("available", "expected", "share"),
    [([], [], None), ([4], [4], 1.0), ([8, 1, 4], [1, 4, 8], 1 / 3), ([1, 1, 4, 1], [1, 4], 0.5)],
)
def test_fewer_available_than_s_means_all_of_them(user_module, selection, available, expected, share):
    """With S = 5 and at most three available all are taken, in order, once; nobody is an empty round."""
    module = user_module(f"def who(t, num_clients, seed):\n    return {available}\n")
    per_round = {} if selection == "all" else {"clients_per_round": 5}
    participation = make(10, availability=f"{module}:who", selection=selection, **per_round)
    for t in range(4):
        clients, weights = participation.weights(t)
        assert clients.tolist() == expected
        assert weights.tolist() == [share] * len(expected)


def test_a_function_gets_round_number_of_clients_and_seed(user_module):
    """The function is called with t, N and the run's seed."""
    module = user_module("def who(t, num_clients, seed):\n    return [t, num_clients - 1, seed]\n")
    participation = make(20, seed=9, availability=f"{module}:who", selection="all")
    assert [participation.weights(t)[0].tolist() for t in (0, 5)] == [[0, 9, 19], [5, 9, 19]]


@pytest.mark.parametrize("selection", ["uniform", "permutation"])
def test_a_function_that_returns_everybody_is_always(user_module, selection):
    """The same participants as availability "always", and the same law of the permutation."""
    module = user_module("def who(t, num_clients, seed):\n    return list(range(num_clients))\n")
    own = make(20, availability=f"{module}:who", selection=selection, clients_per_round=3)
    always = make(20, selection=selection, clients_per_round=3)
    for mine, theirs in zip(rounds(own, 60), rounds(always, 60), strict=True):
        assert mine.tolist() == theirs.tolist()


def test_permutation_keeps_its_law_when_two_groups_alternate(user_module):
    """Groups that change every round: in each the members take part equally often, up to one."""
    module = user_module("def who(t, num_clients, seed):\n    return range(5) if t % 2 else range(5, 12)\n")
    taken = np.zeros(12, int)
    for clients in rounds(
        make(12, availability=f"{module}:who", selection="permutation", clients_per_round=3), 200
    ):
        taken[clients] += 1
        assert np.ptp(taken[:5]) <= 1
        assert np.ptp(taken[5:]) <= 1
    assert taken.sum() == 600


CHANGING = """
import numpy as np

def who(t, num_clients, seed):
    return np.random.default_rng([seed, t]).choice(num_clients, 12, replace=False)
"""


@pytest.mark.parametrize("seed", range(10))
def test_permutation_serves_those_never_served_first_when_the_set_changes_every_round(user_module, seed):
    """12 of 20 clients are available, others each round: nobody is taken again while a newcomer waits."""
    module = user_module(CHANGING)
    who = {"availability": f"{module}:who", "selection": "permutation", "clients_per_round": 4}
    available = make_availability(config_of(20, seed, **who).participation, 20, seed)
    served: set[int] = set()
    for t, clients in enumerate(rounds(make(20, seed, **who), 40)):
        everybody, chosen = set(available.available(t).tolist()), set(clients.tolist())
        assert len(chosen) == 4
        assert chosen <= everybody
        newcomers = everybody - served
        assert len(chosen & newcomers) == min(4, len(newcomers)), f"round {t}"
        served |= chosen
    assert len(served) == 20


RETURNING = """
def who(t, num_clients, seed):
    return [0, 1, 2] if t < 2 or t >= 12 else [0, 1]
"""


@pytest.mark.parametrize("seed", range(10))
def test_permutation_serves_a_client_that_comes_back_with_the_pass_that_is_on(user_module, seed):
    """One of three clients is away for ten rounds: back, it waits for no more than the two others once."""
    module = user_module(RETURNING)
    chosen = rounds(
        make(3, seed, availability=f"{module}:who", selection="permutation", clients_per_round=1), 30
    )
    order = np.concatenate(chosen)
    assert 2 in order[12:15]
    assert np.ptp(np.bincount(order[15:], minlength=3)) <= 2


# What a function does, or what its module holds instead of it; and parts of the message.
BAD_BODIES = {
    "raises": ("return 1 // t", ["round 0", "ZeroDivisionError"]),
    "raises a KeyError": ("return {}['a']", ["round 0", "KeyError: 'a'"]),
    "returns a client too high": ("return [3, 10]", ["round 0", "client 10", "expected 0 to 9"]),
    "returns a negative client": ("return [-1, 3]", ["round 0", "client -1", "expected 0 to 9"]),
    "returns 70 bits": ("return [2**70]", ["round 0"]),
    "returns nothing": ("pass", ["round 0"]),
    "returns words": ("return ['a']", ["round 0"]),
    "returns nan": ("return [float('nan')]", ["round 0"]),
    "returns fractions": ("return [0.5, 1.7]", ["round 0"]),
    "returns a mask": ("return [n > 4 for n in range(num_clients)]", ["round 0"]),
}
BAD_MODULES = {
    "wrong arguments": ("def who(t, day):\n    return [0]", ["round 0", "TypeError", "day"]),
    "no such function": ("def other(t):\n    return [0]", ["has no function who", "it has: other"]),
    "not a function": ("who = [0, 1]", ["has no function who", "it has: none"]),
    "syntax error": ("def who(:", ["importing", "SyntaxError"]),
    "raises on import": ("raise RuntimeError('no licence')", ["importing", "RuntimeError: no licence"]),
    "imports what is not there": ("import not_there", ["importing", "No module named 'not_there'"]),
}
BAD_FUNCTIONS = BAD_MODULES | {
    name: (f"def who(t, num_clients, seed):\n    {body}", parts)
    for name, (body, parts) in BAD_BODIES.items()
}


@pytest.mark.parametrize(("text", "parts"), BAD_FUNCTIONS.values(), ids=BAD_FUNCTIONS)
def test_a_bad_function_is_a_user_error_that_names_it(user_module, text, parts):
    """Whatever is wrong with the user's function, the message has key, name and cause."""
    name = f"{user_module(text)}:who"
    with pytest.raises(UserError) as caught:
        make(10, availability=name, selection="all").weights(0)
    for part in [f'config participation.availability = "{name}"', *parts]:
        assert part in str(caught.value)


def test_a_module_that_is_not_there_is_a_user_error_that_says_where_it_was_sought(user_module, tmp_path):
    """A missing module is named, with the folder it would have to be in."""
    user_module("")
    with pytest.raises(UserError) as caught:
        make(10, availability="nowhere.at_all:who", selection="all")
    for part in ['"nowhere.at_all:who"', "ModuleNotFoundError", str(tmp_path), "PYTHONPATH"]:
        assert part in str(caught.value)


def test_importing_a_function_leaves_the_path_as_it_was(user_module):
    """The working directory is on sys.path during the import only, also when the module moves away."""
    function = "def who(t, num_clients, seed):\n    return [0]\n"
    module = user_module(f"import os\nos.mkdir('away')\nos.chdir('away')\n{function}")
    before = list(sys.path)
    assert make(10, availability=f"{module}:who", selection="all").weights(0)[0].tolist() == [0]
    assert sys.path == before
