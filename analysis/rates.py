"""The rates of the paper's Table 1, seen: runs on quadratic problems, whose constants are all known.

python analysis/rates.py rates.png [--quick]

Each point is |grad f(x_t)|^2 in runs with the learning rates of Corollary 3.2 or 3.3, averaged over the
second half of the rounds; the bound is Theorem 3.1 with the same constants. A rate is a slope on two
logarithmic axes: -1/2 in S, I, T where participation is regularized, in N = 2 S where it is independent.
(There the bound falls less: d^2, the largest of N deviations, grows from 0.7 to 1.2 on the way.)
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
from matplotlib import pyplot

import fedmpi
from fedmpi import theory
from fedmpi.results.plots.style import COLOURS, tidy

DIMENSIONS = 100


@dataclass(frozen=True)
class Point:
    """One setting of a panel."""

    num_clients: int
    per_round: int  # S
    local_steps: int  # I
    rounds: int  # T
    selection: str
    gap: float  # F = f(x_0) - f*, in units of sigma^2
    seeds: int = 1


@dataclass(frozen=True)
class Panel:
    """How the error depends on one quantity."""

    title: str
    varied: str  # on the x axis
    values: list[int]
    points: list[Point]
    errors: list[float]
    bounds: list[float]

    def slope(self) -> float:
        """Of a straight line through the points, on logarithmic axes."""
        return float(np.polyfit(np.log(self.values), np.log(self.errors), 1)[0])


def panels(*, quick: bool = False) -> list[Panel]:
    """All panels; the quick version has half of the rounds or fewer, and fewer points."""
    few, rounds = (slice(None, None, 2) if quick else slice(None)), 1000 if quick else 2000
    sizes, steps = [1, 2, 4, 8, 16][few], [1, 2, 4, 8, 16][few]
    lengths = [250, 500, 1000] if quick else [500, 1000, 2000, 4000, 8000]
    even = {"num_clients": 16, "selection": "permutation", "gap": 1 / 16}
    clients = [4, 16] if quick else [4, 8, 16]
    # With P of Corollary 4.8 gamma eta I P is sqrt(F/2) N: small, so that steps are small too.
    by_chance = {"local_steps": 1, "selection": "uniform", "gap": 1e-3 if quick else 2e-4}
    long = {"rounds": 4000, "seeds": 2} if quick else {"rounds": 16_000, "seeds": 2}
    regularized = "regularized: Corollary 4.3"
    return [
        _panel(regularized, "S, clients in a round", sizes,
               [Point(per_round=s, local_steps=2, rounds=rounds, **even) for s in sizes]),
        _panel(regularized, "I, local steps", steps,
               [Point(per_round=4, local_steps=i, rounds=rounds, **even) for i in steps]),
        _panel(regularized, "T, rounds", lengths,
               [Point(per_round=4, local_steps=2, rounds=t, **even) for t in lengths]),
        _panel("independent: Corollary 4.8", "N, clients, half of them in a round", clients,
               [Point(num_clients=n, per_round=n // 2, **by_chance, **long) for n in clients]),
    ]  # fmt: skip


def _panel(title: str, varied: str, values: list[int], points: list[Point]) -> Panel:
    found = [measured(point) for point in points]
    return Panel(title, varied, values, points, *map(list, zip(*found, strict=True)))


def measured(point: Point) -> tuple[float, float]:
    """(error, bound on it) of one setting; sigma^2 = 1, and d^2 is near 1."""
    centers = np.random.default_rng(7).standard_normal((point.num_clients, DIMENSIONS)) / DIMENSIONS**0.5
    centers -= centers.mean(axis=0)
    constants, rates = _rates(point, centers)
    start = np.full(DIMENSIONS, math.sqrt(2 * point.gap / DIMENSIONS))  # |x_0|^2 / 2 = F
    config = {
        "run": {"num_rounds": point.rounds, "eval_every": 0, "record_params_every": rates.amplify_every},
        "data": {
            "dataset": "quadratic", "centers": centers.tolist(), "noise_std": DIMENSIONS**-0.5,
        },
        "model": {"name": "quadratic", "initial": start.tolist()},
        "participation": {"selection": point.selection, "clients_per_round": point.per_round},
        "algorithm": {
            "local_lr": rates.local_lr, "local_steps": rates.local_steps,
            "amplification": rates.amplification, "amplify_every": rates.amplify_every,
        },
    }  # fmt: skip
    errors = []
    for seed in range(1, point.seeds + 1):
        run = fedmpi.run(config, {"run.seed": seed}, progress=False)
        rounds, x = run.params
        errors.append((x[rounds >= point.rounds / 2] ** 2).sum(axis=1).mean())  # grad f(x) = x
    return float(np.mean(errors)), theory.bound_terms(rates, constants)["total"]


def _rates(point: Point, centers: np.ndarray) -> tuple[theory.Constants, theory.Rates]:
    """All constants, and gamma, eta and P of Corollary 3.2 with 4.3 or of 3.3 with 4.8."""
    clients, per_round = point.num_clients, point.per_round
    d2, delta2 = float((centers**2).sum(axis=1).max()), 0.0
    period, rates_of = clients // per_round, theory.rates_3_2
    if point.selection == "uniform":
        share = per_round / clients
        variance = theory.independent_variance(share, 1 / per_round)
        period = theory.stochastic_interval(variance, clients, point.local_steps, point.rounds)
        delta2, rates_of = theory.expected_delta2(variance, clients, period, d2), theory.rates_3_3
    constants = theory.Constants(1.0, 1.0, d2, d2, delta2, per_round**-0.5, point.gap)
    rates = rates_of(constants, period, point.local_steps, point.rounds)
    assert all(theory.conditions(rates, 1.0).values()), point
    return constants, rates


def draw(found: list[Panel], out: str) -> None:
    """One panel beside the other, with a triangle's worth of slope in the legend."""
    figure, axes = pyplot.subplots(1, len(found), figsize=(3.5 * len(found), 3.6), layout="constrained")
    for axis, panel in zip(axes, found, strict=True):
        x = np.array(panel.values, float)
        axis.loglog(x, panel.bounds, color=COLOURS[1], linestyle="--", label="bound of Theorem 3.1")
        label = f"measured, slope {panel.slope():.2f}"
        axis.loglog(x, panel.errors, "o", color=COLOURS[0], markersize=5, label=label)
        middle = math.exp(np.mean(np.log(panel.errors)) + np.mean(np.log(x)) / 2)
        axis.loglog(x, middle / np.sqrt(x), color="grey", linewidth=1, label="slope -1/2")
        axis.set_title(panel.title, fontsize=10, loc="left")
        axis.set_xlabel(panel.varied)
        axis.set_xticks(panel.values, [f"{value:,}" for value in panel.values])
        axis.minorticks_off()
        tidy(axis)
        axis.legend(frameon=False, fontsize=8)
        low, high = min(panel.errors), max(panel.bounds)
        axis.set_ylim(low / 2, high * 8)
    axes[0].set_ylabel("|grad f|², mean over the second half")
    figure.savefig(out, dpi=100)
    pyplot.close(figure)


def main(out: str, *, quick: bool) -> None:
    """Run, draw, and print the slopes."""
    found = panels(quick=quick)
    draw(found, out)
    print(f"{out}: slopes on logarithmic axes, -0.5 in theory")
    for panel in found:
        print(f"  {panel.slope():+.3f}  over {panel.varied} ({panel.title})")


if __name__ == "__main__":
    names = [word for word in sys.argv[1:] if word != "--quick"]
    main(names[0] if names else "rates.png", quick="--quick" in sys.argv)
