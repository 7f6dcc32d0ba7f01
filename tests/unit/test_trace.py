"""Availability from a file of intervals."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi.config import ParticipationConfig
from fedmpi.errors import UserError
from fedmpi.participation.availability import Availability
from fedmpi.participation.composition import make_availability

HEADER = "client,start,end\n"
ROWS = [(0, 0, 2), (3, 1, 4), (0, 5, 6), (3, 3, 8)]
TEXT = HEADER + "".join(f"{client},{start},{end}\n" for client, start, end in ROWS)
EXPECTED = [[0], [0, 3], [3], [3], [3], [0, 3], [3], [3], [], []]


def trace(folder: Path, text: str = TEXT, period: int | None = None, num_clients: int = 5) -> Availability:
    """The availability that a CSV file of this text gives."""
    path = folder / "trace.csv"
    path.write_text(text)
    config = ParticipationConfig(availability="trace", trace=str(path), trace_period=period)
    return make_availability(config, num_clients, seed=1)


def sets(available: Availability, rounds: range | list[int]) -> list[list[int]]:
    """The available clients of each round."""
    return [available.available(t).tolist() for t in rounds]


def test_a_client_is_available_within_its_intervals(tmp_path):
    """start <= t < end, intervals in any order, overlapping ones as their union."""
    assert sets(trace(tmp_path), range(10)) == EXPECTED


def test_the_answer_does_not_depend_on_what_was_asked_before(tmp_path):
    """Rounds may be asked for in any order, as a resumed run does."""
    available = trace(tmp_path)
    order = np.random.default_rng(1).integers(0, 10, 200).tolist()
    assert sets(available, order) == [EXPECTED[t] for t in order]


def test_the_same_array_comes_back_while_the_set_is_the_same(tmp_path):
    """A selection tells by identity that nothing changed."""
    available = trace(tmp_path)
    assert available.available(2) is available.available(4)
    assert available.available(4) is not available.available(5)


def test_a_period_repeats_the_trace(tmp_path):
    """Round t is round t mod period; an interval may run over the end into the beginning."""
    text = HEADER + "0,0,2\n1,8,12\n2,9,10\n4,3,13\n"
    cycle = [[0, 1, 4], [0, 1, 4], [4], [4], [4], [4], [4], [4], [1, 4], [1, 2, 4]]
    assert sets(trace(tmp_path, text, period=10), range(30)) == cycle * 3


def test_an_hdf5_trace_is_the_same_trace(tmp_path):
    """Datasets in /trace."""
    path = tmp_path / "trace.h5"
    with h5py.File(path, "w") as file:
        for name, column in zip(("client", "start", "end"), zip(*ROWS, strict=True), strict=True):
            file[f"trace/{name}"] = column
    config = ParticipationConfig(availability="trace", trace=str(path))
    assert sets(make_availability(config, 5, seed=1), range(10)) == EXPECTED


@pytest.mark.parametrize(
    ("row", "period", "parts"),
    [
        ("5,0,2", None, ["no such client", "client 5, start 0, end 2", "0 to 4"]),
        ("-1,0,2", None, ["no such client", "0 to 4"]),
        ("1,-3,2", None, ["negative start", "start >= 0"]),
        ("1,3,3", None, ["empty interval", "end > start"]),
        ("1,4,3", None, ["empty interval", "end > start"]),
        ("1,10,11", 10, ["start beyond trace_period = 10"]),
        ("1,2,13", 10, ["longer than trace_period = 10"]),
        ("1,2", None, ["'1,2'", "expected client,start,end"]),
        ("1,2,x", None, ["'1,2,x'", "expected client,start,end"]),
        ("1,0.5,2", None, ["expected client,start,end"]),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, row, period, parts):
    """Every kind of bad row is a UserError with file, line and what is expected."""
    with pytest.raises(UserError) as caught:
        trace(tmp_path, f"{HEADER}0,0,2\n{row}\n2,0,1\n", period)
    for part in [f"trace {tmp_path / 'trace.csv'}, line 3: ", *parts]:
        assert part in str(caught.value)


def test_a_changed_file_changes_the_digest(tmp_path):
    """A run does not go on with another trace."""
    digests = {trace(tmp_path, text).digest() for text in (TEXT, TEXT + "1,0,1\n", HEADER)}
    assert len(digests) == 3
    assert trace(tmp_path).digest() == trace(tmp_path).digest()
