"""Who stalls, as a pure function of what is seen; no rank that only waits is blamed."""

from __future__ import annotations

import pytest

from fedmpi.mpi.watch import pulse
from fedmpi.mpi.watch.judge import Sight, judge, told


def sight(
    rank: int, *, silent: float = 0.0, still: float = 0.0, waits: int = pulse.FOR_NOBODY, **more
) -> Sight:
    """A rank in round 3 that may be silent for 100 seconds."""
    values = [0] * pulse.SLOT
    values[pulse.STATE] = more.get("state", pulse.GOES_ON)
    values[pulse.ROUND], values[pulse.PID], values[pulse.WAITS] = 3, 1000 + rank, waits
    values[pulse.GROUP], values[pulse.IN_WORLD] = more.get("group", 0), more.get("calls", 7)
    values[pulse.IN_GROUP] = more.get("calls", 7)
    values[pulse.PHASE] = pulse.CODES[more.get("phase", "local SGD")]
    values[pulse.ALLOWED_MS] = int(1000 * more.get("allowed", 100.0))
    return Sight(
        rank=rank, host=f"n{rank}", values=values, silent=silent, still=still,
        is_far=more.get("is_far", False), is_seen=more.get("is_seen", True),
    )  # fmt: skip


def waiting(rank: int, **more) -> Sight:
    """A rank that waits for all."""
    return sight(rank, waits=pulse.FOR_WORLD, **more)


def blamed(*sights: Sight) -> list[int]:
    """The ranks that have reached their limit."""
    verdict = judge(sights)
    return [s.rank for s in verdict.missing] if verdict.share >= 1 else []


def test_a_rank_that_works_in_silence_is_blamed_at_its_own_limit():
    """Not those that wait for it, whose silence is as long; and not before its limit, which is its own."""
    assert blamed(waiting(0, silent=101), sight(1, silent=101)) == [1]
    assert blamed(waiting(0, silent=99), sight(1, silent=99)) == []
    assert blamed(waiting(0, silent=500), sight(1, silent=500, allowed=600)) == []


def test_ranks_may_wait_as_long_as_another_one_works():
    """A slow evaluation of one rank, which makes progress, is no stall of those that wait for it."""
    assert blamed(waiting(0, silent=5000), waiting(1, silent=5000), sight(2, silent=3)) == []


def test_of_ranks_that_all_wait_the_one_that_does_not_run_is_blamed():
    """It was stopped in a collective, so that it seems to wait like all others."""
    assert blamed(waiting(0, silent=150), waiting(1, silent=150, still=150)) == [1]


def test_of_ranks_that_all_wait_the_one_behind_is_blamed():
    """It waits in an earlier collective than the others."""
    assert blamed(waiting(0, silent=150, calls=8), waiting(1, silent=150, calls=7)) == [1]


def test_ranks_that_wait_for_each_other_are_all_named():
    """All run, all wait in the same collective: the network is gone."""
    verdict = judge([waiting(0, silent=150), waiting(1, silent=160)])
    assert verdict.share >= 1
    assert "ranks 0-1 of 2" in told(verdict, 2)
    assert "wait for each other since 150 s" in told(verdict, 2)


def test_a_group_that_waits_for_others_is_patient():
    """Of a sweep's groups one is done and waits for the other, which works for hours."""
    done = [sight(r, waits=pulse.FOR_WORLD, silent=9000, group=1) for r in (0, 1)]
    busy = [sight(2, silent=2, group=2), sight(3, waits=pulse.FOR_GROUP, silent=9, group=2)]
    assert blamed(*done, *busy) == []
    stuck = [sight(r, waits=pulse.FOR_GROUP, silent=101, group=2, still=100 * (r == 3)) for r in (2, 3)]
    assert blamed(*done, *stuck) == [3]


def test_a_node_that_cannot_be_seen_gets_more_time():
    """Its ranks may be at work: six limits pass before they are blamed."""
    far = {"is_far": True, "is_seen": False}
    assert blamed(waiting(0, silent=500), sight(1, silent=500, **far)) == []
    assert blamed(waiting(0, silent=700), sight(1, silent=700, **far)) == [1]


def test_ranks_that_left_are_not_waited_for():
    """A rank whose watch is over may be silent for ever."""
    assert blamed(sight(0, silent=9000, state=pulse.LEFT), sight(1, silent=1)) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (sight(1, silent=101), "its process runs, but this does not end"),
        (sight(1, silent=101, still=101), "its process has ended"),  # there is no process 1001 here
        (
            sight(1, silent=101, still=101, is_far=True),
            "the process, its host or the network between is gone",
        ),
        (sight(1, silent=101, state=pulse.STARTING, phase="starting"), "before the first round"),
    ],
)
def test_the_sentence_says_who_where_and_in_what_state(seen, words, monkeypatch):
    """Rank, process, host, round and phase, and what can be known of the process."""
    monkeypatch.setattr("builtins.open", _no_process)
    text = told(judge([waiting(0, silent=101), seen]), 2)
    assert text.startswith("rank 1 of 2 (process 1001 on n1) has made no progress for 101 s")
    assert words in text
    assert text.endswith("waiting for it: rank 0")


def _no_process(*arguments: object) -> None:
    raise FileNotFoundError
