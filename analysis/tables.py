"""The tables of RESULTS.md, from the curves in results/: `python analysis/tables.py [NAME]...`.

A run's figure is the mean of its last evaluations, at least as many as its recipe says and over whole
cycles of the availability; a row is the mean over seeds and their standard deviation. Settings are compared
seed by seed: `python analysis/tables.py paired`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas

from fedmpi.experiments.reproduce import RECIPES, path_of
from fedmpi.experiments.sweep.points import load_sweep
from fedmpi.participation.cycle import cycle_of
from fedmpi.results.groups import without_seed
from fedmpi.results.paired import difference
from fedmpi.results.settled import LAST, settled

RESULTS = Path(__file__).parent / "results"
COLUMNS = {"train_loss": 1, "train_accuracy": 100, "test_accuracy": 100}  # and what they are multiplied by

# What the page compares, A - B, by file. Runs of a seed share data, participation and warm-up.
_WAIT, _PLAIN = "wait-minibatch_local_lr-0.03", "no-amplification_local_lr-3e-05"
PAIRS = {
    "periodic": {
        f"{a} - {b}".replace("Amplified-", "Amplified "): (a, b)
        for a, b in (
            ("Amplified-SCAFFOLD", "SCAFFOLD"),
            ("Amplified-FedAvg", "FedAvg"),
            ("SCAFFOLD", "FedAvg"),
            ("FedVARP", "SCAFFOLD"),
            ("MIFA", "FedAvg"),
            ("FedAU", "FedAvg"),
            ("FOCUS", "FedAvg"),
            ("FedProx", "FedAvg"),
        )
    },
    "methods": {
        "amplified - wait-minibatch": ("amplified", "wait-minibatch"),
        "amplified - no amplification": ("amplified", "no-amplification"),
        "wait-minibatch - no amplification": ("wait-minibatch", "no-amplification"),
        "wait-full - wait-minibatch": ("wait-full", "wait-minibatch"),
    },
    "rates": {
        "at 3e-5: eta 10 - eta 1": ("amplified_local_lr-3e-05", "no-amplification_local_lr-3e-05"),
        "at 1e-4: eta 10 - eta 1": ("amplified_local_lr-0.0001", "no-amplification_local_lr-0.0001"),
        "eta 1: 1e-3 - 3e-4": ("no-amplification_local_lr-0.001", "no-amplification_local_lr-0.0003"),
        "eta 1: 1e-3 - 1e-4": ("no-amplification_local_lr-0.001", "no-amplification_local_lr-0.0001"),
    },
    "intervals": {f"P {p} - P 50": (f"amplify_every-{p}", "amplify_every-50") for p in (1, 10, 30, 70, 90)},
    "amplification": {
        f"eta {eta} - eta 10": (f"amplification-{eta}", "amplification-10") for eta in (2, 5, 15, 20)
    },
    "unknown-cycle": {
        f"observed - {other.replace('-', ' ')}": ("observed", other)
        for other in ("cycle", "turn", "three-cycles", "no-amplification")
    },
    "regularized": {"permutation - uniform": ("permutation", "uniform")},
    "logistic": {
        "amplified - wait-minibatch": ("amplified_local_lr-3e-06", _WAIT),
        "amplified - no amplification": ("amplified_local_lr-3e-06", _PLAIN),
        "wait-minibatch - no amplification": (_WAIT, _PLAIN),
    },
}


def reached(path: Path) -> pandas.DataFrame:
    """What each run of a table of curves came to in the end, one row a run."""
    curves = pandas.read_csv(path)
    curves["name"] = curves["name"].map(without_seed)
    recipe = RECIPES.get(path.stem)
    last, cycle = (recipe.last, _cycle(path.stem)) if recipe else (LAST, 1)
    ends = []
    for (name, seed), run in curves.groupby(["name", "seed"], sort=False):
        reached = {c: settled(run["round"].to_numpy(), run[c].to_numpy(), cycle, last) for c in COLUMNS}
        ends.append({"name": name, "seed": seed, **reached})
    return pandas.DataFrame(ends)


def _cycle(name: str) -> int:
    """Rounds of the availability's cycle, the same in all runs of a recipe."""
    points = load_sweep(path_of(name))
    return cycle_of(points[0].config.participation) if RECIPES[name].whole_cycles else 1


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


def paired_rows(path: Path) -> list[str]:
    """Markdown: A - B; mean with 95 % interval, p, seeds needed: of training loss, of test accuracy."""
    runs, lines = reached(path), []
    for label, (a, b) in PAIRS[path.stem].items():
        cells = [label]
        for metric, digits in (("train_loss", 4), ("test_accuracy", 2)):
            values = COLUMNS[metric] * runs.pivot(index="seed", columns="name", values=metric)
            found = difference(list(values.index), values[a], values[b])
            low, high = found.interval
            cells.append(f"{found.mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]")
            needed = "> 10,000" if found.seeds_needed is None else f"{found.seeds_needed:,}"
            cells += [f"p = {found.p:.2g}", needed]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _text(values: pandas.Series, digits: int) -> str:
    spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def main(names: list[str]) -> None:
    """Print the tables."""
    if names == ["paired"]:
        for name in PAIRS:
            print(f"\n{name}\n", *paired_rows(RESULTS / f"{name}.csv"), sep="\n")
        return
    for path in sorted(RESULTS.glob("*.csv")):
        if not names or path.stem in names:
            print(f"\n{path.stem}\n", *rows(path), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
