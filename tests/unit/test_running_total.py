"""Sums in fixed memory: any order, any grouping, the same bits, and a known error."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpi.mpi.device import settings_restored
from fedmpi.simulation import running_total
from fedmpi.simulation.running_total import RunningTotal, most_kept, passing_rows, rows_held
from tests.unit.test_exact import contributions, largest_of, products


@pytest.fixture(autouse=True)
def tiny_numbers():
    """A run flushes them to zero; here they count, whatever test came before."""
    with settings_restored():
        torch.set_flush_denormal(False)
        yield


def words_of(
    updates: torch.Tensor, weights: list[float], groups: list[list[int]], *, by_torch: bool = False
):
    """(this rank's total, its words) after groups of contributions, one after the other."""
    room = np.full((2, updates.shape[1]), 7, np.int64)
    words = torch.from_numpy(room) if by_torch else room
    total, rows = RunningTotal(words, len(weights)), products(updates, weights)
    for group in groups:
        if group:
            largest = largest_of([rows[i] for i in group])
            total.add(updates[group], np.array([weights[i] for i in group]), largest)
    return total, room


def deal(data, count: int, num_ranks: int = 3) -> list[list[list[int]]]:
    """All contributions in some order, dealt to ranks, and on each rank in groups."""
    order = data.draw(st.permutations(range(count)))
    places = data.draw(st.lists(st.integers(0, 4 * num_ranks - 1), min_size=count, max_size=count))
    groups = [
        [i for i, place in zip(order, places, strict=True) if place == p] for p in range(4 * num_ranks)
    ]
    return [groups[rank::num_ranks] for rank in range(num_ranks)]


@settings(deadline=None, max_examples=60, database=None, derandomize=True)
@given(case=contributions(), data=st.data())
def test_order_and_grouping_do_not_change_a_bit(case, data):
    """Contributions of any sizes, dealt to ranks in any order and groups, have the words of all at once,
    on a CPU and by the operations of a GPU.
    """
    updates, weights = case
    largest = largest_of(products(updates, weights))
    whole, expected = words_of(updates, weights, [list(range(len(weights)))])
    for by_torch in (False, True):
        together = np.zeros_like(expected)
        for groups in deal(data, len(weights)):
            total, words = words_of(updates, weights, groups, by_torch=by_torch)
            total.move_to(largest)
            together += words
        assert together.tolist() == expected.tolist()
        assert total.value(together).tolist() == whole.value(expected).tolist()


@settings(deadline=None, max_examples=60, database=None, derandomize=True)
@given(case=contributions(), data=st.data())
def test_the_error_is_within_the_documented_bound(case, data):
    """A contribution is off by at most 2**-width times the largest, against the sum in rational numbers."""
    updates, weights = case
    rows = products(updates, weights)
    count, largest = len(weights), largest_of(rows)
    groups = [group for of_rank in deal(data, count) for group in of_rank]
    total, (high, low) = words_of(updates, weights, groups)
    width = min(62 - math.ceil(math.log2(count)), 50)
    unit = Fraction(2) ** -(width * ((total._level or 0) + 1))
    bound = count * max(Fraction(2) ** -width * Fraction(largest), Fraction(1, 2**950))
    for above, below, column in zip(high.tolist(), low.tolist(), zip(*rows, strict=True), strict=True):
        true_sum = sum(map(Fraction, column))
        assert abs((above * 2**width + below) * unit - true_sum) <= bound


def test_a_million_contributions_do_not_overflow():
    """With digits as large as they can be, words stay within 2**61."""
    room, count = np.zeros((2, 2), np.int64), 1 << 20
    total = RunningTotal(room, count)
    rows = torch.tensor([[1 - 2.0**-53, -1 + 2.0**-53]] * 1024, dtype=torch.float64)
    for scale in (2.0**-60, 1.0):
        for _ in range(512):
            total.add(rows, np.full(1024, scale), scale * rows.max().item())
    assert np.abs(room).max() <= 2**61
    expected = 512 * 1024 * (1 - 2.0**-53) * (1 + 2.0**-60)
    np.testing.assert_allclose(total.value(room), [expected, -expected], rtol=1e-11)


def test_chunks_are_as_the_whole(monkeypatch):
    """A vector longer than a chunk is summed alike in every place."""
    updates = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 50)).astype(np.float32))
    _, expected = words_of(updates, [0.3] * 5, [[0, 1, 2, 3, 4]])
    monkeypatch.setattr(running_total, "_CHUNK", 7)
    monkeypatch.setattr(running_total, "_ENTRIES_AT_ONCE", 30)
    for by_torch in (False, True):
        _, words = words_of(updates, [0.3] * 5, [[0, 1, 2, 3, 4]], by_torch=by_torch)
        assert words.tolist() == expected.tolist()


def test_updates_that_wait_do_not_grow_with_the_participants():
    """With many participants a rank holds a few updates, whatever their number."""
    held = [rows_held(most, 25_000_000, 2, 2) for most in (16, 17, 10_000, 1_000_000)]
    assert held == [8, 8, 8, 8]
    assert rows_held(10_000, 7_850, 16, 2) == 2048
    assert most_kept(7_850) == 4096
    assert passing_rows(7_850, 16) == 256
