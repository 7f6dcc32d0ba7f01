"""Who stalls: a pure function of what is seen of all ranks.

A rank that works must make progress within its own limit. Ranks that wait may wait as long as one that
they wait for works. Only if all of them wait, for each other, something is wrong: with one that does not
run, with one that is elsewhere, or with MPI or the network. Invariant: nobody's clock is compared with
another's; seconds are those since the reader saw a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmpi.mpi.watch import pulse

_UNSEEN_FACTOR = 6  # the limit for ranks whose pulse cannot be read, as many times as long
_STILL_SECONDS = 15.0  # without a beat of its watchdog a process does not run


@dataclass(kw_only=True, slots=True)
class Sight:
    """What a rank sees of another one, or of itself."""

    rank: int
    host: str
    values: Sequence[int]  # its slot, see pulse.py
    silent: float = 0.0  # seconds without progress
    still: float = 0.0  # seconds without a beat of its watchdog
    is_far: bool = False  # on another node
    is_seen: bool = True  # its pulse can be read

    @property
    def is_watched(self) -> bool:
        """Whether it takes part."""
        return self.values[pulse.STATE] in (pulse.STARTING, pulse.GOES_ON) or not self.is_seen

    @property
    def waits(self) -> int:
        """For whom."""
        return self.values[pulse.WAITS] if self.is_seen else pulse.FOR_WORLD

    @property
    def allowed(self) -> float:
        """Seconds that it may be silent."""
        return self.values[pulse.ALLOWED_MS] / 1000 * (1 if self.is_seen else _UNSEEN_FACTOR)

    @property
    def share(self) -> float:
        """Of its limit that has passed in silence."""
        return self.silent / self.allowed if self.allowed else 0.0

    @property
    def runs(self) -> bool:
        """Whether its process shows signs of life."""
        return self.is_seen and self.still < min(_STILL_SECONDS, self.allowed / 3)


@dataclass(kw_only=True, slots=True)
class Verdict:
    """The ranks that keep the others waiting, and how far they are on the way to the limit."""

    share: float  # of the limit: 1 or more is a stall
    seconds: float  # of silence
    missing: list[Sight]
    waiting: list[Sight]
    is_mutual: bool = False  # all wait for each other: it is not known which rank is to blame


NOTHING = Verdict(share=0.0, seconds=0.0, missing=[], waiting=[])


def judge(sights: Sequence[Sight]) -> Verdict:
    """The worst that is seen."""
    present = [sight for sight in sights if sight.is_watched]
    waiting = [sight for sight in present if sight.waits]
    found = NOTHING

    # One that works, and is silent for too long.
    for sight in present:
        if not sight.waits and sight.share > found.share:
            found = Verdict(share=sight.share, seconds=sight.silent, missing=[sight], waiting=waiting)

    # All ranks of a group wait; or all ranks.
    groups = {sight.values[pulse.GROUP] for sight in waiting if sight.is_seen}
    circles = [[s for s in present if s.values[pulse.GROUP] == group or not s.is_seen] for group in groups]
    for scope, circle in [(pulse.FOR_GROUP, circle) for circle in circles] + [(pulse.FOR_WORLD, present)]:
        if not circle or not all(sight.waits for sight in circle):
            continue
        if scope == pulse.FOR_GROUP and all(sight.waits == pulse.FOR_WORLD for sight in circle):
            continue  # this group is done, and waits for the others
        least = min(circle, key=lambda sight: sight.share)
        if least.share > found.share:
            missing, is_mutual = _to_blame(circle)
            others = [sight for sight in circle if sight not in missing]
            found = Verdict(
                share=least.share, seconds=least.silent, missing=missing, waiting=others,
                is_mutual=is_mutual,
            )  # fmt: skip
    return found


def _to_blame(circle: Sequence[Sight]) -> tuple[list[Sight], bool]:
    """Of ranks that all wait: those that do not run, else those that have made fewer calls than others."""
    dead = [sight for sight in circle if not sight.runs]
    if dead:
        return dead, len(dead) == len(circle)
    is_world = all(sight.waits == pulse.FOR_WORLD for sight in circle)
    calls = [sight.values[pulse.IN_WORLD if is_world else pulse.IN_GROUP] for sight in circle]
    behind = [sight for sight, made in zip(circle, calls, strict=True) if made < max(calls)]
    return (behind, False) if behind else (list(circle), True)


def told(verdict: Verdict, size: int) -> str:
    """The ranks, where they are and what they do, as the subject and predicate of a sentence."""
    some = verdict.missing
    seconds = f"{verdict.seconds:.3g} s" if verdict.seconds < 100 else f"{verdict.seconds:.0f} s"
    if verdict.is_mutual and size > 1:
        ranks = f"ranks {_numbers(some)} of {size} ({_hosts(some)})"
        why = "MPI brings them nothing: the network or a process that MPI needs is gone"
        return f"{ranks} wait for each other since {seconds}, {_where(some[0])}; {why}"
    whose = f"rank{'s' * (len(some) > 1)} {_numbers(some)} of {size} ({_hosts(some)})"
    verb = "has" if len(some) == 1 else "have"
    states = "; ".join(dict.fromkeys(_state(sight) for sight in some))
    text = f"{whose} {verb} made no progress for {seconds}, {_where(some[0])}; {states}"
    if verdict.waiting:
        text += f"; waiting for it: rank{'s' * (len(verdict.waiting) > 1)} {_numbers(verdict.waiting)}"
    return text


def _where(sight: Sight) -> str:
    if not sight.is_seen:
        return "at a place that is not known"
    values = sight.values
    phase = pulse.PHASES[values[pulse.PHASE]]
    if values[pulse.STATE] == pulse.STARTING:
        return f"before the first round ({phase}: data, model, files)"
    waits = ", waiting for others" if values[pulse.WAITS] else ""
    return f"in round {values[pulse.ROUND]} ({phase}{waits})"


def _state(sight: Sight) -> str:
    """Whether the process runs, as far as this rank can tell."""
    if not sight.is_seen:
        return "its heartbeat cannot be read"
    if sight.runs:
        return "its process runs, but this does not end"
    if sight.is_far:
        return "its heartbeat has stopped too: the process, its host or the network between is gone"
    return _of_process(sight.values[pulse.PID])


def _of_process(pid: int) -> str:
    """The state of a process of this host in words."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "its process has ended"
    known = {
        "T": "its process is stopped (SIGSTOP or Ctrl-Z)",
        "t": "its process is held by a debugger",
        "D": "its process waits for a disk, a network file system or a driver",
        "Z": "its process has ended",
    }
    return known.get(
        state, "its process does not run Python: swapped out, or held by a call that does not end"
    )


def _hosts(sights: Sequence[Sight]) -> str:
    """Processes, or hosts if there are many."""
    if len(sights) <= 4:
        return ", ".join(
            f"process {s.values[pulse.PID]} on {s.host}" if s.is_seen else f"on {s.host}" for s in sights
        )
    return "on " + ", ".join(dict.fromkeys(sight.host for sight in sights))


def _numbers(sights: Sequence[Sight]) -> str:
    """Ranks as ranges.

    >>> _numbers([Sight(rank=rank, host="", values=()) for rank in (0, 1, 2, 5)])
    '0-2, 5'
    """
    ranks, parts = sorted(sight.rank for sight in sights), []
    for rank in ranks:
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)
