"""The originals' figures (analysis/published): models, rates, protocols, and what runs come to."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pandas
import pytest

from fedmpi.config import validate
from fedmpi.data.originals import SYSTEM_FASHION_MNIST
from fedmpi.experiments.reproduce import RECIPES, path_of
from fedmpi.experiments.sweep.choosing import only
from fedmpi.experiments.sweep.points import Point, load_sweep
from fedmpi.models import build_model
from fedmpi.participation.cycle import cycle_of, phase_notes
from fedmpi.results.settled import settled
from tests.support.bands import bands, cases, changed, measured
from tests.support.configs import ROOT, SMALL
from tests.support.simulations import run_to_file

PUBLISHED = tomllib.loads((ROOT / "analysis" / "published" / "figures.toml").read_text())
RATES = {
    f"{folder}/{name}": rates
    for folder, table in PUBLISHED["rates"].items() if isinstance(table, dict)
    for name, rates in table.items()
}  # fmt: skip
BANDS = bands()
_IN_LAUNCH = "periodic/"  # the whole quick recipe runs in tests/launch/test_reproduce.py


def entries(table: object) -> list[dict]:
    """Every table that holds a figure, which says where it is from."""
    if isinstance(table, list):
        return [found for part in table for found in entries(part)]
    if not isinstance(table, dict):
        return []
    return [table] if "source" in table else [found for part in table.values() for found in entries(part)]


def test_every_figure_has_its_source():
    """Each was read or run, and says where."""
    found = entries(PUBLISHED)
    assert len(found) == 2 + len(PUBLISHED["parameters"]) + 1 + len(PUBLISHED["protocol"]) + 1
    assert all(entry["how"] in ("read", "run") and len(entry["source"]) > 10 for entry in found)


@pytest.mark.parametrize("name", PUBLISHED["parameters"])
def test_models_have_their_authors_size(name):
    """Parameters at ten labels."""
    shape = (1, 28, 28) if name == "cnn-fashion" else (3, 32, 32)
    module = build_model(validate.parse(SMALL, "c.toml", [f"model.name={name}"]), shape, 10)
    assert sum(p.numel() for p in module.parameters()) == PUBLISHED["parameters"][name]["count"]


@pytest.mark.parametrize("name", RATES)
def test_configs_have_their_authors_rates(name):
    """gamma, eta and the server's rate; those of FedAU's table hold for other availabilities."""
    recipe, _, case = name.partition("/")
    cases = [(recipe, case)]
    if recipe == "fedau-table":
        cases += [("unknown-participation", f"{kind}-{case.lower()}") for kind in ("markov", "cyclic")]
    for where, wanted in cases:
        (algorithm,) = {p.config.algorithm for p in load_sweep(path_of(where)) if p.method == wanted}
        stated = [algorithm.local_lr, algorithm.amplification, algorithm.server_lr or 1.0]
        assert stated == pytest.approx(RATES[name], rel=2e-3)


@pytest.mark.parametrize("name", PUBLISHED["protocol"])
def test_configs_have_their_authors_protocol(name):
    """Every run has the keys of the protocol, and evaluations see all phases."""
    protocol = dict(PUBLISHED["protocol"][name])
    recipe = protocol.pop("recipe")
    keys = {key: value for key, value in protocol.items() if "." in key}
    points = load_sweep(path_of(recipe))
    assert len({point.method for point in points}) >= 9
    for config in (point.config for point in points):
        sections = {key: key.split(".") for key in keys}
        assert {k: getattr(getattr(config, s), n) for k, (s, n) in sections.items()} == keys
        assert phase_notes(config) == []


@pytest.mark.parametrize("end", PUBLISHED["end"], ids=lambda end: end["case"])
def test_published_curves_agree_with_the_authors_code(end):
    """The curves of analysis/results end where the authors' own code does: loss and test accuracy."""
    curves = pandas.read_csv(ROOT / "analysis" / "results" / f"{end['recipe']}.csv")
    recipe = RECIPES[end["recipe"]]
    cycle = cycle_of(load_sweep(path_of(end["recipe"]))[0].config.participation)
    for name, run in curves.groupby("name"):
        if name.partition("_seed")[0] == end["case"]:
            rounds = run["round"].to_numpy()
            for metric in ("train_loss", "test_accuracy"):
                ours = settled(rounds, run[metric].to_numpy(), cycle, recipe.last)
                assert ours == pytest.approx(end[metric], abs=end["margin"]), name


def test_every_protocol_has_its_band():
    """No shortened run is left out, and none is stored that is no more."""
    assert set(BANDS) == set(cases())
    assert all(low < high for low, high in BANDS.values())


@pytest.mark.parametrize("name", [name for name in BANDS if not name.startswith(_IN_LAUNCH)])
def test_shortened_runs_end_in_their_band(name):
    """With other bits they would stay in it."""
    low, high = BANDS[name]
    assert low < measured(cases()[name], seed=1) < high


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("fedau-table/FedAU", "algorithm.cutoff", 5),
        ("fedau-table/FedAvg-participants", "data.partition", "iid"),
        ("unknown-participation/cyclic-fedavg-participants", "participation.weighting", "all"),
        ("fedau-table/MIFA", "algorithm.warm_start", True),
        ("methods/amplified", "data.similarity", 0.5),
        ("regularized/permutation", "participation.selection", "uniform"),
    ],
)
def test_another_protocol_leaves_its_band(name, key, value):
    """Bands tell another partition, weighting, cutoff, start, similarity or selection."""
    low, high = BANDS[name]
    assert not low < measured(changed(cases()[name], {key: value}), seed=1) < high


# One curve of each table that a short prefix is held against: recipe, case, rounds.
PREFIXES = [
    ("appendix", "*", 15), ("periodic", "MIFA", 18), ("periodic-grid", "mifa*-0.0003", 27),
    ("rates", "*-0.001", 160), ("waiting", "*-0.1", 160), ("methods", "amplified", 160),
    ("intervals", "*-50", 160), ("amplification", "*-10", 160),
    ("regularized", "uniform*", 50), ("cycle", "amplified*-3e-06", 100), ("logistic", "*-3e-06", 300),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "case", "rounds"), PREFIXES, ids=lambda value: str(value))
def test_a_config_gives_the_beginning_of_its_published_curve(recipe, case, rounds, tmp_path):
    """Shipped runs have the settings that analysis/results states, and begin as its curves do."""
    curves = pandas.read_csv(ROOT / "analysis" / "results" / f"{recipe}.csv")
    points = load_sweep(path_of(recipe))
    _have_the_settings_of(points, curves)
    if points[0].config.data.dataset == "fashion-mnist" and not SYSTEM_FASHION_MNIST.exists():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    for point in only([p for p in points if p.seed == points[0].seed], [case]):
        short = replace(point.config, run=replace(point.config.run, num_rounds=rounds))
        if short.warmup and short.warmup.num_rounds > rounds:
            short = replace(short, warmup=replace(short.warmup, num_rounds=rounds))
        run = run_to_file(short, tmp_path / f"{point.name}.h5")
        published = curves[(curves["name"] == point.name) & (curves["round"] <= rounds)]
        assert len(published) == len(run.eval) > 1
        for column in ("train_loss", "test_accuracy"):
            expected = published[column].to_numpy()
            assert run.eval[column].to_numpy() == pytest.approx(expected, rel=2e-3, nan_ok=True), point.name


def _have_the_settings_of(points: list[Point], curves: pandas.DataFrame) -> None:
    """Every curve is a run of the sweep, with the settings that its table states."""
    by_name = {point.name: point.config for point in points}
    columns = [column for column in curves if "." in column]
    stated = curves.drop_duplicates("name").set_index("name")[columns]
    for name, settings in stated.iterrows():
        for column, value in settings.items():
            section, key = column.split(".")
            assert getattr(getattr(by_name[name], section), key) == value, (name, column)
