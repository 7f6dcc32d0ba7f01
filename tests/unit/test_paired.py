"""`fedmpi compare`: two settings seed by seed, with numbers that textbooks have."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedmpi
from fedmpi.errors import UserError
from fedmpi.results.paired import difference
from fedmpi.results.student import pairs_needed, power, quantile, two_sided_p
from tests.support.run_files import INITIAL, add_rounds, create_run

# Student (1908): hours of sleep gained by ten patients with each of two drugs. R's t.test(paired = TRUE)
# gives t = -4.0621, df = 9, p = 0.002833, and the interval -2.4598858 to -0.7001142.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
CYCLE = (
    "participation.availability=periodic",
    "participation.num_groups=2",
    "participation.rounds_per_group=5",
)
METRIC_NAMES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


def ended(
    path: Path,
    seed: int,
    value: Callable[[int], float],
    *overrides: str,
    rounds: int = 100,
    every: int = 5,
    status: str = "done",
) -> Path:
    """A run whose metrics after t rounds are value(t), value(t)/10 for accuracies."""
    writer = create_run(
        path, f"run.seed={seed}", f"run.num_rounds={rounds}", f"run.eval_every={every}", *overrides
    )
    add_rounds(writer, 0, rounds)
    for t in sorted({*range(0, rounds + 1, every), rounds}):
        writer.add("eval", t, value(t), value(t) / 10, value(t), value(t) / 10, 0.1 * t)
    writer.flush(INITIAL, status=status)
    return path


def both(folder: Path, a: list[float], b: list[float], **how: int) -> None:
    """a-SEED.h5 and b-SEED.h5 with constant losses."""
    for name, values, rate in (("a", a, 0.1), ("b", b, 0.2)):
        for seed, value in enumerate(values, 1):
            overrides = (f"run.name={name}", f"algorithm.local_lr={rate}")
            ended(folder / f"{name}-{seed}.h5", seed, lambda t, v=value: v, *overrides, **how)


# --- Statistics ------------------------------------------------------------------------------------------


def test_quantiles_of_the_tables():
    """97.5 % quantiles as every table has them; odd and even degrees, and nearly normal."""
    table = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 10: 2.228139, 30: 2.042272,
             120: 1.979930, 10_000: 1.960201}  # fmt: skip
    for freedom, expected in table.items():
        assert quantile(freedom) == pytest.approx(expected, abs=5e-7)
        assert two_sided_p(-expected, freedom) == pytest.approx(0.05, abs=1e-7)
    assert quantile(7, 0.01) == pytest.approx(3.499483, abs=5e-7)
    assert two_sided_p(1.0, 1) == 0.5
    assert two_sided_p(math.sqrt(2), 2) == pytest.approx(1 - math.sqrt(0.5))
    assert two_sided_p(0, 3) == 1
    assert two_sided_p(math.inf, 4) == pytest.approx(0, abs=1e-15)


def test_the_paired_t_test_of_student():
    """t, p and interval of the sleep data are R's to all digits that it prints."""
    found = difference(range(10), FIRST, SECOND)
    assert found.t == pytest.approx(-4.0621, abs=5e-5)
    assert found.p == pytest.approx(0.002833, abs=5e-7)
    assert found.interval == pytest.approx((-2.4598858, -0.7001142), abs=5e-8)
    assert (found.freedom, found.is_decided) == (9, True)


def test_power_is_what_simulation_finds():
    """The share of 40,000 experiments with p below 0.05; and the pairs that power tables have."""
    draws = np.random.default_rng(1).standard_normal((40_000, 6)) + 1.2
    t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / math.sqrt(6))
    assert power(1.2, 6) == pytest.approx((np.abs(t) > quantile(5)).mean(), abs=0.006)
    assert power(0, 6) == pytest.approx(0.05, abs=1e-9)
    assert [pairs_needed(effect, 0.8) for effect in (0.2, 0.5, 0.8)] == [199, 34, 15]
    assert [pairs_needed(effect) for effect in (0.5, 1.0, -1.0, 1e3)] == [44, 13, 13, 2]
    assert pairs_needed(1e-3) is pairs_needed(0.0) is None


def test_the_same_difference_with_each_seed():
    """Without a spread a difference is certain, and no difference is none."""
    found = difference([1, 2], [1.0, 2.0], [0.5, 1.5])
    assert (found.t, found.interval) == (math.inf, (0.5, 0.5))
    assert found.p == pytest.approx(0, abs=1e-15)
    same = difference([1, 2], [1.0, 2.0], [1.0, 2.0])
    assert (same.p, same.seeds_needed, same.is_decided) == (1, None, False)


# --- The end of a run ------------------------------------------------------------------------------------


def test_end_values_are_means_over_whole_cycles(tmp_path):
    """A loss that swings within a cycle of 10, evaluated every 3 rounds: the mean is that of all phases."""

    def swinging(seed: int, gain: float) -> Callable[[int], float]:
        return lambda t: 2 + seed + gain * (t % 10) if t > 300 else 100.0

    for seed in (1, 2, 3):
        ended(tmp_path / f"a{seed}.h5", seed, swinging(seed, 1.0), *CYCLE, rounds=400, every=3)
        ended(tmp_path / f"b{seed}.h5", seed, swinging(seed, 0.0), *CYCLE, rounds=400, every=3)
    found = fedmpi.compare(tmp_path / "a*.h5", tmp_path / "b*.h5")
    assert (found.cycle, found.window) == (10, 30)  # 30 rounds see each phase once
    assert found.evaluations == (11, 11)  # x_400 and x_390 share their phase's part of the mean
    assert found.difference.a == pytest.approx([2 + seed + 4.5 for seed in (1, 2, 3)])
    assert found.difference.mean == pytest.approx(4.5)
    assert found.notes == []


def test_amplification_makes_a_cycle_too(tmp_path):
    """P of both sides counts, where there is amplification; a window of the user's own is judged."""
    amplified = ("algorithm.amplification=2", "algorithm.amplify_every=4")
    for seed in (1, 2):
        ended(tmp_path / f"a{seed}.h5", seed, lambda t: t, *CYCLE, *amplified, rounds=200, every=1)
        ended(
            tmp_path / f"b{seed}.h5",
            seed,
            lambda t: 0,
            *CYCLE,
            "algorithm.amplify_every=7",
            rounds=200,
            every=1,
        )
    a, b = tmp_path / "a*.h5", tmp_path / "b*.h5"
    assert (fedmpi.compare(a, b).cycle, fedmpi.compare(a, b).window) == (20, 20)
    found = fedmpi.compare(a, b, window=4)
    assert found.difference.a == [198.5, 198.5]
    assert "4 rounds are not whole cycles of 20" in found.notes[0]
    with pytest.raises(UserError, match="window='0': expected a number of rounds from 1 to 200"):
        fedmpi.compare(a, b, window=0)


def test_one_phase_is_told(tmp_path):
    """Evaluations every 20 rounds of a cycle of 10 see one phase, whatever the window."""
    for seed in (1, 2):
        for name in "ab":
            ended(tmp_path / f"{name}{seed}.h5", seed, lambda t: t, *CYCLE, rounds=400, every=20)
    notes = fedmpi.compare(tmp_path / "a*.h5", tmp_path / "b*.h5").notes
    assert notes[0].startswith(
        "A is evaluated every 20 rounds, always at the same phase of the cycle of 10"
    )
    assert notes[1].startswith("B ")


def test_the_last_evaluation_out_of_step_is_left_out(tmp_path):
    """A run of 103 rounds is evaluated every 5, and at its end, a phase of the cycle that no other has."""
    for seed in (1, 2):
        for name in "ab":
            path = tmp_path / f"{name}{seed}.h5"
            ended(path, seed, lambda t: 99.0 if t == 103 else t, *CYCLE, rounds=103)
    a, b = tmp_path / "a*.h5", tmp_path / "b*.h5"
    assert fedmpi.compare(a, b, window=10).difference.a == [97.5, 97.5]  # of x_95 and x_100
    assert fedmpi.compare(a, b).evaluations == (6, 6)  # 30 rounds, never fewer than five by default


# --- The command -----------------------------------------------------------------------------------------


def test_compare_prints_the_test(fedmpi_cli, tmp_path):
    """Student's data as losses of ten seeds: the numbers of R, what differs, and who is lower."""
    both(tmp_path, [x + 5 for x in FIRST], [x + 5 for x in SECOND])
    done = fedmpi_cli("compare", "a-*.h5", "b-*.h5")
    assert done.returncode == 0, done.stderr
    assert "differ in algorithm.local_lr 0.1 | 0.2" in done.stdout
    assert "A - B          -1.5800, standard deviation 1.2300, 10 seeds" in done.stdout
    assert "95 % interval  -2.4599 to -0.7001" in done.stdout
    assert "t = -4.06, 9 degrees of freedom, two-sided p = 0.0028" in done.stdout
    assert "verdict        A is lower than B, decided at 5 %" in done.stdout
    found = json.loads(
        fedmpi_cli("compare", "a-*.h5", "b-*.h5", "--json", "--metric", "test_accuracy").stdout
    )
    assert (found["better"], found["decided"], found["seeds"]) == ("B", True, list(range(1, 11)))
    assert found["p"] == pytest.approx(0.002833, abs=5e-7)
    assert found["interval"] == pytest.approx([-0.24598858, -0.07001142], abs=1e-8)
    assert found["seeds_needed"] == pairs_needed(1.58 / 1.2299593)


def test_what_is_not_decided_says_so(fedmpi_cli, tmp_path):
    """Three seeds of the kind that were called "agrees": p = 0.12, and seven seeds are needed."""
    both(tmp_path, [0.5, 0.6, 0.7], [0.527, 0.605, 0.718])
    text = fedmpi_cli("compare", "a-*.h5", "b-*.h5").stdout
    assert "two-sided p = 0.12" in text
    assert "90 % power     7 seeds" in text
    assert "verdict        not decided at 5 %" in text


def test_folders_files_and_lists(fedmpi_cli, tmp_path):
    """A folder, files by name from Python, and seeds that only one side has, which are named."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for seed in (1, 2, 3):
        ended(tmp_path / "a" / f"{seed}.h5", seed, lambda t: 1.0)
    for seed in (2, 3, 4):
        ended(tmp_path / "b" / f"{seed}.h5", seed, lambda t: 2.0)
    text = fedmpi_cli("compare", "a", "b").stdout
    assert "note: only A has seed 1: left out" in text
    assert "note: only B has seed 4: left out" in text
    alike = json.loads(fedmpi_cli("compare", "a", "b", "--json").stdout, parse_constant=pytest.fail)
    assert (alike["t"], alike["better"]) == (None, "A")
    files = [[tmp_path / side / f"{seed}.h5" for seed in (3, 2)] for side in "ab"]
    assert fedmpi.compare(*files).difference.seeds == [2, 3]
    (tmp_path / "a" / "3.h5.checkpoint-100").write_bytes(b"none of our business")
    assert fedmpi.compare(tmp_path / "a" / "*", tmp_path / "b*").difference.seeds == [2, 3]
    assert str(fedmpi.compare(*files)).splitlines()[3:] == text.splitlines()[3:-2]


ERRORS = {
    "no common seeds: A has 1, B has 2; runs are compared seed by seed": ("a1.h5", "b2.h5"),
    "one common seed, 1 (A has 1, B has 1): a difference without a spread": ("a1.h5", "b1.h5"),
    "different numbers of rounds: b1.h5 has 50; b2.h5 has 100": ("a?.h5", "b?.h5"),
    "A: seed 1 twice, in a1.h5 and c1.h5 (algorithm.local_lr 0.1 | 0.3); each side is one": (
        "[ac]1.h5", "b?.h5"),
    "A: runs of several settings (algorithm.local_lr 0.1 | 0.3); each side": ("[ac][12].h5", "b?.h5"),
    "A: no file fits the pattern z*.h5": ("z*.h5", "b?.h5"),
    "run file z.h5: no such file": ("z.h5", "b?.h5"),
    "run file d1.h5: diverged after 100 of 100 rounds": ("d1.h5", "b?.h5"),
    "folder empty: holds no .h5 file": ("empty", "b?.h5"),
    "run file n1.h5: no test_loss; it has train_loss": ("n1.h5", "b?.h5", "--metric", "test_loss"),
    "--metric tain_loss: unknown; did you mean train_loss?": ("a?.h5", "a?.h5", "--metric", "tain_loss"),
    "--window 999: expected a number of rounds from 1 to 100": ("a?.h5", "a?.h5", "--window", "999"),
    "no evaluation in its last 3 rounds, it has one every 40; give a longer --window": (
        "e?.h5", "e?.h5", "--window", "3"),
}  # fmt: skip


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory):
    """Files for all that a user may get wrong."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty").mkdir()
    for seed in (1, 2):
        ended(folder / f"a{seed}.h5", seed, lambda t: 1.0, "algorithm.local_lr=0.1")
        ended(folder / f"b{seed}.h5", seed, lambda t: 1.0, rounds=50 if seed == 1 else 100)
    ended(folder / "c1.h5", 1, lambda t: 1.0, "algorithm.local_lr=0.3")
    ended(folder / "d1.h5", 1, lambda t: 1.0, status="diverged")
    writer = create_run(folder / "n1.h5", "run.num_rounds=3")
    add_rounds(writer, 0, 3)
    writer.add("eval", 3, 1.0, math.nan, math.nan, math.nan, 0.1)
    writer.flush(INITIAL, status="done")
    for seed in (1, 2):
        ended(folder / f"e{seed}.h5", seed, lambda t: math.nan if t == 90 else 1.0, every=40, rounds=90)
    return folder


@pytest.mark.parametrize("expected", ERRORS)
def test_mistakes_are_named(fedmpi_cli, mistakes, tmp_path, expected):
    """Exit 2 with the value seen and a remedy, never a traceback."""
    for path in mistakes.iterdir():
        (tmp_path / path.name).symlink_to(path)
    if "several settings" in expected:  # other seeds, other settings
        (tmp_path / "c1.h5").unlink()
        (tmp_path / "a2.h5").unlink()
        ended(tmp_path / "c2.h5", 2, lambda t: 1.0, "algorithm.local_lr=0.3")
    done = fedmpi_cli("compare", *ERRORS[expected])
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_comparing_needs_neither_torch_nor_mpi():
    """`fedmpi.compare` loads neither."""
    code = "import sys, fedmpi; fedmpi.compare; assert not {'torch', 'mpi4py'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
