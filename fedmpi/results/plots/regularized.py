"""Independent against regularized participation: curves, and how even the weights are over P."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmpi import theory
from fedmpi.config.compositions import names_text
from fedmpi.results.groups import Group, value_text
from fedmpi.results.plots.curves import draw_curves
from fedmpi.results.plots.style import tidy
from fedmpi.storage.reader import Run

_ROUNDS = 5000  # of a run; evenness needs no more
_STYLES = ("o-", "s--", "D:", "^-.")  # colours are used for the groups
_INK = {"color": "black", "markersize": 4, "linewidth": 1.2}
_KEYS = ("participation.availability", "participation.selection")  # named by the kind instead


@dataclass(frozen=True)
class Evenness:
    """What the weights of a run show."""

    kind: str  # such as "permutation: regularized, P = 10"
    periods: np.ndarray
    factors: np.ndarray  # delta^2(P) / d^2, mean over intervals of P rounds


def evenness(run: Run) -> Evenness:
    """How far the participation of a run is from even, over intervals of growing length."""
    table, rounds = run.participation, min(len(run.train), _ROUNDS)
    table = table[table["round"] < rounds]
    columns = (table[name].to_numpy() for name in ("round", "client", "weight"))
    q = theory.Weights(*columns, rounds, len(run.clients))
    even = theory.regularized_interval(q)
    periods = np.array(theory.interval_grid(rounds, even) if rounds else [], int)
    factors = np.array([theory.delta2_factors(q, period).mean() for period in periods.tolist()])
    return Evenness(_kind(run, even), periods, factors)


def _kind(run: Run, even: int | None) -> str:
    who = run.config["participation"]
    words = [names_text(who["availability"])] if who["availability"] != "always" else []
    words += [who["selection"]] if who["selection"] != "all" or not words else []
    text = ", ".join(words)
    if even:
        return f"{text}: regularized, P = {even}"
    is_independent = who["availability"] in ("always", "bernoulli") and who["selection"] in (
        "all",
        "uniform",
    )
    return f"{text}: independent" if is_independent else text


def draw_regularized(groups: Sequence[Group]) -> object:
    """Curves named by the kind of participation, and delta^2(P) / d^2 over P of each kind."""
    measured = [evenness(group.runs[0]) for group in groups]
    figure = draw_curves(groups, _labels(groups, measured), extra=1)
    kinds = {item.kind: item for item in measured}
    axis = figure.axes[-1]
    floor = min((factor for item in measured for factor in item.factors if factor > 0), default=1.0) / 5
    for number, (kind, item) in enumerate(kinds.items()):
        is_even = item.factors == 0
        style = _STYLES[number % len(_STYLES)]
        axis.plot(item.periods[~is_even], item.factors[~is_even], style, label=kind, **_INK)
        if is_even.any():
            floors = np.full(is_even.sum(), floor)
            axis.plot(item.periods[is_even], floors, "v", label="exactly 0", clip_on=False, **_INK)
    axis.set(xscale="log", yscale="log", xlabel="P, rounds of an interval")
    axis.set_title("Unevenness: delta²(P) / d²", fontsize=11)
    axis.legend(frameon=False, fontsize=9, loc="upper right")
    tidy(axis)
    return figure


def _labels(groups: Sequence[Group], measured: Sequence[Evenness]) -> list[str]:
    """The kind, and what else differs between the groups."""
    others = [key for key in groups[0].values if key not in _KEYS]
    texts = [
        ", ".join([e.kind, *(f"{key.split('.', 1)[1]} {value_text(group.values[key])}" for key in others)])
        for group, e in zip(groups, measured, strict=True)
    ]
    return texts if len(set(texts)) == len(groups) else [group.label for group in groups]
