"""Random numbers belong to an address: seed, purpose, client, counter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmpi.data import rng

ADDRESS = {"seed": 1, "purpose": "batches", "client": 5, "counter": 9}
ELSEWHERE = {"seed": 2, "purpose": "selection", "client": 6, "counter": 10}


def test_the_same_address_gives_the_same_numbers():
    """A stream starts anew each time it is asked for, whatever was drawn before."""
    first = rng.stream(**ADDRESS)
    expected = first.random(1000)
    first.normal(size=100)
    rng.stream(**ELSEWHERE).random(1000)
    np.random.default_rng(0).random(10)
    assert np.array_equal(rng.stream(**ADDRESS).random(1000), expected)


def test_two_streams_can_be_read_in_turns():
    """Drawing from one stream does not move another, not even one at the same address."""
    a, b = rng.stream(**ADDRESS), rng.stream(**ADDRESS)
    pairs = [(a.random(), b.random()) for _ in range(100)]
    assert all(x == y for x, y in pairs)
    assert len({x for x, _ in pairs}) == 100


def test_the_numbers_of_an_address_stay_the_same_over_versions():
    """The first words at an address are those of Philox4x64-10, so that old results can be repeated."""
    words = rng.stream(**ADDRESS).bit_generator.random_raw(8)
    key = rng.stream(**ADDRESS).bit_generator.state["state"]["key"].tolist()
    # Philox steps before it draws: the stream's own word of the counter starts at 1.
    expected = [word for block in (1, 2) for word in philox([block, 9, 5, 0], key)]
    assert words.tolist() == expected


def philox(counter: list[int], key: list[int]) -> list[int]:
    """One block of Philox4x64-10, written out after Salmon et al. (2011)."""
    mask = 2**64 - 1
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 2**64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
    return c


def test_the_reference_in_this_file_is_philox():
    """The generator written out above gives the published known answer for all-zero input."""
    assert philox([0] * 4, [0] * 2) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]


@pytest.mark.parametrize("part", ADDRESS)
def test_each_part_of_the_address_matters(part):
    """Another seed, purpose, client or counter gives numbers that are uncorrelated with the first."""
    here = rng.stream(**ADDRESS).random(10_000)
    there = rng.stream(**ADDRESS | {part: ELSEWHERE[part]}).random(10_000)
    assert not np.isin(there, here).any()
    assert abs(np.corrcoef(here, there)[0, 1]) < 0.04  # four standard deviations of 1 / sqrt(10,000)


def addresses(part: str) -> list[dict]:
    """4,000 addresses that differ in one part only, by as little as possible."""
    values = [f"purpose{i}" for i in range(4000)] if part == "purpose" else range(4000)
    return [ADDRESS | {part: value} for value in values]


@pytest.mark.parametrize("part", ADDRESS)
def test_the_first_draws_of_neighbouring_addresses_are_independent_and_uniform(part):
    """First draws along one part of the address look like one stream of uniform numbers."""
    draws = np.array([rng.stream(**address).random() for address in addresses(part)])
    for lag in (1, 2, 10):
        assert abs(np.corrcoef(draws[:-lag], draws[lag:])[0, 1]) < 0.065  # 4 / sqrt(4,000)
    # Kolmogorov-Smirnov: the distribution function is off by less than 1.95 / sqrt(n) (0.1 % level).
    off = np.abs(np.sort(draws) - (np.arange(4000) + 0.5) / 4000)
    assert off.max() < 1.95 / np.sqrt(4000)


def test_no_two_addresses_collide():
    """A grid of addresses, with parts that look alike when written side by side, has no stream twice."""
    seeds = [0, 1, 11, 111, 2**32, 2**63 - 1]
    purposes = ["", "1", "11", "/", "1/", "/1", "offset", "offset ", "selection"]
    clients = [0, 1, 2, 2**31, 2**32, 2**63]
    counters = [0, 1, 2, 2**31, 2**32, 2**63]
    firsts, places = set(), set()
    for address in itertools.product(seeds, purposes, clients, counters):
        bits = rng.stream(*address).bit_generator
        state = bits.state["state"]
        places.add((*state["key"].tolist(), *state["counter"].tolist()))
        firsts.add(tuple(bits.random_raw(2).tolist()))
    assert len(places) == len(firsts) == 6 * 9 * 6 * 6


@pytest.mark.parametrize("part", ["client", "counter"])
def test_a_stream_never_runs_into_its_neighbour(part):
    """Neighbouring clients and counters are 2**64 blocks of four draws apart, or more."""

    def position(address: dict) -> int:
        words = rng.stream(**address).bit_generator.state["state"]["counter"].tolist()
        return sum(word << (64 * i) for i, word in enumerate(words))

    gap = position(ADDRESS | {part: ADDRESS[part] + 1}) - position(ADDRESS)
    assert gap == {"counter": 2**64, "client": 2**128}[part]


def test_client_and_counter_are_not_exchangeable():
    """Client 3 in round 4 is not client 4 in round 3."""
    a = rng.stream(1, "batches", client=3, counter=4).random(4)
    b = rng.stream(1, "batches", client=4, counter=3).random(4)
    assert not np.isin(a, b).any()


def test_integers_are_addressed_and_have_63_bits():
    """`integer` is a function of the address that uses all of [0, 2**63) evenly."""
    values = [rng.integer(**address) for address in addresses("counter")]
    assert values == [rng.integer(**address) for address in addresses("counter")]
    assert all(isinstance(value, int) and 0 <= value < 2**63 for value in values)
    assert len(set(values)) == 4000
    # Each bit is one in half of the values: 2,000 of 4,000, within five standard deviations of 31.6.
    ones = [sum(value >> bit & 1 for value in values) for bit in range(63)]
    assert min(ones) > 1842
    assert max(ones) < 2158


@pytest.mark.parametrize("size", [1, 2, 3, 17, 240, 70_000])
def test_permutations_are_those_of_the_stream(size):
    """The fast way gives the numbers of the stream at the address, whatever was drawn before."""
    for seed, client, counter in itertools.product([1, 2**63 - 1], [0, 7, 10**6], [0, 1, 2**40]):
        expected = rng.stream(seed, "minibatch", client, counter).permutation(size)
        np.testing.assert_array_equal(rng.permutation(seed, "minibatch", client, counter, size), expected)
