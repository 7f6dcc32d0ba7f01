"""What a run has cost, in a line, and from its measured times one change that would save most.

Invariant: a hint is arithmetic on what was measured in the run; nothing worth saying gives an empty text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedmpi.participation.cycle import phases_seen, sees_all, stored_cycle
from fedmpi.results.report.collect import phases
from fedmpi.results.text import bytes_text, duration, joules_text
from fedmpi.storage.clocks import totals
from fedmpi.storage.columns import EVALUATION, IDLE, IN_ALL, THEORY
from fedmpi.storage.reader import Run

_WORTH_SHARE, _WORTH_SECONDS = 0.1, 10.0  # less is not worth a word
_AIM = 0.1  # of the time for evaluations: less would gain little
_FEWEST_POINTS = 30  # of a curve that still shows something


def cost_line(run: Run) -> str:
    """Local steps, bytes and joules; seconds are told elsewhere."""
    shown = totals(run)
    texts = [f"{shown['local_steps']:,.0f} local steps"]
    if "bytes_sent" in shown:
        texts.append(f"{bytes_text(shown['bytes_sent'])} between clients and server")
    if "energy_j" in shown:
        texts.append(f"{joules_text(shown['energy_j'])} by the nodes")
    return ", ".join(texts)


def hint(run: Run) -> str:
    """The change that would have saved most of the last leg's time, if that is worth saying."""
    ranks = phases(run)
    if not ranks:
        return ""
    seconds = {name: float(np.mean([rank.get(name, 0.0) for rank in ranks])) for name in ranks[0]}
    total = seconds[IN_ALL]
    found = [*_cadences(run, seconds, total), *_fewer_ranks(run, seconds, len(ranks))]
    saved, text = max(found, default=(0.0, ""))
    return text if saved >= max(_WORTH_SHARE * total, _WORTH_SECONDS) else ""


def _cadences(run: Run, seconds: dict[str, float], total: float) -> Iterator[tuple[float, str]]:
    """Looking less often; evaluations still see the whole cycle."""
    settings, cycle = run.config["run"], stored_cycle(run.config)
    for phase, keys in (
        (EVALUATION, ("eval_every", "eval_train_every")),
        (THEORY, ("record_theory_every",)),
    ):
        spent = seconds.get(phase, 0.0)
        known = {key: settings[key] for key in keys if settings.get(key)}
        if not known or spent <= 0:
            continue
        # Until it takes a tenth of the rest, or the curve would have too few points.
        most = settings["num_rounds"] / _FEWEST_POINTS / max(known.values())
        factor = math.floor(min(math.ceil(spent / (total - spent) / _AIM), most))
        if factor < 2:
            continue
        new = {key: _seeing_all(every * factor, cycle) for key, every in known.items()}
        saved = spent * (1 - max(every / new[key] for key, every in known.items()))
        change = " and ".join(f"run.{key} = {value}" for key, value in new.items())
        yield (
            saved,
            f"{phase} took {spent / total:.0%} of the time: {change} would save about {duration(saved)}",
        )


def _seeing_all(every: int, cycle: int) -> int:
    return every if phases_seen(every, cycle) == cycle else sees_all(every, cycle)


def _fewer_ranks(run: Run, seconds: dict[str, float], num_ranks: int) -> Iterator[tuple[float, str]]:
    """As fast with fewer ranks, where the participants of a round do not fill those that there are."""
    counts = run.train.participants.to_numpy()
    counts = counts[counts > 0]
    if num_ranks < 2 or not len(counts) or counts.min() != counts.max():
        return
    each = math.ceil(counts[0] / num_ranks)  # clients of the busiest rank
    enough = math.ceil(counts[0] / each)
    unused = 1 - counts[0] / (num_ranks * each)
    waited = seconds.get(IDLE, 0.0)
    # Only where the ranks did wait as the arithmetic says.
    if enough < num_ranks and waited >= 0.7 * unused * seconds[IN_ALL]:
        yield (
            waited,
            f"ranks waited {waited / seconds[IN_ALL]:.0%} of the time: with {counts[0]} participants in a "
            f"round {enough} rank{'s' * (enough > 1)} would be about as fast as {num_ranks}",
        )
