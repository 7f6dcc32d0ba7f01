"""Published results: every figure with a spread that the pages state comes from the published curves."""

from __future__ import annotations

import importlib.util
import re

import pandas
import pytest

from fedmpi.experiments.reproduce import RECIPES
from tests.support.configs import ROOT

RESULTS = ROOT / "analysis" / "results"
FIGURE = re.compile(r"\d+\.\d+ ± \d+\.\d+")


@pytest.fixture(scope="module")
def tables():
    """analysis/tables.py, which is no package."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "analysis" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_a_run_came_to(tables, tmp_path):
    """The mean of the last five evaluations; mean and standard deviation over seeds; lowest loss first."""
    curves = [
        {"name": f"{name}_seed-{seed}", "seed": seed, "round": t, "train_loss": loss + seed + (t == 0) * 9,
         "train_accuracy": 0.5, "test_accuracy": 0.25}
        for name, loss in (("b", 2.0), ("a", 1.0)) for seed in (1, 2) for t in range(6)
    ]  # fmt: skip
    pandas.DataFrame(curves).to_csv(tmp_path / "c.csv", index=False)
    assert tables.rows(tmp_path / "c.csv") == [
        "| a | 2 | 2.5000 ± 0.7071 | 50.00 ± 0.00 | 25.00 ± 0.00 |",
        "| b | 2 | 3.5000 ± 0.7071 | 50.00 ± 0.00 | 25.00 ± 0.00 |",
    ]


@pytest.mark.parametrize("page", ["README.md", "analysis/RESULTS.md"])
def test_published_figures_come_from_published_curves(tables, page):
    """Each `mean ± standard deviation` of a page is what tables.py makes of a file in analysis/results/."""
    made = {f for path in RESULTS.glob("*.csv") for row in tables.rows(path) for f in FIGURE.findall(row)}
    stated = set(FIGURE.findall((ROOT / page).read_text()))
    assert stated
    assert stated <= made, f"in {page}, but from no curve: {sorted(stated - made)}"


def test_what_is_published_can_be_made_again():
    """Files in analysis/results/ are named after recipes; the page shows them and how to make them."""
    files = list(RESULTS.iterdir())
    assert {path.stem for path in files} <= set(RECIPES)
    assert sum(path.stat().st_size for path in files) < 10e6
    page = (ROOT / "analysis" / "RESULTS.md").read_text()
    assert {RESULTS / name for name in re.findall(r"\(results/(\S+)\)", page)} <= set(files)
    for path in files:
        if path.suffix == ".png":
            assert f"(results/{path.name})" in page
        assert f"fedmpi reproduce {path.stem}" in page
