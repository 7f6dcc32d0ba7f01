"""The cycle of an availability that repeats, and which of its phases evaluations see.

Invariant: a figure of one phase is no figure of the run: the loss may swing within a cycle by more than it
differs between methods.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from fedmpi.config.compositions import availability_facts
from fedmpi.config.keys import Config, ParticipationConfig

_GOLDEN = (3 - math.sqrt(5)) / 2  # of a circle: steps of this length cover it most evenly


def declared_cycle(who: ParticipationConfig | SimpleNamespace) -> int | None:
    """Rounds after which the availability repeats; None if it does not. Of several, when all of them do."""
    found = [cycle(one) for one, cycle in availability_facts(who, "cycle") if cycle]
    return math.lcm(*filter(None, found)) if any(found) else None


def cycle_of(who: ParticipationConfig | SimpleNamespace) -> int:
    """The same; 1 if it does not."""
    return declared_cycle(who) or 1


def stored_cycle(config: dict[str, Any]) -> int:
    """As `cycle_of`, of the config that a result file holds."""
    return cycle_of(SimpleNamespace(**config["participation"]))


def phases_seen(eval_every: int, cycle: int) -> int:
    """How many rounds of the cycle come up when every `eval_every`-th round is evaluated.

    >>> phases_seen(20, 20), phases_seen(160, 50), phases_seen(9, 20)
    (1, 5, 20)
    """
    return cycle // math.gcd(eval_every, cycle)


def sees_all(eval_every: int, cycle: int) -> int:
    """A value near `eval_every` that sees all phases, and soon sees them evenly.

    >>> sees_all(20, 20), sees_all(50, 50), sees_all(50, 500), sees_all(9, 20)
    (27, 69, 49, 9)
    """
    near = range(-(-3 * eval_every // 4), max(3 * eval_every // 2, eval_every + 1) + 1)
    good = [every for every in near if every and math.gcd(every, cycle) == 1] or [1]
    if 2 * eval_every < cycle:  # goes through the cycle in its order anyway
        return min(good, key=lambda every: abs(every - eval_every))
    return min(good, key=lambda every: abs(min(every % cycle, -every % cycle) / cycle - _GOLDEN))


def phase_notes(config: Config) -> list[str]:
    """A sentence where evaluations come back to the same phases of the cycle."""
    cycle, run = cycle_of(config.participation), config.run
    notes = []
    for key in ("eval_every", "eval_train_every"):
        every = getattr(run, key)
        # Short runs do not come round.
        if not every or phases_seen(every, cycle) == cycle or run.num_rounds <= max(every, cycle):
            continue
        seen = phases_seen(every, cycle)
        notes.append(
            f"run.{key} = {every}: evaluations see {seen:,} of the {cycle:,} rounds of the cycle, the same "
            f"in every cycle, and the loss may swing within it; {sees_all(every, cycle)} sees all of them"
        )
    return notes
