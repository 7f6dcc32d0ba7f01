"""`fedmpi data trace`: logs of devices in seconds become traces in rounds."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedmpi.cli.trace import import_trace
from fedmpi.config import ParticipationConfig
from fedmpi.errors import UserError
from fedmpi.participation.activity import Activity, read_activity
from fedmpi.participation.composition import make_availability

# Two devices as FedScale has them, with ids from 1; the second is active until its log ends.
LOG = {
    "1": {"duration": 240, "inactive": [65, 180], "finish_time": 600, "active": [0, 100], "model": "A"},
    "10": {"inactive": [130], "active": [61, 500], "finish_time": 600},
    "2": {"active": [], "inactive": [], "finish_time": 600},
}
TABLE = "client,start,end,model\n1,0,65,A\n10,61,130,B\n1,100,180,A\n10,500,600,B\n2,5,5,C\n"


def log_file(folder: Path, log: object, name: str = "log.json") -> Path:
    """A file with a log."""
    path = folder / name
    path.write_text(log if isinstance(log, str) else json.dumps(log))
    return path


def rows_of(log: Activity) -> list[tuple]:
    """The intervals in order."""
    return sorted(zip(log.clients.tolist(), log.starts.tolist(), log.ends.tolist(), strict=True))


INTERVALS = [(0, 0, 65), (0, 100, 180), (2, 61, 130), (2, 500, 600)]


def test_a_json_log_as_fedscale_has_it(tmp_path):
    """Starts and ends pair up, the last one may be open, ids become 0, 1, ... in numerical order."""
    log = read_activity(log_file(tmp_path, LOG))
    assert (log.num_clients, log.finish_time) == (3, 600)
    assert rows_of(log) == INTERVALS


def test_a_csv_log(tmp_path):
    """The same intervals, whatever the order of rows and further columns."""
    log = read_activity(log_file(tmp_path, TABLE, "log.csv"))
    assert (log.num_clients, log.finish_time) == (3, None)
    assert rows_of(log) == INTERVALS


def test_names_that_are_no_numbers_keep_their_order(tmp_path):
    """Clients are numbered as they appear; a list of records by position."""
    text = "client,start,end\nzoe,0,1\n7,2,3\nada,4,5\nzoe,6,7\n"
    assert read_activity(log_file(tmp_path, text, "a.csv")).clients.tolist() == [0, 1, 2, 0]
    log = read_activity(log_file(tmp_path, [LOG["1"], LOG["2"], LOG["10"]]))
    assert rows_of(log) == INTERVALS


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # Rounds begin at 0, 60, 120, ...: client 0 is there at 0, 60, 120; client 2 at 120, 540.
        (60, [(0, 0, 2), (0, 2, 3), (2, 2, 3), (2, 9, 10)]),
        (100, [(0, 0, 1), (0, 1, 2), (2, 1, 2), (2, 5, 6)]),
        (1000, [(0, 0, 1)]),
        (0.5, [(0, 0, 130), (0, 200, 360), (2, 122, 260), (2, 1000, 1200)]),
    ],
)
def test_a_client_is_available_if_it_is_active_when_a_round_begins(tmp_path, seconds, expected):
    """start <= t * seconds < end; what sees no round begin leaves no row."""
    columns = read_activity(log_file(tmp_path, LOG)).in_rounds(seconds)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == expected


def test_the_share_of_time_becomes_the_share_of_rounds():
    """1,000 random intervals: rounds over seconds is the length of a round, on average."""
    draws = np.random.default_rng(1)
    starts = draws.uniform(0, 1e5, 1000)
    lengths = draws.exponential(50, 1000)
    _, first, last = Activity(1, np.zeros(1000, int), starts, starts + lengths, None).in_rounds(60)
    assert abs((last - first).sum() * 60 / lengths.sum() - 1) < 0.1


@pytest.mark.parametrize("name", ["trace.csv", "trace.h5"])
def test_the_trace_is_taken_back(tmp_path, capsys, name):
    """availability = "trace" reads what was written, and repeats it with the period that is suggested."""
    out = tmp_path / name
    assert import_trace(str(log_file(tmp_path, LOG)), str(out), 60, ready=None, force=False) == 0
    printed = capsys.readouterr().out
    for part in (
        "3 clients (0 to 2), 4 intervals, rounds 0 to 9 of 60 s",
        "0 intervals too short to see a round begin; 1 clients never available",
        f'data.num_clients = 3, participation.availability = "trace", participation.trace = "{out}"',
        "participation.trace_period = 10",
    ):
        assert part in printed
    config = ParticipationConfig(availability="trace", trace=str(out), trace_period=10)
    trace = make_availability(config, 3, seed=1)
    there = [[0], [0], [0, 2], [], [], [], [], [], [], [2]]
    assert [trace.available(t).tolist() for t in range(20)] == there * 2


RECORD = 'expected {"active": [starts], "inactive": [ends], "finish_time": seconds}'
BAD_JSON = {
    "no JSON": ("{", ["not valid JSON"]),
    "nested": ("[" * 100_000, ["not valid JSON"]),
    "a number": ("3", ["no clients", "expected a mapping of clients to records"]),
    "nobody": ("{}", ["no clients"]),
    "no record": ({"0": LOG["1"], "x": 3}, ['client "x": 3', RECORD]),
    "no ends": ({"x": {"active": [1]}}, ['client "x"', RECORD]),
    "uneven": (
        {"x": {"active": [1, 5, 9], "inactive": [2]}},
        ['client "x": 3 active and 1 inactive times', "expected as many, or one more active time"],
    ),
    "open without an end": ({"x": {"active": [1], "inactive": []}}, ["1 active and 0 inactive times"]),
    "backwards": (
        {"x": {"active": [1, 9], "inactive": [2, 5]}},
        ['client "x", interval 1: ends before it starts (9 to 5)', "expected end >= start"],
    ),
    "negative": ({"x": {"active": [-1], "inactive": [2]}}, ["active '-1'", "expected seconds >= 0"]),
    "words": ({"x": {"active": ["a"], "inactive": [2]}}, ["active 'a'", "expected seconds >= 0"]),
    "nan": ('{"x": {"active": [NaN], "inactive": [2]}}', ["active 'nan'", "expected seconds >= 0"]),
    "huge": ({"x": {"active": [0], "inactive": [10**400]}}, ["inactive '1000", "expected seconds >= 0"]),
    "true": ({"x": {"active": [True], "inactive": [2]}}, ["active 'True'", "expected seconds >= 0"]),
    "bad end of the log": (
        {"x": {"active": [1], "inactive": [2], "finish_time": "late"}},
        ["finish_time 'late'", "expected seconds >= 0"],
    ),
}
BAD_CSV = {
    "empty": ("", ["line 1: columns []", "expected client,start,end"]),
    "no header": ("0,1,2\n", ["line 1: columns ['0', '1', '2']", "expected client,start,end"]),
    "endless value": ("client,start,end\n0,1," + "2" * 200_000, ["not valid CSV"]),
    "short row": ("client,start,end\n0,1,2\n\n0,1\n", ["line 4: 2 values for 3 columns"]),
    "words": ("client,start,end\n0,1,2\n0,x,2\n", ["line 3: start 'x'", "expected seconds >= 0"]),
    "negative": ("client,start,end\n0,1,-2\n", ["line 2: end '-2'", "expected seconds >= 0"]),
    "infinite": ("client,start,end\n0,1,inf\n", ["line 2: end 'inf'", "expected seconds >= 0"]),
    "backwards": ("client,start,end\n0,3,2\n", ["line 2: ends before it starts (3 to 2)"]),
}


@pytest.mark.parametrize(
    ("name", "log", "parts"),
    [
        *(("log.json", log, parts) for log, parts in BAD_JSON.values()),
        *(("log.csv", log, parts) for log, parts in BAD_CSV.values()),
    ],
    ids=[*BAD_JSON, *(f"csv: {name}" for name in BAD_CSV)],
)
def test_a_bad_log_is_a_user_error_that_names_the_place(tmp_path, name, log, parts):
    """File, client or line, value, what is expected; no trace is written."""
    path, out = log_file(tmp_path, log, name), tmp_path / "trace.csv"
    with pytest.raises(UserError) as caught:
        import_trace(str(path), str(out), 60, ready=None, force=False)
    for part in [f"activity log {path}", *parts]:
        assert part in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize("name", ["log.json", "log.csv"])
def test_a_damaged_log_is_read_or_refused(tmp_path, name):
    """400 logs with bytes changed, cut out or doubled: a trace or a UserError, nothing else."""
    whole = (TABLE if name == "log.csv" else json.dumps(LOG)).encode()
    draws, refused = np.random.default_rng(1), 0
    for _ in range(400):
        data = bytearray(whole)
        for place in draws.integers(len(data) - 8, size=draws.integers(1, 4)).tolist():
            kind = draws.integers(3)
            if kind == 0:
                data[place] = draws.choice(list(b'0159-.,:e"{}[]\n \x00\xff'))
            elif kind == 1:
                del data[place : place + int(draws.integers(1, 8))]
            else:
                data[place:place] = data[place : place + int(draws.integers(1, 30))]
        path = tmp_path / name
        path.write_bytes(data)
        try:
            read_activity(path).in_rounds(60)
        except UserError:
            refused += 1
    assert 50 < refused < 390


def test_fedscales_own_pickle(tmp_path):
    """Numbers, lists and dicts are read from a pickle of any protocol, with or without a suffix."""
    log = {int(name): record for name, record in LOG.items()}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for name in ("client_behave_trace", "log.pkl"):
            (tmp_path / name).write_bytes(pickle.dumps(log, protocol))
            assert rows_of(read_activity(tmp_path / name)) == INTERVALS


class Evil:
    """Runs code when a pickle of it is opened."""

    def __reduce__(self):
        return os.system, ("touch opened",)


@pytest.mark.parametrize(
    "data",
    [
        b"cposix\nsystem\n(S'touch opened'\ntR.",
        b"\x80\x04cposix\nsystem\n(S'touch opened'\ntR.",
        *(pickle.dumps({"1": {"active": [Evil()]}}, protocol) for protocol in range(6)),
        pickle.dumps({"1": np.int64(3)}),
    ],
)
def test_a_pickle_runs_nothing(tmp_path, monkeypatch, data):
    """Whatever a pickle wants to call is not even looked up; the message has the lines that convert it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.pkl").write_bytes(data)
    with pytest.raises(UserError, match=r"could run code(.|\n)*import json, pickle\n.*json.dump"):
        read_activity(tmp_path / "log.pkl")
    assert not (tmp_path / "opened").exists()


def test_odd_pickles_are_refused(tmp_path):
    """A half one, one that holds itself, one that is small and would print for years."""
    path, own, bomb = tmp_path / "log.pkl", {}, [1]
    own["1"] = own
    for _ in range(60):
        bomb = [bomb, bomb]
    for log in (own, {"1": bomb}, {"1": {"active": [bomb], "inactive": [1]}}, [[]], "x", 3):
        path.write_bytes(pickle.dumps(log))
        with pytest.raises(UserError, match=r"log.pkl"):
            read_activity(path)
    path.write_bytes(pickle.dumps(LOG)[:-9])
    with pytest.raises(UserError, match="not a whole pickle"):
        read_activity(path)


def test_what_gives_no_trace_is_refused(tmp_path):
    """No file, no interval that sees a round begin, rounds too short to count, an existing file."""
    path, out = log_file(tmp_path, {"x": {"active": [1], "inactive": [2]}}), tmp_path / "trace.csv"
    with pytest.raises(UserError, match=r"missing.json: cannot be read \(No such file"):
        import_trace(str(tmp_path / "missing.json"), str(out), 60, ready=None, force=False)
    with pytest.raises(UserError, match=r"nobody is active when a round begins.*smaller --round-seconds"):
        import_trace(str(path), str(out), 60, ready=None, force=False)
    with pytest.raises(UserError, match="--round-seconds 1e-300: too short"):
        import_trace(str(path), str(out), 1e-300, ready=None, force=False)
    out.write_text("precious")
    with pytest.raises(UserError, match="exists"):
        import_trace(str(path), str(out), 1, ready=None, force=False)
    assert out.read_text() == "precious"
    assert import_trace(str(path), str(out), 1, ready=None, force=True) == 0
    assert out.read_text() == "client,start,end\n0,1,2\n"


@pytest.mark.parametrize(("seconds", "code"), [("30", 0), ("0", 2), ("-1", 2), ("nan", 2), ("x", 2)])
def test_the_command_line(fedmpi_cli, tmp_path, seconds, code):
    """`fedmpi data trace FILE --out trace.csv --round-seconds S`."""
    path = log_file(tmp_path, LOG)
    done = fedmpi_cli("data", "trace", path, "--out", "trace.csv", "--round-seconds", seconds)
    assert done.returncode == code
    assert (tmp_path / "trace.csv").exists() == (code == 0)
    assert code == 0 or f"{seconds!r} is not a number > 0" in done.stderr
