"""Where two runs part: the first difference in time, named so that one finds it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmpi.results.compare import config_differences, first_difference, parameter_difference
from fedmpi.storage.reader import Run, load_run
from tests.support.run_files import finished_run

# In the file of `finished_run`: rounds 0 to 5, clients t % 7 and (t + 3) % 7 with weights 0.25 and 0.75,
# update_max 2.5, evaluations of x_0, x_3 and x_6, model [10, 11, 12, 13, 14] as weight[2, 2] and bias[1].


@pytest.fixture
def run(tmp_path) -> Run:
    """A finished run of six rounds."""
    return load_run(finished_run(tmp_path / "run.h5"))


def changed(run: Run, table: str, row: int, column: str, value: object) -> Run:
    """The run with one entry of a table changed."""
    frame = getattr(run, table).copy()
    frame.loc[row, column] = np.asarray(value, frame[column].dtype)
    return replace(run, **{table: frame})


def with_model(run: Run, index: int, value: float) -> Run:
    """The run with another value in its model."""
    model = run.global_params.copy()
    model[index] = value
    return replace(run, global_params=model)


def cut(run: Run, rounds: int) -> Run:
    """The run as it was after some rounds."""
    return replace(
        run,
        train=run.train[run.train["round"] < rounds],
        participation=run.participation[run.participation["round"] < rounds],
        eval=run.eval[run.eval["round"] <= rounds],
    )


def without(run: Run, row: int) -> Run:
    """The run without one row of /participation."""
    return replace(run, participation=run.participation.drop(index=row).reset_index(drop=True))


# Change, round of the difference, and what the text must name.
CHANGES: dict[str, tuple[Callable[[Run], Run], int | None, list[str]]] = {
    "client": (lambda r: changed(r, "participation", 5, "client", 6), 2, ["round 2", "client", "5 | 6"]),
    "weight": (
        lambda r: changed(r, "participation", 7, "weight", 0.5), 3,
        ["round 3", "weight", "client 6", "0.75 | 0.5"],
    ),
    "update": (
        lambda r: changed(r, "participation", 8, "update_max", 2.75), 4,
        ["round 4", "update of client 4", "2.5 | 2.75"],
    ),
    "norm": (
        lambda r: changed(r, "train", 1, "weighted_sum_norm", 0.5), 1,
        ["round 1", "weighted_sum_norm", "0.25 | 0.5"],
    ),
    "amplification": (
        lambda r: changed(r, "train", 2, "is_amplification", False), 2,
        ["round 2", "is_amplification", "True | False"],
    ),
    "evaluation": (
        lambda r: changed(r, "eval", 1, "test_loss", 2.5), 3,
        ["evaluation", "round 3", "test_loss", "2.0 | 2.5"],
    ),
    "first evaluation": (
        lambda r: changed(r, "eval", 0, "train_accuracy", 0.5), 0,
        ["evaluation", "round 0", "train_accuracy", "0.25 | 0.5"],
    ),
    "weight parameter": (
        lambda r: with_model(r, 2, -1.0), 6, ["model", "1 param", "weight[1, 0]", "12.0 | -1.0"],
    ),
    "bias parameter": (lambda r: with_model(r, 4, np.nan), 6, ["model", "bias[0]", "14.0 | nan"]),
    "fewer rounds": (lambda r: cut(r, 4), None, ["has ", " rounds", "6", "4"]),
    "no last participant": (lambda r: without(r, 11), 5, ["round 5", "participants"]),
}  # fmt: skip


def test_identical_runs_give_none(run, tmp_path):
    """A run does not differ from itself, nor from another with the same results."""
    again = load_run(finished_run(tmp_path / "again.h5"))
    assert first_difference(run, run) is None
    assert first_difference(run, again) is None
    assert parameter_difference(run, again) == "no parameter differs"


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_one_change_is_named(run, what, swap):
    """Whatever one thing changes, round, place and both values are named, in the order of the runs."""
    change, expected_round, parts = CHANGES[what]
    pair = (change(run), run) if swap else (run, change(run))
    difference = first_difference(*pair)
    assert difference.round == expected_round
    for part in parts:
        if swap and " | " in part:
            part = " | ".join(reversed(part.split(" | ")))
        if swap and what == "client" and part == "client":
            continue
        assert part in difference.text


@pytest.mark.parametrize("what", ["weight", "update", "client"])
def test_the_words_make_a_sentence(run, what):
    """No word stands twice in a row."""
    words = first_difference(run, CHANGES[what][0](run)).text.split()
    assert all(a != b for a, b in itertools.pairwise(words)), words


@pytest.mark.parametrize(
    ("later", "earlier", "expected_round"),
    [
        (("participation", 8, "client", 6), ("participation", 2, "weight", 0.5), 1),
        (("participation", 8, "client", 6), ("participation", 3, "update_max", 3.0), 1),
        (("participation", 9, "weight", 0.5), ("participation", 5, "update_max", 3.0), 2),
        (("train", 4, "participants", 1), ("train", 2, "weighted_sum_norm", 7.0), 2),
        (("train", 5, "weighted_sum_norm", 7.0), ("train", 2, "is_amplification", False), 2),
        (("participation", 8, "client", 6), ("train", 2, "weighted_sum_norm", 7.0), 2),
        (("train", 5, "weighted_sum_norm", 7.0), ("participation", 8, "client", 6), 4),
        (("participation", 10, "client", 6), ("eval", 1, "train_loss", 7.0), 3),
        (("eval", 2, "train_loss", 7.0), ("eval", 1, "test_accuracy", 0.0), 3),
        (("eval", 2, "train_loss", 7.0), ("train", 5, "weighted_sum_norm", 7.0), 5),
    ],
)
def test_the_first_of_two_changes_is_named(run, later, earlier, expected_round):
    """Of two differences the one in the earlier round counts, whichever columns they are in."""
    difference = first_difference(run, changed(changed(run, *later), *earlier))
    assert difference.round == expected_round
    column = "update" if earlier[2] == "update_max" else earlier[2]
    assert column in difference.text


def test_an_evaluation_comes_before_the_round_it_starts(run):
    """x_3 is evaluated before round 3: of differences in both, the evaluation is the first."""
    other = changed(changed(run, "eval", 1, "test_loss", 7.0), "participation", 6, "update_max", 7.0)
    assert "evaluation" in first_difference(run, other).text


@pytest.mark.parametrize("row", range(0, 12, 3))
@pytest.mark.parametrize("swap", [False, True])
def test_a_participant_too_many_is_told_in_its_round(run, row, swap):
    """A client that only one run has in a round: that round is named, and no client of another round."""
    other = without(run, row)
    difference = first_difference(*((other, run) if swap else (run, other)))
    t = row // 2
    assert difference.round == t
    taken = set(run.participation.loc[run.participation["round"] == t, "client"].astype(str))
    left, bar, right = difference.text.rpartition(" | ")
    if bar:
        values = left.split()[-1], right
        assert values[0] != values[1]
        assert set(values) <= taken
    else:
        assert "participants" in difference.text


def test_runs_of_different_length_are_compared_where_both_are(run):
    """A difference in the common rounds is named rather than the lengths; one beyond is not seen."""
    early = changed(run, "participation", 3, "weight", 0.5)
    late = changed(run, "participation", 10, "weight", 0.5)
    assert first_difference(cut(run, 3), early).round == 1
    assert first_difference(cut(run, 3), late).round is None
    assert first_difference(late, cut(run, 3)).text == "one run has 6 rounds, the other 3"


def test_nan_equals_nan_and_zero_has_a_sign(run):
    """ "The same" is about bits: nan is nan, but -0.0 is not 0.0."""
    for table, row, column in [("eval", 1, "train_loss"), ("train", 3, "weighted_sum_norm"),
                               ("participation", 4, "update_max")]:  # fmt: skip
        nan = changed(run, table, row, column, np.nan)
        assert first_difference(nan, changed(run, table, row, column, np.nan)) is None
        assert first_difference(nan, run).round is not None
        plus, minus = (changed(run, table, row, column, zero) for zero in (0.0, -0.0))
        assert first_difference(plus, minus).text.endswith("0.0 | -0.0")
    assert first_difference(with_model(run, 1, np.nan), with_model(run, 1, np.nan)) is None
    assert "0.0 | -0.0" in first_difference(with_model(run, 1, 0.0), with_model(run, 1, -0.0)).text


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("train", "wall_time_s"),
        ("train", "compute_time_s"),
        ("train", "comm_time_s"),
        ("train", "idle_time_s"),
        ("eval", "wall_time_s"),
    ],
)
def test_times_do_not_count(run, table, column):
    """How long something took is no result."""
    assert first_difference(run, changed(run, table, 1, column, 99.0)) is None


def test_models_of_different_size_are_told(run):
    """Another number of parameters is said as such."""
    other = replace(run, global_params=np.zeros(7))
    assert parameter_difference(run, other) == "5 parameters | 7"
    assert first_difference(run, other).text == "the model: 5 parameters | 7"


def test_runs_without_a_stored_model_are_compared_by_their_tables(run):
    """`global_params` may be None: two such runs with the same tables do not differ."""
    bare = replace(run, global_params=None)
    assert first_difference(bare, bare) is None
    assert first_difference(bare, changed(bare, "train", 1, "weighted_sum_norm", 9.0)).round == 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], []),
        (["run.seed=2"], ["run.seed: 1 | 2"]),
        (["algorithm.local_lr=0.5", "run.num_rounds=9"],
         ["run.num_rounds: 6 | 9", "algorithm.local_lr: 0.05 | 0.5"]),
        (["run.max_minutes=3"], ["run.max_minutes: not set | 3.0"]),
        (["warmup.num_rounds=2", "warmup.local_lr=0.5"],
         ["warmup.num_rounds: not set | 2", "warmup.local_lr: not set | 0.5"]),
        (["data.shape=[1, 6, 5]"], ["data.shape: [1, 6, 6] | [1, 6, 5]"]),
    ],
)  # fmt: skip
def test_config_differences_are_listed(tmp_path: Path, overrides, expected):
    """Every config key that differs has a line with both values, also one that only one run sets."""
    one = load_run(finished_run(tmp_path / "one.h5"))
    other = load_run(finished_run(tmp_path / "other.h5", *overrides))
    assert config_differences(one, other) == expected
    mirrored = [" | ".join(reversed(line.partition(": ")[2].split(" | "))) for line in expected]
    assert sorted(line.partition(": ")[2] for line in config_differences(other, one)) == sorted(mirrored)
