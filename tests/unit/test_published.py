"""The originals' figures (analysis/published): models, rates, protocols, and what runs come to."""

from __future__ import annotations

import tomllib

import pandas
import pytest

from fedmpi.config import validate
from fedmpi.experiments.reproduce import HERE, RECIPES
from fedmpi.experiments.sweep.points import load_sweep
from fedmpi.models import build_model
from fedmpi.participation.cycle import cycle_of, phase_notes
from fedmpi.results.settled import settled
from tests.support.bands import bands, cases, changed, measured
from tests.support.configs import ROOT, SMALL

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
    """gamma, eta and the server's rate; those of markov and cyclic are those of bernoulli."""
    for kind in ("bernoulli", "markov", "cyclic") if "bernoulli" in name else ("",):
        path = name.replace("bernoulli", kind) if kind else name
        algorithm = validate.load(ROOT / "configs" / f"{path}.toml").algorithm
        stated = [algorithm.local_lr, algorithm.amplification, algorithm.server_lr or 1.0]
        assert stated == pytest.approx(RATES[name], rel=2e-3)


@pytest.mark.parametrize("name", PUBLISHED["protocol"])
def test_configs_have_their_authors_protocol(name):
    """Every config of the folder has the keys of the protocol, and evaluations see all phases."""
    protocol = dict(PUBLISHED["protocol"][name])
    folder, begins = protocol.pop("folder"), protocol.pop("begins")
    keys = {key: value for key, value in protocol.items() if "." in key}
    paths = sorted((ROOT / "configs" / folder).glob(f"{begins}*.toml"))
    assert len(paths) >= 9
    for path in paths:
        config = validate.load(path)
        sections = {key: key.split(".") for key in keys}
        assert {k: getattr(getattr(config, s), n) for k, (s, n) in sections.items()} == keys
        assert phase_notes(config) == []


@pytest.mark.parametrize("end", PUBLISHED["end"], ids=lambda end: end["case"])
def test_published_curves_agree_with_the_authors_code(end):
    """The curves of analysis/results end where the authors' own code does: loss and test accuracy."""
    curves = pandas.read_csv(ROOT / "analysis" / "results" / f"{end['recipe']}.csv")
    recipe = RECIPES[end["recipe"]]
    cycle = cycle_of(load_sweep(HERE / f"{recipe.sweeps[0]}.toml")[0].config.participation)
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
        ("unknown-participation/bernoulli-fedau", "algorithm.cutoff", 5),
        ("unknown-participation/bernoulli-fedavg-participants", "data.partition", "iid"),
        ("unknown-participation/cyclic-fedavg-participants", "participation.weighting", "all"),
        ("unknown-participation/bernoulli-mifa", "algorithm.warm_start", True),
        ("methods/amplified", "data.similarity", 0.5),
        ("regularized/permutation", "participation.selection", "uniform"),
    ],
)
def test_another_protocol_leaves_its_band(name, key, value):
    """Bands tell another partition, weighting, cutoff, start, similarity or selection."""
    low, high = BANDS[name]
    assert not low < measured(changed(cases()[name], {key: value}), seed=1) < high
