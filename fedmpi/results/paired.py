"""Two settings compared seed by seed: the difference of their end values, an interval, a paired t test.

Invariant: runs are paired by seed and by nothing else, both sides averaged over the same rounds; needs
neither torch nor MPI.
"""

from __future__ import annotations

import glob
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmpi.errors import UserError
from fedmpi.errors.wording import in_python
from fedmpi.results.ends import (
    RunEnd,
    checked_window,
    end_value,
    notes_on_phases,
    read_end,
    same_rounds,
    window_of,
)
from fedmpi.results.groups import differing_keys_of, value_text, without_seed
from fedmpi.results.student import MOST_PAIRS, pairs_needed, quantile, two_sided_p
from fedmpi.storage.runs import find_runs, flat_config

LEVEL, POWER = 0.05, 0.9
Side = str | os.PathLike | Sequence[str | os.PathLike]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Paired values and what follows from their differences; sides are A and B."""

    seeds: list[int]
    a: list[float]
    b: list[float]
    mean: float  # of A - B
    deviation: float
    interval: tuple[float, float]  # 95 %
    t: float
    freedom: int
    p: float  # two-sided
    seeds_needed: int | None  # for 90 % power if the difference is as seen; None: more than 10,000

    @property
    def is_decided(self) -> bool:
        """At 5 %."""
        return self.p < LEVEL


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `fedmpi compare` prints; `str` of it is that text."""

    metric: str
    higher_is_better: bool
    names: tuple[str, str]
    difference: Difference
    rounds: int
    window: int  # rounds at the end that are averaged
    cycle: int  # of participation and amplification; 1 where nothing repeats
    evaluations: tuple[int, int]  # of each run of A, of B
    differ: list[str]  # config keys with the values of A and B
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        flat = asdict(self) | {"decided": self.difference.is_decided, "better": self.better}
        flat |= flat.pop("difference")
        return flat | {"t": flat["t"] if math.isfinite(flat["t"]) else None}  # JSON has no infinity

    @property
    def better(self) -> str | None:
        """ "A" or "B" where that is decided at 5 %, else None."""
        if not self.difference.is_decided:
            return None
        a_is_higher = self.difference.mean > 0
        return "A" if a_is_higher == self.higher_is_better else "B"

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def compare(a: Side, b: Side, metric: str = "train_loss", window: int | None = None) -> Comparison:
    """Two settings, each as files, folders or patterns of result files; paired by the seeds both have.

    A run's value is the mean of the metric over its end: `window` rounds, by default a twentieth of the run
    and as many more as make whole cycles of participation and amplification. Printed, the answer reads as
    `fedmpi compare`; its `difference` has the mean, the interval, p and the seeds needed for 90 % power.
    """
    with in_python():
        return compare_sides(a, b, metric, window)


def compare_sides(a: Side, b: Side, metric: str, window: int | None) -> Comparison:
    """The same for the command line."""
    sides = [_side(name, paths, metric) for name, paths in (("A", a), ("B", b))]
    seeds = sorted(set(sides[0]) & set(sides[1]))
    _refuse_few(seeds, sides)
    runs = [[side[seed] for seed in seeds] for side in sides]
    rounds = same_rounds([*runs[0], *runs[1]])
    firsts = [side[0] for side in runs]
    cycle, steps = math.lcm(*(run.cycle for run in firsts)), [run.cadence for run in firsts]
    chosen = window_of(rounds, cycle, steps) if window is None else checked_window(window, rounds)
    ends = [[end_value(run, chosen, cycle) for run in side] for side in runs]
    return Comparison(
        metric=metric,
        higher_is_better=firsts[0].higher_is_better,
        names=_names(firsts, (a, b)),
        difference=difference(seeds, *ends),
        rounds=rounds,
        window=chosen,
        cycle=cycle,
        evaluations=tuple(run.counted(chosen, cycle) for run in firsts),
        differ=_values_that_differ(firsts),
        notes=[*_left_out(sides, seeds), *notes_on_phases(chosen, cycle, steps)],
    )


def difference(seeds: Sequence[int], a: Sequence[float], b: Sequence[float]) -> Difference:
    """The paired t test of A - B."""
    each = [x - y for x, y in zip(a, b, strict=True)]
    count, mean, deviation = len(each), statistics.fmean(each), statistics.stdev(each)
    error = deviation / math.sqrt(count)
    if error:
        t, needed = mean / error, pairs_needed(mean / deviation)
    else:  # the same difference with each seed: certain, or none at all
        t, needed = (math.copysign(math.inf, mean), 2) if mean else (0.0, None)
    reach = quantile(count - 1, LEVEL) * error
    return Difference(
        seeds=list(seeds), a=list(a), b=list(b), mean=mean, deviation=deviation,
        interval=(mean - reach, mean + reach), t=t, freedom=count - 1, p=two_sided_p(t, count - 1),
        seeds_needed=needed,
    )  # fmt: skip


def _side(name: str, paths: Side, metric: str) -> dict[int, RunEnd]:
    """The runs of A or B by seed, all of one setting."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: list[str | os.PathLike] = []
    for path in given:
        matches = [] if Path(path).exists() else _matches(os.fspath(path))
        if not matches and glob.has_magic(os.fspath(path)):
            raise UserError(f"{name}: no file fits the pattern {os.fspath(path)}")
        found += matches or [path]
    runs: dict[int, RunEnd] = {}
    for run in [read_end(path, metric) for path in find_runs(found)]:
        if run.seed in runs:
            raise UserError(
                f"{name}: seed {run.seed} twice, in {runs[run.seed].path} and {run.path}"
                f"{_how_they_differ([runs[run.seed], run])}; each side is one setting with a run a seed: "
                "name its files by a pattern"
            )
        runs[run.seed] = run
    different = differing_keys_of([run.config for run in runs.values()])
    if set(different) - {"run.num_rounds"}:  # of which there is an error of its own
        raise UserError(
            f"{name}: runs of several settings{_how_they_differ(list(runs.values()))}; each side is one "
            "setting: name its files by a pattern"
        )
    return runs


def _matches(pattern: str) -> list[str]:
    """Result files and folders of them; `a*` fits a run's checkpoints too, which are left out."""
    return [
        name
        for name in sorted(glob.glob(pattern, recursive=True))
        if name.endswith(".h5") or any(Path(name).glob("*.h5"))
    ]


def _values_that_differ(runs: list[RunEnd]) -> list[str]:
    keys = differing_keys_of([run.config for run in runs])
    flat = [flat_config(run.config) for run in runs]
    return [f"{key} {' | '.join(dict.fromkeys(value_text(f.get(key)) for f in flat))}" for key in keys]


def _how_they_differ(runs: list[RunEnd]) -> str:
    texts = _values_that_differ(runs)[:3]
    return f" ({', '.join(texts)})" if texts else ""


def _refuse_few(seeds: list[int], sides: list[dict[int, RunEnd]]) -> None:
    a, b = (", ".join(map(str, sorted(side))) for side in sides)
    if not seeds:
        raise UserError(f"no common seeds: A has {a}, B has {b}; runs are compared seed by seed")
    if len(seeds) == 1:
        raise UserError(
            f"one common seed, {seeds[0]} (A has {a}, B has {b}): a difference without a spread says "
            "nothing; two seeds are the least, run more"
        )


def _names(runs: list[RunEnd], given: tuple[Side, Side]) -> tuple[str, str]:
    """Names without seeds; what was asked for where these are the same."""
    names = [without_seed(run.config["run"]["name"]) for run in runs]
    if names[0] == names[1]:
        asked = zip(given, runs, strict=True)
        names = [
            os.fspath(side if isinstance(side, str | os.PathLike) else run.path) for side, run in asked
        ]
    return names[0], names[1]


def _left_out(sides: list[dict[int, RunEnd]], seeds: list[int]) -> list[str]:
    return [
        f"only {name} has seed {', '.join(map(str, alone))}: left out"
        for name, side in zip("AB", sides, strict=True)
        if (alone := sorted(set(side) - set(seeds)))
    ]


def _lines(found: Comparison) -> list[str]:
    d, (a, b) = found.difference, found.names
    digits = 4 if not found.metric.endswith("accuracy") else 5
    is_whole = found.cycle > 1 and found.window % found.cycle == 0
    cycles = f", {found.window // found.cycle:,} x {found.cycle:,}, the cycle" if is_whole else ""
    counts = " and ".join(dict.fromkeys(f"{count:,}" for count in found.evaluations))
    low, high = d.interval
    lines = [
        f"{found.metric}, mean over the last {found.window:,} of {found.rounds:,} rounds{cycles} "
        f"({counts} evaluations)",
        f"A  {a}",
        f"B  {b}",
        *([f"differ in {', '.join(found.differ)}"] if found.differ else []),
        "",
        f"{'seed':>6}  {'A':>10}  {'B':>10}  {'A - B':>10}",
        *(
            f"{seed:>6}  {x:>10.{digits}f}  {y:>10.{digits}f}  {x - y:>+10.{digits}f}"
            for seed, x, y in zip(d.seeds, d.a, d.b, strict=True)
        ),
        f"{'mean':>6}  {statistics.fmean(d.a):>10.{digits}f}  {statistics.fmean(d.b):>10.{digits}f}  "
        f"{d.mean:>+10.{digits}f}",
        "",
        f"A - B          {d.mean:+.{digits}f}, standard deviation {d.deviation:.{digits}f}, "
        f"{len(d.seeds)} seeds",
        f"95 % interval  {low:+.{digits}f} to {high:+.{digits}f}",
        f"paired t test  t = {d.t:.3g}, {d.freedom} degree{'s' * (d.freedom > 1)} of freedom, "
        f"two-sided p = {d.p:.2g}",
        f"90 % power     {_power_text(d)}",
        f"verdict        {_verdict(found)}",
    ]
    return lines + [f"note: {note}" for note in found.notes]


def _power_text(d: Difference) -> str:
    if d.mean == 0:
        return "no difference to find"
    if d.seeds_needed is None:
        return f"more than {MOST_PAIRS:,} seeds, if the difference is as small as seen"
    return f"{d.seeds_needed:,} seeds, if difference and spread are as seen"


def _verdict(found: Comparison) -> str:
    if found.better is None:
        return f"not decided at {100 * LEVEL:g} %"
    worse = "B" if found.better == "A" else "A"
    side = "higher" if found.higher_is_better else "lower"
    return f"{found.better} is {side} than {worse}, decided at {100 * LEVEL:g} %"
