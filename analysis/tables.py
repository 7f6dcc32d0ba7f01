"""The tables of RESULTS.md, from the curves in results/: `python analysis/tables.py [NAME]...`.

A run's figure is the mean of its last evaluations, as many as its recipe says; a row is the mean over
seeds and their standard deviation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas

from fedmpi.experiments.reproduce import RECIPES
from fedmpi.results.groups import without_seed

RESULTS = Path(__file__).parent / "results"
COLUMNS = {"train_loss": 1, "train_accuracy": 100, "test_accuracy": 100}  # and what they are multiplied by


def reached(path: Path) -> pandas.DataFrame:
    """What each run of a table of curves came to in the end, one row a run."""
    curves = pandas.read_csv(path)
    curves["name"] = curves["name"].map(without_seed)
    recipe = RECIPES.get(path.stem)
    ends = curves.groupby(["name", "seed"], sort=False).tail(recipe.last if recipe else 5)
    return ends.groupby(["name", "seed"], sort=False)[list(COLUMNS)].mean().reset_index()


def rows(path: Path) -> list[str]:
    """Markdown: setting, seeds, then mean and standard deviation of each column; lowest loss first."""
    by_name = reached(path).groupby("name", sort=False)
    lines = []
    for name, part in sorted(by_name, key=lambda item: item[1].train_loss.mean()):
        cells = [name, str(len(part))]
        for column, scale in COLUMNS.items():
            if part[column].notna().all():
                cells.append(_text(scale * part[column], digits=4 if scale == 1 else 2))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _text(values: pandas.Series, digits: int) -> str:
    spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def main(names: list[str]) -> None:
    """Print the tables."""
    for path in sorted(RESULTS.glob("*.csv")):
        if not names or path.stem in names:
            print(f"\n{path.stem}\n", *rows(path), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
