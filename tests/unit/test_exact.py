"""Sums in fixed point: any order, any grouping, the same bits, and a known error."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpi.mpi.device import settings_restored
from fedmpi.simulation import exact

LARGEST32 = float(np.finfo(np.float32).max)
LARGEST64 = float(np.finfo(np.float64).max)


@pytest.fixture(autouse=True)
def tiny_numbers():
    """A run flushes them to zero; here they count, whatever test came before."""
    with settings_restored():
        torch.set_flush_denormal(False)
        yield


def products(updates: torch.Tensor, weights: list[float]) -> list[list[float]]:
    """weight * update in float64, one row for each contribution."""
    return [
        [weight * value for value in row.tolist()] for row, weight in zip(updates, weights, strict=True)
    ]


def largest_of(rows: list[list[float]]) -> float:
    """The largest magnitude of all contributions."""
    return max(abs(value) for row in rows for value in row)


def sum_of(updates: torch.Tensor, weights: list[float], exponent: int, members: list[int]) -> torch.Tensor:
    """The integer sum of some contributions, in the order given."""
    total = torch.zeros(updates.shape[1], dtype=torch.int64)
    exact.add_contributions(
        total.numpy(), updates[members].numpy(), [weights[i] for i in members], exponent
    )
    return total


def exact_sum(updates: torch.Tensor, weights: list[float]) -> tuple[torch.Tensor, int, list[list[float]]]:
    """(integer sum, its exponent, contributions) as the simulation forms it on one rank."""
    rows = products(updates, weights)
    exponent = exact.common_exponent(largest_of(rows), len(weights))
    return sum_of(updates, weights, exponent, list(range(len(weights)))), exponent, rows


@st.composite
def contributions(draw: st.DrawFn) -> tuple[torch.Tensor, list[float]]:
    """Up to 40 updates of three numbers, in float32 or float64, of wildly different sizes; and weights."""
    count = draw(st.integers(1, 40))
    wide = draw(st.booleans())
    values = st.floats(-1e250, 1e250) if wide else st.floats(-LARGEST32, LARGEST32, width=32)
    updates = draw(st.lists(st.lists(values, min_size=3, max_size=3), min_size=count, max_size=count))
    weights = draw(st.lists(st.floats(1e-12, 1e6), min_size=count, max_size=count))
    return torch.tensor(updates, dtype=torch.float64 if wide else torch.float32), weights


@settings(deadline=None, max_examples=50, database=None, derandomize=True)
@given(case=contributions(), data=st.data())
def test_order_and_grouping_do_not_change_a_bit(case, data):
    """Contributions dealt to any number of ranks in any order give the same integers."""
    updates, weights = case
    expected, exponent, _ = exact_sum(updates, weights)
    order = data.draw(st.permutations(range(len(weights))))
    ranks = data.draw(st.lists(st.integers(0, 4), min_size=len(weights), max_size=len(weights)))
    groups = [[i for i, rank in zip(order, ranks, strict=True) if rank == r] for r in range(5)]
    total = torch.zeros(3, dtype=torch.int64)
    for group in data.draw(st.permutations(groups)):
        total += sum_of(updates, weights, exponent, group)
    assert total.tolist() == expected.tolist()


def test_float_addition_would_depend_on_the_order():
    """The numbers of this test have another float64 sum in reverse, and the same exact one."""
    updates = torch.tensor([[0.1], [0.2], [0.3], [1e16], [-1e16], [0.7]], dtype=torch.float64)
    values = updates.flatten().tolist()
    assert sum(values) != sum(reversed(values))
    forward, exponent, _ = exact_sum(updates, [1.0] * 6)
    backward = sum_of(updates, [1.0] * 6, exponent, [5, 4, 3, 2, 1, 0])
    assert forward.tolist() == backward.tolist()


@settings(deadline=None, max_examples=50, database=None, derandomize=True)
@given(case=contributions())
def test_the_error_is_within_the_documented_bound(case):
    """The sum is off by at most K * 2**(ceil(log2 K) - 62) * m, against the sum in rational numbers."""
    updates, weights = case
    total, exponent, rows = exact_sum(updates, weights)
    count, largest = len(weights), largest_of(rows)
    headroom = math.ceil(math.log2(count))
    bound = count * Fraction(2) ** (headroom - 62) * Fraction(largest)
    bound = max(bound, count * Fraction(1, 2**1001))  # where the exponent is capped: half a unit each
    for integer, column in zip(total.tolist(), zip(*rows, strict=True), strict=True):
        true_sum = sum(map(Fraction, column))
        assert abs(integer * Fraction(2) ** -exponent - true_sum) <= bound


@settings(deadline=None, max_examples=50, database=None, derandomize=True)
@given(integer=st.integers(-(2**62), 2**62), exponent=st.integers(-960, 1000))
def test_the_value_of_an_integer_sum_is_correctly_rounded(integer, exponent):
    """to_float gives the float64 nearest to integer * 2**-exponent."""
    for total in (torch.tensor([integer]), np.array([integer])):
        value = exact.to_float(total, exponent)
        assert value.dtype in (torch.float64, np.float64)
        assert value.item() == float(integer * Fraction(2) ** -exponent)


@settings(deadline=None, max_examples=50, database=None, derandomize=True)
@given(st.lists(st.floats(1e-6, 1e3) | st.floats(-1e3, -1e-6), min_size=1, max_size=50))
def test_a_sum_of_ordinary_numbers_is_as_good_as_fsum(values):
    """Against math.fsum, the correctly rounded sum, at most one bit and the documented error are lost."""
    total, exponent, _ = exact_sum(torch.tensor(values, dtype=torch.float64)[:, None], [1.0] * len(values))
    true_sum, largest = math.fsum(values), max(map(abs, values))
    headroom = math.ceil(math.log2(len(values)))
    error = abs(exact.to_float(total, exponent).item() - true_sum)
    assert error <= len(values) * 2.0 ** (headroom - 62) * largest + math.ulp(true_sum)


@pytest.mark.parametrize(
    ("updates", "weights", "expected"),
    [
        ([[0.5, 1.0], [0.25, -2.0]], [1.0, 1.0], [0.75, -1.0]),
        ([[8.0, -4.0], [2.0, 4.0]], [0.25, 0.5], [3.0, 1.0]),
        ([[1.0, 3.0]], [0.125], [0.125, 0.375]),
        ([[1.0, 0.0], [-1.0, 0.0], [2.0**-40, 0.0]], [1.0, 1.0, 1.0], [2.0**-40, 0.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_that_fit_are_exact(updates, weights, expected, dtype):
    """Weighted sums of a few bits come out without any error, in both working precisions."""
    total, exponent, _ = exact_sum(torch.tensor(updates, dtype=dtype), weights)
    assert exact.to_float(total, exponent).tolist() == expected


def test_the_product_is_taken_in_float64():
    """A float32 update times a tiny weight does not underflow, times a large one not overflow."""
    small, exponent, _ = exact_sum(torch.tensor([[2.0**-120]]), [2.0**-40])
    assert exact.to_float(small, exponent).item() == 2.0**-160
    large, exponent, _ = exact_sum(torch.tensor([[2.0**127]]), [2.0**20])
    assert exact.to_float(large, exponent).item() == 2.0**147


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_update_is_not_changed(dtype):
    """Adding a contribution leaves the client's update as it is."""
    update = torch.tensor([1.5, -2.5], dtype=dtype)
    exact.add_contributions(np.zeros(2, np.int64), update[None].numpy(), [0.1], 40)
    assert update.tolist() == [1.5, -2.5]


@pytest.mark.parametrize(
    ("value", "weight", "count", "dtype"),
    [
        (LARGEST32, 1.0, 4096, torch.float32),
        (LARGEST32, 1e6, 4096, torch.float32),
        (-LARGEST32, 1e6, 4095, torch.float32),
        (LARGEST32, 1e-12, 4096, torch.float32),
        (1e300, 1.0, 4096, torch.float64),
        (-1e300, 1e6, 3, torch.float64),
        (LARGEST64, 1.0, 1, torch.float64),
        (LARGEST64, 2.0**-13, 4096, torch.float64),
        (math.nextafter(1.0, 0.0), 1.0, 4096, torch.float64),
        (1.0, 1.0, 4096, torch.float64),
        (1e-30, 1e-12, 4097, torch.float32),
    ],
)
def test_the_largest_sums_do_not_overflow(value, weight, count, dtype):
    """Many contributions of the largest magnitude and one sign fill 62 bits, no more, and sum up."""
    updates = torch.full((count,), value, dtype=dtype)
    contribution = Fraction(weight * updates[0].item())
    exponent = exact.common_exponent(abs(float(contribution)), count)
    totals = torch.zeros(count, dtype=torch.int64)
    exact.add_contributions(totals.numpy(), updates[None].numpy(), [weight], exponent)
    total = sum(totals.tolist())
    assert 2**60 < abs(total) <= 2**62
    assert total == totals.sum().item()
    bound = count * Fraction(2) ** (math.ceil(math.log2(count)) - 62) * abs(contribution)
    assert abs(total * Fraction(2) ** -exponent - count * contribution) <= bound


@pytest.mark.parametrize(
    ("values", "expected", "tolerance"),
    [
        ([0.0, 0.0, -0.0], 0.0, 0.0),
        ([1e-300, 2e-300, 3e-300], 6e-300, 3 * 2.0**-1001),  # the exponent is at its cap of 1000
        ([5e-324, -5e-324], 0.0, 0.0),
        ([1e-280, 1e-280], 2e-280, 1e-295),
        ([1e300, 1e-300], 1e300, 0.0),  # next to a huge contribution a tiny one is lost
        ([1e300, -1e300, 1.0], 0.0, 0.0),
        ([1e-5, 1e5], 100000.00001, 1e-11),
    ],
)
def test_sums_of_tiny_and_huge_numbers(values, expected, tolerance):
    """Zero, tiny and huge contributions, alone and together, give the sum up to the resolution."""
    total, exponent, _ = exact_sum(torch.tensor(values, dtype=torch.float64)[:, None], [1.0] * len(values))
    assert abs(exact.to_float(total, exponent).item() - expected) <= tolerance


def test_a_round_without_contributions_sums_to_zero():
    """Nobody takes part: the sum is zero."""
    exponent = exact.common_exponent(0.0, 0)
    assert exact.to_float(torch.zeros(2, dtype=torch.int64), exponent).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("largest", "count", "exponent"),
    [
        (1.0, 1, 61),
        (math.nextafter(1.0, 0.0), 1, 62),
        (0.5, 1, 62),
        (2.0, 1, 60),
        (1.0, 2, 60),
        (1.0, 3, 59),
        (1.0, 4, 59),
        (1.0, 5, 58),
        (1.0, 10, 57),
        (1.0, 4096, 49),
        (1.0, 4097, 48),
        (0.0, 10, 58),
        (2.0**1023, 1, -962),
        (2.0**-938, 1, 999),
        (2.0**-940, 1, 1000),
        (5e-324, 1, 1000),
    ],
)
def test_the_exponent_leaves_room_for_all_contributions(largest, count, exponent):
    """The exponent is 62 less the bits of the largest contribution less those of their number."""
    assert exact.common_exponent(largest, count) == exponent


@pytest.mark.parametrize("largest", [math.nan, math.inf, -1.0])
def test_a_magnitude_that_is_none_is_refused(largest):
    """No exponent can be given for contributions that are not finite."""
    with pytest.raises(ValueError, match="must be finite and >= 0"):
        exact.common_exponent(largest, 3)


@pytest.mark.parametrize("length", [1, 65535, 65536, 65537, 200_000])
def test_chunks_change_nothing(length):
    """Long vectors are summed in pieces; the result is that of each entry by itself."""
    updates = torch.randn(3, length, generator=torch.Generator().manual_seed(1))
    weights = [0.1, 2.0, 1e-3]
    total = torch.zeros(length, dtype=torch.int64)
    exact.add_contributions(total.numpy(), updates.numpy(), weights, 50)
    expected = sum(
        (u.double() * w * 2.0**50).round().to(torch.int64) for u, w in zip(updates, weights, strict=True)
    )
    assert torch.equal(total, expected)
