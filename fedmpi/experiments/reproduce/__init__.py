"""Published experiments as recipes: which sweeps, what figure, and what the figure should show.

The sweeps and their base configs are next to this file. Invariant: a quick version differs from the full
one only in its base (fewer images and rounds) and in using only the first seed; that of `cifar` has
images of FashionMNIST, which come with fedmpi.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedmpi.config import Config
from fedmpi.results.settled import LAST

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """One experiment."""

    claim: str  # the paper's sentence, in our words
    sweeps: tuple[str, ...]  # files here, without .toml
    preset: str  # of `fedmpi plot`; empty for trajectories of x_t
    metric: str = "train_loss"
    last: int = LAST  # evaluations that the table averages, at least: what oscillates must not win by luck
    whole_cycles: bool = True  # and as many more as make whole cycles of the availability
    only_best: bool = False  # the figure shows each method at its best setting
    quick_base: str = ""  # file here, without .toml; empty where the whole experiment takes seconds

    def last_of(self, config: Config) -> int:
        """`last`, but of a shorter run no more than a fifth: what a run began with is not its end."""
        evaluations = config.run.num_rounds // (config.run.eval_every or config.run.num_rounds)
        return min(self.last, max(LAST, evaluations // 5))


RECIPES = {
    "periodic": Recipe(
        "under periodic participation Amplified SCAFFOLD reaches the lowest loss (Crawshaw & Liu 2024)",
        ("periodic",), "methods", last=44, quick_base="periodic-quick",  # 44 x 9: the last 400 rounds
    ),
    "periodic-grid": Recipe(
        "the rates that `periodic` takes for MIFA, FedAU, FedVARP and FOCUS lie inside their grid",
        ("periodic-grid",), "rates", quick_base="periodic-quick",
    ),
    "methods": Recipe(
        "with amplification FedAvg beats waiting for all clients and FedAvg without amplification",
        ("methods",), "methods", quick_base="paper-quick",
    ),
    "central": Recipe(
        "with amplification FedAvg beats waiting, which beats FedAvg without: ten seeds that chose nothing",
        ("central",), "methods", quick_base="paper-quick",
    ),
    "central-pilot": Recipe(
        "rates for the paper's own cycle, whole, found with a seed that takes no part in the test",
        ("central-pilot",), "methods", last=15, quick_base="cycle-quick",
    ),
    "central-cycle": Recipe(
        "the same three methods in the paper's own cycle, whole: seven seeds that chose nothing",
        ("central-cycle",), "methods", last=15, quick_base="cycle-quick",
    ),
    "central-cnn": Recipe(
        "the paper's CNN in the paper's own cycle at the paper's own rates: a curve of one seed",
        ("central-cnn",), "methods", quick_base="cycle-quick",
    ),
    "rates": Recipe(
        "large rates do not converge under periodic participation; at small ones amplification helps",
        ("rates",), "rates", quick_base="paper-quick",
    ),
    "waiting": Recipe(
        "the rates that `methods` takes for the waiting methods lie inside their grid",
        ("waiting",), "rates", quick_base="paper-quick",
    ),
    "cifar": Recipe(
        "the same order of methods on CIFAR-10, each at its best rate",
        ("cifar-rates", "cifar-waiting"), "methods", only_best=True, quick_base="paper-quick",
    ),
    "cifar-methods": Recipe(
        "the same order of methods on CIFAR-10: five seeds that chose nothing",
        ("cifar-methods",), "methods", quick_base="paper-quick",
    ),
    "cifar-intervals": Recipe(
        "on CIFAR-10 P = 100 and P = 300 are slightly better than P = 500, the whole cycle",
        ("cifar-intervals",), "intervals", quick_base="cycle-quick",
    ),
    "fedau-table": Recipe(
        "with participation that nobody knows FedAU is ahead of plain averages (Wang & Ji 2024)",
        ("fedau-table",), "methods", metric="test_accuracy", quick_base="fedau-quick",
    ),
    "cycle": Recipe(
        "the same order of methods in the paper's own cycle of 500 rounds, for 40 cycles",
        ("cycle-amplified", "cycle-plain", "cycle-waiting"), "methods", only_best=True,
        quick_base="cycle-quick",
    ),
    "logistic": Recipe(
        "the same order of methods in the paper's own cycle of 500 rounds, with logistic regression",
        ("logistic-rates", "logistic-waiting"), "methods", only_best=True, quick_base="logistic-quick",
    ),
    "intervals": Recipe(
        "P = 1 is not best; a fifth of the cycle to a whole one are alike, longer intervals are worse",
        ("intervals",), "intervals", quick_base="paper-quick",
    ),
    "amplification": Recipe(
        "amplification by 5 to 15 does about as well; by 2 is too little, by 20 fluctuates",
        ("amplification",), "amplification", quick_base="paper-quick",
    ),
    "regularized": Recipe(
        "with everybody available, permutation is marginally better than independent draws",
        ("regularized",), "regularized", quick_base="regularized-quick",
    ),
    "appendix": Recipe(
        "amplified small steps reach the optimum that large steps circle around",
        ("appendix",), "", last=1, whole_cycles=False,
    ),
}  # fmt: skip
