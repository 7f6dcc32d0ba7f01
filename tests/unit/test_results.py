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
P_VALUE = re.compile(r"p = ([\d.]+\d(?:e-\d+)?)")
# A difference with its p: "0.0373 in loss (p = 0.031)", "0.95 points of test accuracy (p = 0.19)".
WITH_P = re.compile(
    r"(\d+\.\d+)(?: in loss| in the mean| points)?(?: of test accuracy)?(?: \(|, )p = ([\d.]+\d(?:e-\d+)?)"
)


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


@pytest.fixture(scope="module")
def paired(tables):
    """The rows of paired differences, made from the curves."""
    return [row for name in tables.PAIRS for row in tables.paired_rows(RESULTS / f"{name}.csv")]


def test_paired_rows_by_hand(tables, tmp_path, monkeypatch):
    """A - B within seeds: mean, interval, p and seeds needed, of loss and of accuracy in points."""
    losses = {"a": (1.0, 2.0, 3.0), "b": (1.1, 2.1, 3.4)}
    curves = [
        {"name": f"{name}_seed-{seed}", "seed": seed, "round": t, "train_loss": loss,
         "train_accuracy": 0.5, "test_accuracy": loss / 10}
        for name, values in losses.items() for seed, loss in enumerate(values) for t in range(5)
    ]  # fmt: skip
    pandas.DataFrame(curves).to_csv(tmp_path / "c.csv", index=False)
    monkeypatch.setitem(tables.PAIRS, "c", {"a - b": ("a", "b")})
    # Differences -0.1, -0.1, -0.4: mean -0.2, standard deviation 0.1732, t = -2, half of 4.3027 * 0.2.
    (row,) = tables.paired_rows(tmp_path / "c.csv")
    assert row == (
        "| a - b | -0.2000 [-0.6303, +0.2303] | p = 0.18 | 10 | -2.00 [-6.30, +2.30] | p = 0.18 | 10 |"
    )


def test_paired_tables_come_from_published_curves(paired):
    """The page has every row that tables.py makes, and no other with a p value."""
    lines = (ROOT / "analysis" / "RESULTS.md").read_text().splitlines()
    stated = [line for line in lines if re.search(r"\] \| p = ", line)]
    assert len(paired) > 20
    assert stated == paired


@pytest.mark.parametrize("page", ["README.md", "analysis/RESULTS.md"])
def test_p_values_come_from_published_curves(paired, page):
    """Each p of a page is of one of its comparisons, and differences beside it are too."""
    made = {p for row in paired for p in P_VALUE.findall(row)}
    differences = {
        (number, p)
        for row in paired
        for number, p in re.findall(r"[+-](\d+\.\d+) \[[^]]*\] \| p = ([\d.]+\d(?:e-\d+)?)", row)
    }
    text = (ROOT / page).read_text().replace("\n", " ")
    assert set(P_VALUE.findall(text)) <= made
    pairs = {(number, p) for number, p in WITH_P.findall(text)}
    spreads = {figure.split(" ± ")[1] for figure in FIGURE.findall(text)}
    unknown = {pair for pair in pairs if pair not in differences and pair[0] not in spreads}
    assert not unknown
    assert page == "README.md" or len(pairs) > 20


def test_all_differences_judged_together(paired):
    """How many differences of loss the page has, and how many of them remain by Holm's rule."""
    found = sorted(float(P_VALUE.search(row)[1]) for row in paired)  # the first of a row is that of loss
    steps = [0.05 / (len(found) - number) for number in range(len(found))]
    remain = next((i for i, (p, step) in enumerate(zip(found, steps, strict=True)) if p > step), len(found))
    text = (ROOT / "analysis" / "RESULTS.md").read_text().replace("\n", " ")
    assert f"- {len(found)} differences of loss stand here" in text
    assert re.search(r"judged together \(Holm\) +(\d+) remain", text)[1] == str(remain)


def test_verdicts_follow_the_p_values(tables):
    """The claim that three seeds do not decide is not said to agree, on either page."""
    amplified = tables.paired_rows(RESULTS / "methods.csv")[0]
    assert float(P_VALUE.search(amplified)[1]) > 0.05
    for page in ("README.md", "analysis/RESULTS.md"):
        (row,) = [
            line for line in (ROOT / page).read_text().splitlines()
            if line.startswith("| Amplified FedAvg beats waiting")
        ]  # fmt: skip
        assert "not decided" in row.split("|")[-2]
        assert "agrees" not in row.split("|")[-2]


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
