"""Recipes of published experiments: complete, valid, and known to plot and sweep."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from fedmpi.experiments.reproduce import HERE, RECIPES, path_of
from fedmpi.experiments.reproduce.request import Request
from fedmpi.experiments.sweep.best import Group, best_groups
from fedmpi.experiments.sweep.points import load_sweep
from fedmpi.results.compare import first_difference
from fedmpi.results.plots.picture import PRESETS
from fedmpi.storage.columns import stored_metrics
from fedmpi.storage.reader import load_run


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_valid(name):
    """Their sweeps load, whole and quick; the quick one has one seed, fewer rounds, images at hand."""
    recipe = RECIPES[name]
    assert not recipe.preset or recipe.preset in PRESETS
    assert recipe.metric in {column.name for column in stored_metrics({})}
    whole, quick = (Request(quick=q).runs(name) for q in (False, True))
    if recipe.has_quick:
        assert {point.seed for point in quick} == {whole[0].seed}
        assert {point.config.data.dataset for point in quick} == {"fashion-mini"}
        pairs = zip(quick, (point for point in whole if point.seed == whole[0].seed), strict=True)
        assert all(q.config.run.num_rounds < w.config.run.num_rounds for q, w in pairs)
    assert len({point.name for point in whole}) == len(whole)


def test_no_file_is_forgotten():
    """Every file beside the recipes is the sweep of one, or what some of them build on."""
    files = {path.stem: tomllib.loads(path.read_text()) for path in HERE.glob("*.toml")}
    bases = {Path(table["base"]).stem for table in files.values() if "base" in table}
    assert set(RECIPES) <= set(files)
    assert set(files) - set(RECIPES) <= bases


@pytest.mark.parametrize(
    ("sweep", "warmup"),
    [("rates", (2000, 0.1)), ("methods", (2000, 0.1)), ("cifar", (4000, 0.05))],
)
def test_the_paper_is_kept_where_it_is_not_shortened(sweep, warmup):
    """N, S, I, batch, similarity, groups, warm-up and eta are the paper's; P is the cycle, as there."""
    config = load_sweep(path_of(sweep))[0].config
    assert (config.data.num_clients, config.participation.clients_per_round) == (250, 10)
    assert (config.algorithm.local_steps, config.algorithm.batch_size) == (5, 16)
    assert (config.data.similarity, config.participation.num_groups) == (0.05, 5)
    assert config.algorithm.amplification == 10
    assert config.algorithm.amplify_every == 5 * config.participation.rounds_per_group
    assert (config.warmup.num_rounds, config.warmup.local_lr) == warmup


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("sweep", ["rates", "waiting", "methods", "intervals", "amplification", "cifar"])
def test_evaluations_see_every_group(sweep, quick):
    """The table averages five evaluations, one after each group's turn: no method is seen at its best."""
    for point in load_sweep(path_of(sweep), quick=quick):
        run, turn = point.config.run, point.config.participation.rounds_per_group
        last = [run.num_rounds - k * run.eval_every for k in range(5)]
        assert run.num_rounds % run.eval_every == 0
        assert {t // turn % 5 for t in last} == set(range(5))


def test_the_best_setting_of_each_method():
    """Lowest loss or highest accuracy, among settings that have all their seeds."""
    groups = [
        Group("a", {"x": 1}, [0.5, 0.7], 2, []),
        Group("a", {"x": 2}, [0.4, 0.4], 2, []),
        Group("a", {"x": 3}, [0.1], 2, []),
        Group("b", {"x": 1}, [0.9], 1, []),
    ]
    assert [g.settings["x"] for g in best_groups(groups)] == [2, 1]
    higher = [replace(group, higher_is_better=True) for group in groups]
    assert [g.settings["x"] for g in best_groups(higher)] == [1, 1]


def test_an_unknown_experiment_is_told(fedmpi_cli):
    """Status 2, and the nearest name."""
    done = fedmpi_cli("reproduce", "intervalls")
    assert done.returncode == 2
    assert "did you mean intervals?" in done.stderr


def appendix(fedmpi_cli, *words):
    """One setting of the appendix's example, six rounds of it."""
    return fedmpi_cli(
        "reproduce", "appendix", "--only", "gamma-0.05-eta-1", "--rounds", 6, "--out", "r", *words
    )


def test_other_seeds_rounds_and_some_settings(fedmpi_cli, tmp_path):
    """--seeds, --rounds and --only: those runs, and no others."""
    done = appendix(fedmpi_cli, "--seeds", "7,9-10")
    assert done.returncode == 0, done.stderr
    names = {f"gamma-0.05-eta-1_seed-{seed}" for seed in (7, 9, 10)}
    assert {path.stem for path in (tmp_path / "r" / "appendix").glob("*.h5")} == names
    curves = pandas.read_csv(tmp_path / "r" / "curves.csv")
    assert set(curves["name"]) == names
    assert curves["round"].max() == 6


def test_a_reproduction_is_gone_on_with(fedmpi_cli, tmp_path):
    """--resume keeps what the folder was asked for, adds a seed, and more rounds with the same bits."""
    assert appendix(fedmpi_cli, "--seeds", 7).returncode == 0
    done = fedmpi_cli("reproduce", "appendix", "--out", "r", "--resume", "--seeds", 8, "--rounds", 9)
    assert done.returncode == 0, done.stderr
    curves = pandas.read_csv(tmp_path / "r" / "curves.csv").set_index(["seed", "round"])
    assert set(curves.index) == {(seed, t) for seed in (7, 8) for t in range(10)}
    whole = fedmpi_cli("reproduce", "appendix", "--out", "w", "--seeds", "7,8", "--rounds", 9)
    assert whole.returncode == 0, whole.stderr
    name = "appendix/gamma-0.05-eta-1_seed-7.h5"
    assert first_difference(load_run(tmp_path / "r" / name), load_run(tmp_path / "w" / name)) is None


def test_more_seeds_beside_all_that_a_recipe_has(fedmpi_cli, tmp_path):
    """Also of a folder that an earlier version of fedmpi began, which knows of no request."""
    words = ("reproduce", "appendix", "--rounds", 3, "--out", "r")
    assert fedmpi_cli(*words).returncode == 0
    assert fedmpi_cli(*words, "--resume", "--seeds", 8, "--only", "gamma-0.05-eta-1").returncode == 0
    curves = pandas.read_csv(tmp_path / "r" / "curves.csv")
    assert curves.groupby("seed")["name"].nunique().to_dict() == {1: 7, 8: 7}
    (tmp_path / "r" / "request.json").unlink()
    assert fedmpi_cli(*words, "--resume", "--seeds", 9).returncode == 0
    curves = pandas.read_csv(tmp_path / "r" / "curves.csv")
    assert curves.groupby("seed")["name"].nunique().to_dict() == {1: 7, 8: 7, 9: 7}


def test_another_request_is_no_accident(fedmpi_cli, tmp_path):
    """Without --resume other things in the same folder are refused; the same again is not."""
    assert appendix(fedmpi_cli, "--seeds", 7).returncode == 0
    before = (tmp_path / "r" / "curves.csv").read_bytes()
    done = appendix(fedmpi_cli, "--seeds", "7,8")
    assert done.returncode == 2
    assert "was begun with --seeds 7, this command says --seeds 7,8; add --resume" in done.stderr
    assert (tmp_path / "r" / "curves.csv").read_bytes() == before
    assert appendix(fedmpi_cli, "--seeds", 7).returncode == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--only", "gamma-0.05-eta-3"), "no run of the sweep; did you mean gamma-0.05-eta-"),
        (("--seeds", "4,x"), "'x' is not an integer"),
        (("--seeds", "9-4"), "'9-4' has no seed"),
        (("--rounds", "0"), "'0' is not an integer >= 1"),
    ],
)
def test_requests_that_make_no_sense(fedmpi_cli, tmp_path, words, text):
    """Status 2, what is wrong, and nothing is written."""
    done = fedmpi_cli("reproduce", "appendix", "--out", "r", *words)
    assert done.returncode == 2
    assert text in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_damaged_request_is_told(fedmpi_cli, tmp_path):
    """A file that was cut names itself, and what to do."""
    assert appendix(fedmpi_cli, "--seeds", 7).returncode == 0
    (tmp_path / "r" / "request.json").write_text('{"seeds": [')
    done = appendix(fedmpi_cli, "--seeds", 7)
    assert done.returncode == 2
    assert "request.json: damaged" in done.stderr
