"""Who trains whom: no rank above its even share, and nothing moves without need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpi.simulation.plan import assign


@st.composite
def owned(draw) -> tuple[np.ndarray, int]:
    """Owners of some participants, often lopsided, and the number of ranks."""
    num_ranks = draw(st.integers(1, 9))
    some = draw(st.lists(st.integers(0, num_ranks - 1), min_size=1, max_size=3))
    owners = draw(st.lists(st.sampled_from(some) | st.integers(0, num_ranks - 1), max_size=40))
    return np.array(owners, np.int64), num_ranks


def loads(ranks: np.ndarray, num_ranks: int) -> np.ndarray:
    """Participants on each rank."""
    return np.bincount(ranks, minlength=num_ranks)


@pytest.mark.parametrize(
    ("owners", "num_ranks", "expected"),
    [
        ([], 3, []),
        ([0], 1, [0]),
        ([1], 4, [1]),
        ([0, 0], 1, [0, 0]),
        ([0, 0, 0, 1], 2, [0, 0, 1, 1]),
        ([2, 2, 2], 3, [2, 0, 1]),
        ([1, 0, 1, 1, 1], 2, [1, 0, 1, 1, 0]),  # the share is 3: the last one of rank 1 moves
        ([0] * 6, 3, [0, 0, 1, 2, 1, 2]),  # a first place on each idle rank, then a second
    ],
)
def test_plans_made_by_hand(owners, num_ranks, expected):
    """Small plans are those one would make by hand."""
    assert assign(np.array(owners, np.int64), num_ranks).tolist() == expected


@given(owned())
@settings(deadline=None)
def test_every_participant_is_trained_once_by_a_rank_that_exists(case):
    """The plan names one existing rank for each participant."""
    owners, num_ranks = case
    trainers = assign(owners, num_ranks)
    assert trainers.shape == owners.shape
    assert trainers.dtype.kind == "i"
    assert ((trainers >= 0) & (trainers < num_ranks)).all()


@given(owned())
@settings(deadline=None)
def test_nobody_trains_more_than_the_even_share(case):
    """No rank has more than ceil(participants / ranks)."""
    owners, num_ranks = case
    assert loads(assign(owners, num_ranks), num_ranks).max() <= -(-len(owners) // num_ranks)


@given(owned())
@settings(deadline=None)
def test_only_the_surplus_moves(case):
    """As many participants move as owners have beyond the share, each owner keeping its first ones."""
    owners, num_ranks = case
    share = -(-len(owners) // num_ranks)
    trainers = assign(owners, num_ranks)
    for rank in range(num_ranks):
        stays = trainers[owners == rank] == rank
        assert stays.tolist() == [place < share for place in range(len(stays))]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("each", [0, 1, 5])
def test_a_balanced_round_stays_as_it_is(num_ranks, each):
    """Nothing moves when every rank owns equally many participants, in whatever order they come."""
    owners = np.random.default_rng(each).permutation(np.repeat(np.arange(num_ranks), each))
    assert assign(owners, num_ranks).tolist() == owners.tolist()


@given(owned())
@settings(deadline=None)
def test_the_plan_is_pure(case):
    """The same owners give the same plan again, and are left as they were."""
    owners, num_ranks = case
    before = owners.copy()
    first = assign(owners, num_ranks).copy()
    assert owners.tolist() == before.tolist()
    assert assign(before, num_ranks).tolist() == first.tolist()


@given(owned())
@settings(deadline=None)
def test_surplus_goes_to_the_least_loaded(case):
    """A rank that borrows ends at most one above any rank that could have taken more."""
    owners, num_ranks = case
    trainers = assign(owners, num_ranks)
    after = loads(trainers, num_ranks)
    borrowers = np.unique(trainers[trainers != owners])
    if len(borrowers):
        assert after[borrowers].max() <= after.min() + 1


@st.composite
def unequal(draw) -> tuple[np.ndarray, int, np.ndarray]:
    """Owners, the number of ranks, and costs that differ."""
    owners, num_ranks = draw(owned())
    costs = draw(st.lists(st.integers(0, 500), min_size=len(owners), max_size=len(owners)))
    return owners, num_ranks, np.array(costs, np.int64)


@given(unequal())
@settings(deadline=None)
def test_no_rank_is_far_above_the_even_share_of_the_costs(case):
    """By cost, the busiest rank has at most the even share plus the longest one (Graham's bound)."""
    owners, num_ranks, costs = case
    trainers = assign(owners, num_ranks, costs)
    assert ((trainers >= 0) & (trainers < num_ranks)).all()
    if len(costs) and costs.min() != costs.max():
        load = np.bincount(trainers, weights=costs, minlength=num_ranks)
        assert load.max() <= costs.sum() / num_ranks + costs.max() + 1


def test_the_longest_goes_first():
    """One long client and many short ones: the long one has a rank almost to itself."""
    owners, costs = np.zeros(9, np.int64), np.array([1, 1, 1, 1, 80, 20, 20, 20, 20])
    trainers = assign(owners, 2, costs)
    load = np.bincount(trainers, weights=costs, minlength=2)
    assert load.max() <= 84


def test_equal_costs_change_nothing():
    """Costs that are all the same give the plan by count."""
    owners = np.array([0, 0, 0, 1, 2, 2, 2, 2])
    assert assign(owners, 3, np.full(8, 16)).tolist() == assign(owners, 3).tolist()
