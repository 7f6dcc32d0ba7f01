"""Recipes of published experiments: complete, valid, and known to plot and sweep."""

from __future__ import annotations

import pytest

from fedmpi.cli.reproduce import _points
from fedmpi.experiments.reproduce import HERE, RECIPES
from fedmpi.experiments.sweep.best import Group, best_groups
from fedmpi.experiments.sweep.points import load_sweep
from fedmpi.experiments.sweep.store import METRICS
from fedmpi.results.plots.picture import PRESETS


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_valid(name):
    """All their sweeps load, whole and quick; the quick one has one seed and fewer rounds."""
    recipe = RECIPES[name]
    assert not recipe.preset or recipe.preset in PRESETS
    assert recipe.metric in METRICS
    for sweep in recipe.sweeps:
        whole, quick = (_points(recipe, sweep, quick=q) for q in (False, True))
        if recipe.quick_base:
            assert {point.seed for point in quick} == {1}
            assert {point.config.data.dataset for point in quick} == {"fashion-mini"}
            pairs = zip(quick, (point for point in whole if point.seed == whole[0].seed), strict=True)
            assert all(q.config.run.num_rounds < w.config.run.num_rounds for q, w in pairs)
        assert len({point.name for point in whole}) == len(whole)


def test_no_file_is_forgotten():
    """Every file beside the recipes is a sweep or a base of one."""
    sweeps = {sweep for recipe in RECIPES.values() for sweep in recipe.sweeps}
    files = {path.stem for path in HERE.glob("*.toml")}
    bases = {stem for stem in files if stem.endswith(("-base", "-quick"))}
    assert sweeps == files - bases


@pytest.mark.parametrize(
    ("sweep", "warmup"),
    [("rates", (2000, 0.1)), ("methods", (2000, 0.1)), ("cifar-rates", (4000, 0.05))],
)
def test_the_paper_is_kept_where_it_is_not_shortened(sweep, warmup):
    """N, S, I, batch, similarity, groups, warm-up and eta are the paper's; P is the cycle, as there."""
    config = load_sweep(HERE / f"{sweep}.toml")[0].config
    assert (config.data.num_clients, config.participation.clients_per_round) == (250, 10)
    assert (config.algorithm.local_steps, config.algorithm.batch_size) == (5, 16)
    assert (config.data.similarity, config.participation.num_groups) == (0.05, 5)
    assert config.algorithm.amplification == 10
    assert config.algorithm.amplify_every == 5 * config.participation.rounds_per_group
    assert (config.warmup.num_rounds, config.warmup.local_lr) == warmup


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "sweep", ["rates", "waiting", "methods", "intervals", "amplification", "cifar-rates"]
)
def test_evaluations_see_every_group(sweep, quick):
    """The table averages five evaluations, one after each group's turn: no method is seen at its best."""
    for point in load_sweep(HERE / f"{sweep}.toml", base="paper-quick.toml" if quick else None):
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
    assert [g.settings["x"] for g in best_groups(groups, "train_loss")] == [2, 1]
    assert [g.settings["x"] for g in best_groups(groups, "test_accuracy")] == [1, 1]


def test_an_unknown_experiment_is_told(fedmpi_cli):
    """Status 2, and the nearest name."""
    done = fedmpi_cli("reproduce", "intervalls")
    assert done.returncode == 2
    assert "did you mean intervals?" in done.stderr
