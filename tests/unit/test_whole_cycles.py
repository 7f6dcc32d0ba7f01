"""Figures of runs whose clients take turns are means over whole cycles, and evaluations see all phases."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.experiments.notes import notes_on
from fedmpi.experiments.reproduce import RECIPES, path_of
from fedmpi.experiments.reproduce.request import Request
from fedmpi.experiments.sweep.best import collect
from fedmpi.experiments.sweep.points import load_sweep
from fedmpi.experiments.sweep.store import Store, outcome_of
from fedmpi.participation.cycle import cycle_of, phase_notes, phases_seen, sees_all, stored_cycle
from fedmpi.results.ends import end_value, read_end, window_of
from fedmpi.results.groups import group_runs
from fedmpi.results.plots.curves import _settled, draw_curves
from fedmpi.results.report.collect import figures
from fedmpi.results.settled import cadence, in_window, settled, window
from fedmpi.storage.reader import load_run
from tests.support.configs import ROOT, SMALL
from tests.support.run_files import INITIAL, add_rounds, create_run

PERIODIC = ("participation.availability=periodic", "participation.num_groups=2",
            "participation.rounds_per_group=4")  # fmt: skip


def swinging(rounds: np.ndarray, cycle: int) -> np.ndarray:
    """A loss of mean 0.5 over a cycle that swings by 0.1 within it."""
    return 0.5 + 0.05 * np.sin(2 * np.pi * rounds / cycle + 1)


@pytest.mark.parametrize(("every", "last"), [(9, 2000), (9, 1991), (7, 1500), (160, 32_000), (27, 2000)])
def test_a_mean_over_whole_cycles(every, last):
    """Wherever a run ends and however often it is evaluated, the swing within a cycle cancels."""
    cycle = 50 if every == 160 else 20
    rounds = np.unique([*range(0, last + 1, every), last])
    assert settled(rounds, swinging(rounds, cycle), cycle) == pytest.approx(0.5, abs=1e-3)
    assert abs(swinging(rounds, cycle)[-1] - 0.5) > 0.005


def test_one_bad_value_and_none_at_all():
    """Values that are not finite are left out; without any the answer is nan."""
    rounds = np.arange(0, 50, 10)
    assert settled(rounds, np.array([1, 1, np.nan, 3, 5.0]), at_least=3) == 3
    assert math.isnan(settled(rounds, np.full(5, np.nan)))
    assert math.isnan(settled(np.arange(0), np.arange(0.0)))


def test_the_published_window():
    """The periodic protocol's figures are means over the last 400 rounds, evaluated every 9."""
    rounds = np.unique([*range(0, 2001, 9), 2000])
    assert cadence(rounds) == 9
    assert window(2000, 20, [9], 9 * RECIPES["periodic"].last) == 400


@pytest.mark.parametrize("name", ["central", "central-cycle"])
def test_the_windows_of_the_written_protocol(name):
    """What `compare` is told in analysis/PROTOCOL.md is what the recipe's table averages: the end point."""
    config = load_sweep(path_of(name))[0].config
    run, cycle = config.run, cycle_of(config.participation)
    least = RECIPES[name].last_of(config) * run.eval_every
    page = (ROOT / "analysis" / "PROTOCOL.md").read_text()
    (told,) = re.findall(rf"fedmpi compare .*/{name}/.* --window (\d+)", page)
    assert int(told) == least == window(run.num_rounds, cycle, [run.eval_every], least)


@pytest.mark.parametrize(
    ("rounds", "cycle", "every", "least", "expected"),
    [
        (2000, 20, 27, 135, 540), (8000, 500, 69, 345, 500), (8000, 500, 300, 1500, 1500),
        (8000, 5000, 50, 250, 5000), (8000, 9000, 1, 345, 345), (8000, 1, 9, 45, 45),
    ],
)  # fmt: skip
def test_a_window_is_never_most_of_a_run(rounds, cycle, every, least, expected):
    """All phases where they take a third of the run at most, else whole cycles, where there is room."""
    assert window(rounds, cycle, [every], least) == expected


def test_the_early_rounds_of_a_run_do_not_count():
    """Evaluations every 69 rounds come to all phases of 500 after 34,500 rounds; a run of 8,000 is not
    averaged from its start."""
    rounds = np.arange(0, 8001, 69)
    assert settled(rounds, np.where(rounds < 4000, 100.0, 1.0), cycle=500) == 1.0


def test_compare_and_tables_have_one_rule(tmp_path):
    """A run compared, and the same run in a report or the best of a sweep, come to the same figure."""
    path = swinging_run(tmp_path / "r.h5")
    run, end = load_run(path), read_end(path, "train_loss")
    last = window_of(end.rounds, end.cycle, [end.cadence])
    rounds, losses = run.eval["round"].to_numpy(), run.eval.train_loss.to_numpy()
    assert last == window(400, 8, [3], 5 * 3) == 24
    assert end_value(end, last, end.cycle) == settled(rounds, losses, 8)


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_averages_is_the_end_of_its_runs(name):
    """Whole or quick: never half of a run, and not its first rounds."""
    recipe = RECIPES[name]
    for request in (Request(), Request(quick=True)):
        config = request.runs(name)[0].config
        run, cycle = config.run, cycle_of(config.participation)
        last = recipe.last_of(config)
        assert last == recipe.last or (request.quick and last >= 5)
        if recipe.whole_cycles:
            averaged = window(run.num_rounds, cycle, [run.eval_every], last * run.eval_every)
            assert averaged < run.num_rounds / 2


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_see_every_group(name):
    """The rounds that a recipe's table averages hold every turn of the cycle equally often."""
    recipe = RECIPES[name]
    if not recipe.whole_cycles:
        return
    config = load_sweep(path_of(name))[0].config
    run, turn = config.run, config.participation.rounds_per_group or 1
    rounds = np.arange(0, run.num_rounds + 1, run.eval_every)
    cycle = cycle_of(config.participation)
    last = window(int(rounds[-1]), cycle, [run.eval_every], run.eval_every * recipe.last)
    seen = rounds[in_window(rounds, cycle, last)]
    phases = np.unique(seen % cycle)
    turns = np.bincount(phases // turn, minlength=cycle // turn)
    assert turns.min() == turns.max() > 0


def test_suggested_cadences_see_all():
    """Whatever the cycle, the suggestion sees all of its phases and is near what was asked for."""
    for cycle in (1, 2, 3, 6, 10, 20, 30, 50, 210, 500):
        for every in (1, 2, 3, 10, 20, 50, 100, 250, 500):
            better = sees_all(every, cycle)
            assert phases_seen(better, cycle) == cycle
            assert better == 1 or every / 2 <= better <= 2 * every


@pytest.mark.parametrize(
    ("every", "train_every", "text"),
    [
        (8, None, "run.eval_every = 8: evaluations see 1 of the 8 rounds of the cycle"),
        (6, None, "run.eval_every = 6: evaluations see 4 of the 8 rounds of the cycle"),
        (9, 4, "run.eval_train_every = 4: evaluations see 2 of the 8 rounds"),
        (9, None, ""),
        (0, None, ""),
    ],
)
def test_a_cadence_that_sees_few_phases_is_told(every, train_every, text):
    """`check` and `run` name the key, how much it sees, and a value that sees all."""
    overrides = [*PERIODIC, "run.num_rounds=100", f"run.eval_every={every}"]
    overrides += [f"run.eval_train_every={train_every}"] if train_every else []
    notes = notes_on(validate.parse(SMALL, "small.toml", overrides))
    assert [text in note for note in notes] == ([True] if text else [])
    for note in notes:
        better = int(note.rpartition("; ")[2].split()[0])
        assert phases_seen(better, 8) == 8


@pytest.mark.parametrize(
    ("words", "cycle"),
    [
        (("availability=cyclic", "probability=0.5", "cycle_rounds=8"), 8),
        (("availability=non-stationary", "probability=0.5", 'shape="sine"', "shape_rounds=8"), 8),
        (("availability=sinusoidal", "probability=0.5", "amplitude=0.4", "rounds_per_day=8"), 8),
        (("availability=sinusoidal", "probability=0.5", "amplitude=0.4", "rounds_per_day=7.5"), 1),
        (('availability="trace"', 'trace="t.csv"', "trace_period=8"), 8),
        (('availability="trace"', 'trace="t.csv"'), 1),
        (("availability=bernoulli", "probability=0.5"), 1),
    ],
)
def test_whatever_repeats_has_a_cycle(words, cycle):
    """Days, traces and shapes that repeat are cycles as turns are: evaluations at one phase are told."""
    keys = [f"participation.{word}" for word in words]
    config = validate.parse(SMALL, "small.toml", [*keys, "run.num_rounds=100", "run.eval_every=8"])
    assert cycle_of(config.participation) == cycle
    assert len(phase_notes(config)) == (cycle > 1)


def test_the_note_is_printed(fedmpi_cli, tmp_path):
    """By `check` before and by `run` at its start."""
    (tmp_path / "c.toml").write_text(SMALL)
    words = [w for o in (*PERIODIC, "run.num_rounds=16", "run.eval_every=8") for w in ("--set", o)]
    for command in (("check", "c.toml"), ("run", "c.toml", "--out", "r.h5")):
        done = fedmpi_cli(*command, *words)
        assert done.returncode == 0, done.stderr
        assert "see 1 of the 8 rounds of the cycle" in done.stdout + done.stderr


def swinging_run(path: Path, *overrides: str) -> Path:
    """400 rounds with a cycle of 8, evaluated every 3: a loss that swings around 0.5."""
    writer = create_run(path, *PERIODIC, "run.num_rounds=400", "run.eval_every=3", *overrides)
    add_rounds(writer, 0, 400)
    for t in [*range(0, 400, 3), 400]:
        loss = float(swinging(np.array(t), 8))
        writer.add("eval", t, loss, 0.5, loss, 0.5, 0.25 * t)
    writer.flush(INITIAL, status="done")
    return path


def test_reports_and_plots_average_whole_cycles(tmp_path):
    """The settled figure of a report is 0.5, and the plotted curve, a mean over cycles, hardly swings."""
    run = load_run(swinging_run(tmp_path / "r.h5"))
    assert stored_cycle(run.config) == 8
    assert figures(run)["tail train_loss"] == pytest.approx(0.5, abs=2e-3)
    line = draw_curves(group_runs([run])).axes[0].get_lines()[0]
    middle = line.get_ydata()[8:-8]
    assert len(middle) > 40
    assert np.ptp(middle) < 0.005 < np.ptp(run.eval.train_loss)
    assert _settled(run) == pytest.approx(0.5, abs=2e-3)


def test_the_best_of_a_sweep_is_no_single_phase(tmp_path):
    """`fedmpi sweep best` averages whole cycles though one evaluation was asked for."""
    (tmp_path / "c.toml").write_text(SMALL)
    (tmp_path / "s.toml").write_text('base = "c.toml"\nseeds = [1]\n')
    points = load_sweep(tmp_path / "s.toml")
    store = Store(tmp_path / "d")
    store.create(points)
    path = swinging_run(store.run_path(points[0].name))
    store.note(points[0].name, outcome_of(path, points[0], "done"))
    assert collect(store, "train_loss")[0].values == [pytest.approx(0.5, abs=2e-3)]
    last = float(swinging(np.array(400), 8))
    assert collect(store, "train_loss", whole_cycles=False)[0].values == [pytest.approx(last)]
    assert abs(last - 0.5) > 0.01
