"""Participation read from a file: any Q, every row checked."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.errors import UserError
from fedmpi.participation import make_participation
from fedmpi.participation.schedule import Schedule, read_schedule
from tests.support.configs import SMALL

HEADER = "round,client,weight\n"
ROWS = [(0, 1, 0.5), (0, 4, 0.25), (2, 0, 1.0), (3, 2, 2.0), (3, 3, 3.0)]
TEXT = HEADER + "".join(f"{t},{client},{weight}\n" for t, client, weight in ROWS)


def in_csv(path: Path, text: str) -> Path:
    """A CSV file with this text."""
    path = path / "schedule.csv"
    path.write_text(text, encoding="utf-8")
    return path


def in_hdf5(path: Path, group: str = "/", **columns: object) -> Path:
    """An HDF5 file with these datasets; ROWS where nothing else is given."""
    path = path / "schedule.h5"
    rounds, clients, weights = zip(*ROWS, strict=True)
    with h5py.File(path, "w") as file:
        for name, data in ({"round": rounds, "client": clients, "weight": weights} | columns).items():
            if data is not None:
                file.require_group(group)[name] = data
    return path


def plan(schedule: Schedule, count: int) -> list[tuple[list[int], list[float]]]:
    """(clients, weights) of the first rounds."""
    return [tuple(column.tolist() for column in schedule.weights(t)) for t in range(count)]


EXPECTED = [([1, 4], [0.5, 0.25]), ([], []), ([0], [1.0]), ([2, 3], [2.0, 3.0]), ([], [])]


def test_a_csv_file_is_taken_as_it_is(tmp_path):
    """Weights are those of the file, whatever their sum; a round that is not in it has no participant."""
    assert plan(read_schedule(in_csv(tmp_path, TEXT), 5), 5) == EXPECTED


@pytest.mark.parametrize("group", ["/", "/participation"])
def test_an_hdf5_file_is_taken_as_it_is(tmp_path, group):
    """Datasets at the root, or in /participation as in a result file, are the same schedule."""
    assert plan(read_schedule(in_hdf5(tmp_path, group), 5), 5) == EXPECTED


@pytest.mark.parametrize("kind", ["i1", "u4", "i8", "u8", ">i4"])
def test_integers_of_any_width_are_taken(tmp_path, kind):
    """Rounds and clients may be of any integer type, weights of any real type."""
    columns = {name: np.array([0, 1, 2, 3, 4], kind) for name in ("round", "client", "weight")}
    schedule = read_schedule(in_hdf5(tmp_path, **columns), 5)
    assert plan(schedule, 3) == [([], []), ([1], [1.0]), ([2], [2.0])]


def test_a_result_file_is_a_schedule(tmp_path):
    """The /participation that a run would have written gives the same participants and weights again."""
    config = validate.parse(SMALL, "small.toml", ["run.seed=3"])
    participation = make_participation(config, 7)
    rows = [(t, *pair) for t in range(6) for pair in zip(*participation.weights(t), strict=True)]
    rounds, clients, weights = zip(*rows, strict=True)
    path = in_hdf5(tmp_path, "/participation", round=rounds, client=clients, weight=weights)
    overrides = ["participation.selection=schedule", f"participation.schedule={path}"]
    again = make_participation(validate.parse(SMALL, "small.toml", overrides), 7)
    assert plan(again, 7) == [*plan(participation, 6), ([], [])]


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "3,3,3.0\n0,4,0.25\n2,0,1.0\n3,2,2.0\n0,1,0.5\n",
        TEXT + "\n\n  \n\n",
        TEXT.rstrip("\n"),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace(",", " , "),
        TEXT.replace("1.0", "1").replace("0.25", "25e-2"),
        TEXT + "1,4,0\n1,3,0.0\n0,0,-0.0\n",
    ],
    ids=["unsorted", "blank lines at the end", "no last newline", "Windows", "spaces", "numbers", "zero"],
)
def test_the_way_a_csv_file_is_written_does_not_matter(tmp_path, text):
    """Order of rows, blank lines at the end, line ends, spaces and zero weights change nothing."""
    assert plan(read_schedule(in_csv(tmp_path, text), 5), 5) == EXPECTED


def test_unsorted_hdf5_rows_with_zero_weights_change_nothing(tmp_path):
    """Order of rows and rows of weight zero do not matter in HDF5 either."""
    path = in_hdf5(
        tmp_path,
        round=[3, 1, 0, 2, 3, 0],
        client=[3, 3, 4, 0, 2, 1],
        weight=[3.0, 0.0, 0.25, 1.0, 2.0, 0.5],
    )
    assert plan(read_schedule(path, 5), 5) == EXPECTED


@pytest.mark.parametrize("text", [HEADER, HEADER + "\n\n"])
def test_a_schedule_without_rows_has_no_participants(tmp_path, text):
    """Only a header: every round is empty."""
    assert plan(read_schedule(in_csv(tmp_path, text), 5), 2) == [([], []), ([], [])]


def test_a_late_round_is_found(tmp_path):
    """The last round of 63 bits can be scheduled."""
    schedule = read_schedule(in_csv(tmp_path, f"{HEADER}{2**63 - 2},1,0.5\n0,2,1\n"), 5)
    clients, weights = schedule.weights(2**63 - 2)
    assert (clients.tolist(), weights.tolist()) == ([1], [0.5])


# A bad fourth line, what the message says about it.
BAD_LINES = {
    "negative round": ("-1,2,0.5", ["negative round", "round -1, client 2, weight 0.5", "round >= 0"]),
    "negative client": ("1,-2,0.5", ["no such client", "client -2", "0 to 4"]),
    "client too high": ("1,5,0.5", ["no such client", "client 5", "0 to 4"]),
    "negative weight": ("1,2,-0.5", ["bad weight", "weight -0.5", "finite number >= 0"]),
    "nan": ("1,2,nan", ["bad weight", "weight nan", "finite number >= 0"]),
    "inf": ("1,2,inf", ["bad weight", "weight inf", "finite number >= 0"]),
    "beyond float64": ("1,2,1e999", ["bad weight", "finite number >= 0"]),
    "listed twice": ("0,4,0.5", ["client listed twice", "round 0, client 4", "one row for each"]),
    "listed twice, once with zero": ("0,1,0", ["client listed twice", "round 0, client 1"]),
    "too few columns": ("1,2", ["'1,2'", "expected round,client,weight"]),
    "too many columns": ("1,2,0.5,7", ["'1,2,0.5,7'", "expected round,client,weight"]),
    "blank": ("", ["''", "expected round,client,weight"]),
    "fractional round": ("1.5,2,0.5", ["'1.5,2,0.5'", "expected round,client,weight"]),
    "fractional client": ("1,2.0,0.5", ["'1,2.0,0.5'", "expected round,client,weight"]),
    "word": ("one,2,0.5", ["'one,2,0.5'", "expected round,client,weight"]),
    "no weight": ("1,2,", ["'1,2,'", "expected round,client,weight"]),
    "semicolons": ("1;2;0.5", ["'1;2;0.5'", "expected round,client,weight"]),
    "comment": ("# later", ["'# later'", "expected round,client,weight"]),
    "NUL": ("1,2,0.5\0", ["1,2,0.5", "expected round,client,weight"]),
    "round of 65 bits": (f"{2**64},2,0.5", ["18446744073709551616"]),
    "client of 65 bits": (f"1,{2**64},0.5", ["18446744073709551616"]),
    "round of 5000 digits": ("9" * 5000 + ",2,0.5", ["'9999", "expected round,client,weight"]),
}


@pytest.mark.parametrize(("line", "parts"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_of_a_csv_file_is_named(tmp_path, line, parts):
    """Every kind of bad row is a UserError with file, line number, what stands there, what is expected."""
    lines = TEXT.splitlines()
    path = in_csv(tmp_path, "\n".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(UserError) as caught:
        read_schedule(path, 5)
    message = str(caught.value)
    for part in [f"schedule {path}, line 4: ", *parts]:
        assert part in message
    assert len(message) < 300 + len(str(path))


@pytest.mark.parametrize(
    ("row", "values", "parts"),
    [
        (1, (-1, 4, 0.25), ["negative round", "round -1, client 4, weight 0.25", "round >= 0"]),
        (2, (2, -3, 1.0), ["no such client", "client -3", "0 to 4"]),
        (2, (2, 5, 1.0), ["no such client", "client 5", "0 to 4"]),
        (4, (3, 3, -3.0), ["bad weight", "weight -3.0", "finite number >= 0"]),
        (4, (3, 3, np.nan), ["bad weight", "weight nan", "finite number >= 0"]),
        (0, (0, 1, np.inf), ["bad weight", "weight inf", "finite number >= 0"]),
        (4, (3, 2, 1.0), ["client listed twice", "round 3, client 2", "one row for each"]),
    ],
)
def test_a_bad_row_of_an_hdf5_file_is_named(tmp_path, row, values, parts):
    """Every kind of bad row is a UserError with file, row number, its values and what is expected."""
    rows = [*ROWS[:row], values, *ROWS[row + 1 :]]
    rounds, clients, weights = zip(*rows, strict=True)
    path = in_hdf5(tmp_path, round=rounds, client=clients, weight=weights)
    with pytest.raises(UserError) as caught:
        read_schedule(path, 5)
    for part in [f"schedule {path}, row {row}: ", *parts]:
        assert part in str(caught.value)


def test_an_unsigned_round_beyond_63_bits_is_shown_as_it_is(tmp_path):
    """A round above 2**63 - 1 is refused with the number that stands in the file."""
    path = in_hdf5(tmp_path, round=np.array([0, 1, 2, 3, 2**63 + 5], np.uint64))
    with pytest.raises(UserError) as caught:
        read_schedule(path, 5)
    assert "9223372036854775813" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["line 1", "[]", "expected round,client,weight"]),
        (b"\n\n", ["line 1", "expected round,client,weight"]),
        (b"0,1,0.5\n", ["line 1", "'0.5'", "expected round,client,weight"]),
        (
            b"client,round,weight\n1,0,0.5\n",
            ["line 1", "'client', 'round'", "expected round,client,weight"],
        ),
        (b"round,client\n0,1\n", ["line 1", "expected round,client,weight"]),
        (b"\x89HDF\r\n\x1a\n\x00\x00", ["cannot be read as text"]),
        (bytes(range(256)), ["cannot be read as text"]),
        (b"\0\1\2\3", ["line 1", "expected round,client,weight"]),
    ],
    ids=["empty", "blank", "no header", "order", "columns", "HDF5", "binary", "ASCII control"],
)
def test_a_csv_file_that_is_none_is_named(tmp_path, content, parts):
    """An empty file, a missing header and binary data are UserErrors with the file."""
    path = tmp_path / "schedule.csv"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_schedule(path, 5)
    for part in [f"schedule {path}", *parts]:
        assert part in str(caught.value)


def test_a_csv_file_from_a_spreadsheet_program_is_read(tmp_path):
    """The byte order mark that such programs put first is not part of the header."""
    assert plan(read_schedule(in_csv(tmp_path, "\ufeff" + TEXT), 5), 5) == EXPECTED


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"weight": None}, "no dataset weight"),
        ({"round": None, "client": None}, "no dataset round"),
        ({"round": [0, 1]}, "differ in length"),
        ({"round": 0, "client": 1, "weight": 0.5}, "not one-dimensional"),
        ({name: [[0], [1]] for name in ("round", "client", "weight")}, "not one-dimensional"),
        ({"client": [0.0, 1.0, 2.0, 3.0, 4.0]}, "client integer, weight number"),
        ({"round": ["0", "1", "2", "3", "4"]}, "expected round integer"),
        ({"weight": [True] * 5}, "weight number"),
        ({"weight": ["a"] * 5}, "weight number"),
        ({"weight": [1j] * 5}, "weight number"),
        ({name: h5py.Empty("i8") for name in ("round", "client", "weight")}, "schedule.h5"),
        ({"round": h5py.SoftLink("/nowhere")}, "schedule.h5"),
        ({"round": h5py.ExternalLink("nowhere.h5", "/round")}, "schedule.h5"),
    ],
    ids=[
        "one missing", "two missing", "lengths", "scalars", "matrices", "float clients", "string rounds",
        "bool weights", "string weights", "complex weights", "null", "dangling link", "dangling file",
    ],
)  # fmt: skip
def test_datasets_that_are_no_schedule_are_named(tmp_path, columns, part):
    """Missing datasets, and those of another shape or type, are UserErrors with the file."""
    path = in_hdf5(tmp_path, **columns)
    with pytest.raises(UserError) as caught:
        read_schedule(path, 5)
    assert str(caught.value).startswith(f"schedule {path}: ")
    assert part in str(caught.value)


def test_a_group_of_the_name_of_a_dataset_is_a_user_error(tmp_path):
    """/round must be a dataset, /participation a group."""
    path = in_hdf5(tmp_path, round=None)
    with h5py.File(path, "a") as file:
        file.create_group("round")
    with pytest.raises(UserError, match=r"schedule.h5: cannot be read as HDF5"):
        read_schedule(path, 5)
    with pytest.raises(UserError, match=r"schedule.h5: "):
        read_schedule(in_hdf5(tmp_path, participation=[1.0, 2.0], round=None), 5)


@pytest.mark.parametrize("content", [b"", b"round,client,weight\n0,1,0.5\n", bytes(range(256))])
def test_a_file_that_is_not_hdf5_is_named(tmp_path, content):
    """An empty file, text and binary data under the name .h5 are UserErrors with the file."""
    path = tmp_path / "schedule.h5"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_schedule(path, 5)
    assert f"schedule {path}: cannot be read as HDF5" in str(caught.value)


def test_a_damaged_hdf5_file_is_a_schedule_or_a_user_error(tmp_path):
    """Whichever bytes of the file are lost or wrong, there is no other exception than a UserError."""
    path = in_hdf5(tmp_path)
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(0, len(whole), 997)]
    for place in range(0, len(whole), 400):
        damaged.append(whole[:place] + b"\xff" * 4 + whole[place + 4 :])
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            read_schedule(path, 5)
        except UserError:
            refused += 1
    assert refused > len(damaged) / 4


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere.h5", "."])
def test_a_missing_file_is_named_with_its_key(tmp_path, monkeypatch, name):
    """A schedule that does not exist, or is a folder, is a UserError with the config key."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read_schedule(name, 5)
    assert f'config participation.schedule = "{name}": no such file' in str(caught.value)
