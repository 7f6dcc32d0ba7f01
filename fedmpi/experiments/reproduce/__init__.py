"""Published experiments as recipes: one sweep each, what figure, and what the figure should show.

The sweeps are next to this file, each over one base config, or over another sweep from which it differs in
a few settings. Invariant: a quick version differs from the full one only in the [quick] settings of its
sweep (fewer images and rounds) and in using only the first seed; that of CIFAR-10 has images of
FashionMNIST, which come with fedmpi.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedmpi.config import Config
from fedmpi.results.settled import LAST

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """One experiment; its sweep is the file of its name."""

    claim: str  # the paper's sentence, in our words
    preset: str  # of `fedmpi plot`; empty for trajectories of x_t
    metric: str = "train_loss"
    last: int = LAST  # evaluations that the table averages, at least: what oscillates must not win by luck
    whole_cycles: bool = True  # and as many more as make whole cycles of the availability
    only_best: bool = False  # the figure shows each method at its best setting
    shown: tuple[str, ...] = ("*",)  # cases in the figure
    has_quick: bool = True  # False where the whole experiment takes seconds

    def last_of(self, config: Config) -> int:
        """`last`, but of a shorter run no more than a fifth: what a run began with is not its end."""
        evaluations = config.run.num_rounds // (config.run.eval_every or config.run.num_rounds)
        return min(self.last, max(LAST, evaluations // 5))


def path_of(name: str) -> Path:
    """The sweep of a recipe."""
    return HERE / f"{name}.toml"


def shipped(source: str | Path, otherwise: str | Path | None = None) -> str | Path:
    """A file as it is; the sweep of a recipe where there is no file but a recipe of that name."""
    if str(source) in RECIPES and not Path(source).exists():
        return path_of(str(source))
    return source if otherwise is None else otherwise


_FOUR = ("amplified", "no-amplification", "wait-minibatch", "wait-full")

RECIPES = {
    "periodic": Recipe(
        "under periodic participation Amplified SCAFFOLD reaches the lowest loss (Crawshaw & Liu 2024)",
        "methods", last=44,  # 44 x 9: the last 400 rounds
    ),
    "periodic-grid": Recipe(
        "the rates that `periodic` takes for MIFA, FedAU, FedVARP and FOCUS lie inside their grid",
        "rates",
    ),
    "periodic-cifar": Recipe(
        "the same protocol on CIFAR-10, whole: five tuned methods, and four at a first rate",
        "methods",
    ),
    "unknown-participation": Recipe(
        "FedAU adapts to participation that nobody knows (Wang & Ji 2024), whole",
        "methods",
    ),
    "paper-fashion": Recipe(
        "all curves of Wang & Ji (2022) on FashionMNIST, whole: thousands of core hours, for a cluster",
        "methods", shown=_FOUR,
    ),
    "paper-cifar": Recipe(
        "all curves of Wang & Ji (2022) on CIFAR-10, whole: thousands of core hours, for a cluster",
        "methods", shown=_FOUR,
    ),
    "always-fashion": Recipe(
        "with everybody available, permutation is marginally better than independent draws, whole",
        "regularized",
    ),
    "always-cifar": Recipe(
        "the same on CIFAR-10, whole", "regularized",
    ),
    "initial-fashion": Recipe(
        "of eight initial rates 0.1 has the lowest loss after 2,000 rounds with everybody available",
        "rates",
    ),
    "initial-cifar": Recipe(
        "of eight initial rates 0.05 has the lowest loss on CIFAR-10 after 4,000 rounds",
        "rates",
    ),
    "methods": Recipe(
        "with amplification FedAvg beats waiting for all clients and FedAvg without amplification",
        "methods",
    ),
    "central": Recipe(
        "with amplification FedAvg beats waiting, which beats FedAvg without: ten seeds that chose nothing",
        "methods",
    ),
    "central-pilot": Recipe(
        "rates for the paper's own cycle, whole, found with a seed that takes no part in the test",
        "methods", last=15,
    ),
    "central-cycle": Recipe(
        "the same three methods in the paper's own cycle, whole: seven seeds that chose nothing",
        "methods", last=15,
    ),
    "central-cnn": Recipe(
        "the paper's CNN in the paper's own cycle at the paper's own rates: a curve of one seed",
        "methods",
    ),
    "rates": Recipe(
        "large rates do not converge under periodic participation; at small ones amplification helps",
        "rates",
    ),
    "waiting": Recipe(
        "the rates that `methods` takes for the waiting methods lie inside their grid",
        "rates",
    ),
    "cifar": Recipe(
        "the same order of methods on CIFAR-10, each at its best rate",
        "methods", only_best=True,
    ),
    "cifar-methods": Recipe(
        "the same order of methods on CIFAR-10: five seeds that chose nothing",
        "methods",
    ),
    "cifar-intervals": Recipe(
        "on CIFAR-10 P = 100 and P = 300 are slightly better than P = 500, the whole cycle",
        "intervals",
    ),
    "fedau-table": Recipe(
        "with participation that nobody knows FedAU is ahead of plain averages (Wang & Ji 2024)",
        "methods", metric="test_accuracy",
    ),
    "cycle": Recipe(
        "the same order of methods in the paper's own cycle of 500 rounds, for 40 cycles",
        "methods", only_best=True,
    ),
    "logistic": Recipe(
        "the same order of methods in the paper's own cycle of 500 rounds, with logistic regression",
        "methods", only_best=True,
    ),
    "intervals": Recipe(
        "P = 1 is not best; a fifth of the cycle to a whole one are alike, longer intervals are worse",
        "intervals",
    ),
    "amplification": Recipe(
        "amplification by 5 to 15 does about as well; by 2 is too little, by 20 fluctuates",
        "amplification",
    ),
    "regularized": Recipe(
        "with everybody available, permutation is marginally better than independent draws", "regularized",
    ),
    "unknown-cycle": Recipe(
        "where nobody knows the cycle, P from how long clients take to come back does as well as the cycle",
        "methods",
    ),
    "appendix": Recipe(
        "amplified small steps reach the optimum that large steps circle around",
        "", last=1, whole_cycles=False, has_quick=False,
    ),
    "theory": Recipe(
        "the bound of Theorem 3.1 holds where all its constants are known",
        "methods", last=1, whole_cycles=False, has_quick=False,
    ),
}  # fmt: skip
