"""Damaged and odd input of every kind: it is read rightly, or refused with a message; nothing else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedmpi.config import sections, validate
from fedmpi.data.prepared import Dataset, write_dataset
from fedmpi.errors import UserError
from fedmpi.storage.checkpoint import Checkpoint, write_checkpoint
from tests.fuzz import cases
from tests.fuzz.cases import Mutation, mutate, mutations, number_of_cases
from tests.fuzz.worker import RUN_ID, Worker
from tests.support.configs import ROOT, SMALL
from tests.support.run_files import finished_run


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """The process that reads damaged files."""
    worker = Worker()
    yield worker
    worker.close()


def check(worker: Worker, what: str, good: set[str], *contents: bytes) -> None:
    """The worker's answer is one of the good ones."""
    outcome = worker.ask(what, *contents)
    cases.outcomes[what][outcome.split(maxsplit=1)[0] if outcome not in good else outcome] += 1
    assert outcome in good, outcome


# --- Config -------------------------------------------------------------------------------------------

TEXTS = [SMALL, *(path.read_text() for path in sorted((ROOT / "configs").glob("*.toml")))]
KEYS = sorted(
    {f"{section}.{key}" for section, kind in sections().items() for key in kind.__dataclass_fields__}
)
ODD = [
    "", "0", "-1", "1", "2", "7", "1e400", "-0.0", "nan", "inf", "0.5", "1e-320", str(2**63),
    str(-(2**63)), "9" * 400, "0x" + "f" * 5000, "9" * 5000, "true", "false", '""', "''", '"a"', '"a:b"',
    '"a.b:c"', '"é\\u0000"', '"\\u007f\\t\\\\\\""', '"x.h5"', '"schedule"', '"quadratic"', '"periodic"',
    '"natural"', '"float64"', "[]", "[1]", "[[1.0, 2], [3, 4]]", "[[]]", "[1, [2]]", '["a"]', "[0, -1]",
    "{}", "{a = 1}", '{"" = "x", b = [nan]}', "{a = 0x" + "f" * 5000 + "}", "{a = 1e400, b = 1979-05-27}",
    "1979-05-27", "07:32:00", "[" * 200 + "]" * 200, "{a = " + "[" * 150 + "]" * 150 + "}", "[" * 5000,
    "'''\n'''", "#", "= 1", "\x00", "\ud7ff", '"\U0001f600"',
]  # fmt: skip


def values() -> st.SearchStrategy[str]:
    """Values as they may stand in a file or on the command line."""
    return st.sampled_from(ODD) | st.text(max_size=8) | st.integers().map(str) | st.floats().map(repr)


@st.composite
def config_texts(draw) -> str:
    """A good config after a few changes of its lines."""
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.integers(0, 4))):
        i, j = (draw(st.integers(0, max(len(lines) - 1, 0))) for _ in range(2))
        kind = draw(st.sampled_from(["delete", "double", "swap", "value", "value", "key", "new", "text"]))
        if kind == "new":
            lines.insert(i, f"{draw(st.sampled_from(KEYS)).partition('.')[2]} = {draw(values())}")
        elif kind == "text":
            lines.insert(i, draw(st.text(max_size=12)))
        elif not lines:
            continue
        elif kind == "delete":
            del lines[i]
        elif kind == "double":
            lines.insert(j, lines[i])
        elif kind == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == "value":
            before, equals, _ = lines[i].partition("=")
            lines[i] = f"{before}= {draw(values())}" if equals else before
        elif kind == "key":
            lines[i] = re.sub(r"^[\w-]+", draw(st.sampled_from(KEYS)).partition(".")[2], lines[i])
    return "\n".join(lines)


def overrides() -> st.SearchStrategy[list[str]]:
    """Arguments of --set, with known and unknown keys."""
    names = st.sampled_from(KEYS) | st.sampled_from(
        ["run", "run.", ".seed", "x.y", "run.seed.x", "", " run.seed"]
    )
    return st.lists(
        st.tuples(names, st.sampled_from(["=", "=", "=", "", "=="]), values()).map("".join), max_size=3
    )


def read_config(text: str, settings: list[str]) -> None:
    """A Config that its own text gives again, or a UserError."""
    try:
        config = validate.parse(text, "fuzz.toml", settings)
    except UserError:
        cases.outcomes["config"]["refused"] += 1
        return
    cases.outcomes["config"]["read"] += 1
    again = validate.parse(config.to_toml(), "again.toml")
    assert again == config or repr(again) == repr(config)  # by repr nan is nan


@given(config_texts(), overrides())
@example(SMALL, ["model.name=a:b", "model.options={a = 0x" + "f" * 5000 + "}"])
@example(SMALL, ["model.name=a:b", "model.options={a = nan, b = [-0.0, 1e400]}"])
@number_of_cases(700, 4000)
def test_config_texts(text: str, settings: list[str]):
    """Changed lines and any --set give a Config that its own text gives again, or a UserError."""
    read_config(text, settings)


@given(st.sampled_from(TEXTS), mutations())
@number_of_cases(400, 2500)
def test_config_bytes(tmp_path_factory, text: str, changes: list[Mutation]):
    """A config file with changed bytes is read, or refused with a UserError."""
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(mutate(text.encode(), changes))
    try:
        text = validate.read_text(path)
    except UserError:
        cases.outcomes["config"]["refused"] += 1
        return
    read_config(text, [])


@given(st.sampled_from(KEYS), values())
@number_of_cases(300, 2000)
def test_overrides_do_what_a_line_does(key: str, value: str):
    """--set section.key=value gives what the same line in the file gives."""
    section, _, name = key.partition(".")
    try:
        assert tomllib.loads(f"value = {value}").keys() == {"value"}
    except (ValueError, RecursionError, AssertionError):
        return  # a bare word is a string on the command line only
    lines, header = SMALL.splitlines(), f"[{section}]"
    if header not in lines:
        lines.append(header)
    start = lines.index(header) + 1
    end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
    kept = [line for line in lines[start:end] if not line.startswith(f"{name} =")]
    lines[start:end] = [f"{name} = {value}", *kept]
    answers = []
    for text, settings in (("\n".join(lines), []), (SMALL, [f"{key}={value}"])):
        try:
            answers.append(repr(validate.parse(text, "fuzz.toml", settings)))
        except UserError:
            answers.append("refused")
    cases.outcomes["config"]["refused" if answers[0] == "refused" else "read"] += 1
    assert answers[0] == answers[1]


# --- Schedules ----------------------------------------------------------------------------------------

CSV = "round,client,weight\n" + "".join(
    f"{t},{n},{0.1 * (n + 1)}\n" for t in range(6) for n in range(t % 3, 7, 3)
)
FIELDS = ["", "0", "1", "6", "7", "-1", " 2 ", "1_0", "0.5", "nan", "inf", "-0.0", "1e-320", "1e400",
          str(2**63),
          "9" * 5000, "٣", "²", "a", '"0"', "0x1", "\x00", "\x0c", "\u2028", "0\x850"]  # fmt: skip


@st.composite
def schedule_texts(draw) -> bytes:
    """A good schedule with odd fields, lines doubled, swapped or left out."""
    lines = CSV.splitlines()
    for _ in range(draw(st.integers(0, 3))):
        i, j = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        kind = draw(st.sampled_from(["field", "field", "field", "double", "swap", "empty", "more"]))
        if kind == "field":
            fields = lines[i].split(",")
            fields[draw(st.integers(0, len(fields) - 1))] = draw(
                st.sampled_from(FIELDS) | st.text(max_size=4)
            )
            lines[i] = ",".join(fields)
        elif kind == "double":
            lines.insert(j, lines[i])
        elif kind == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == "empty":
            lines[i] = ""
        else:
            lines[i] += ",1"
    return draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines).encode("utf-8", "surrogatepass")


TRACE = "client,start,end\n" + "".join(f"{n},{3 * n},{3 * n + 5}\n" for n in range(7))


@given(mutations())
@number_of_cases(100, 1000)
def test_trace_texts(worker, changes: list[Mutation]):
    """A changed CSV trace gives usable availability or a UserError."""
    check(worker, "trace.csv", {"read", "refused"}, mutate(TRACE.encode(), changes))


@given(schedule_texts() | mutations().map(lambda changes: mutate(CSV.encode(), changes)))
@number_of_cases(350, 2000)
def test_schedule_texts(worker, data: bytes):
    """A changed CSV file gives a usable schedule or a UserError."""
    check(worker, "schedule.csv", {"read", "refused"}, data)


@pytest.fixture(scope="module")
def schedule_files(tmp_path_factory) -> list[bytes]:
    """Good schedules in HDF5: datasets at the root, compressed ones in a group, and a result file."""
    folder = tmp_path_factory.mktemp("schedules")
    columns = {"round": [0, 0, 1, 5], "client": [0, 6, 2, 3], "weight": [0.5, 0.25, 1.0, 0.0]}
    with h5py.File(folder / "plain.h5", "w") as file:
        file.update(columns)
    with h5py.File(folder / "packed.h5", "w", libver="latest") as file:
        for name, values in columns.items():
            file.create_dataset(f"participation/{name}", data=values, compression="gzip", shuffle=True)
    paths = [folder / "plain.h5", folder / "packed.h5", finished_run(folder / "run.h5")]
    return [path.read_bytes() for path in paths]


@given(st.integers(0, 2), mutations())
@number_of_cases(20, 100)
def test_schedule_files(worker, schedule_files, which: int, changes: list[Mutation]):
    """A changed HDF5 file gives a usable schedule or a UserError, and never takes the process down."""
    check(worker, "schedule.h5", {"read", "refused"}, mutate(schedule_files[which], changes))


_COLUMNS = st.sampled_from(
    [[0, 1], [0.5, 1.0], [-1, 3], [2**63 - 1, 0], [], 3, [[0], [1]], [np.nan, 1], [True, False],
     [b"a", b"b"],
     [1, 2, 3], [0, 0], np.array([0, 2**64 - 1], np.uint64), h5py.Empty("f8"), np.array([0, 1], np.int8),
     np.array([0.5, 1], np.float16), [1 + 2j, 0j], np.array([(1, 2.0)] * 2, [("a", "i4"), ("b", "f8")])]
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["round", "client", "weight"]), _COLUMNS, max_size=3), st.booleans())
@example({"round": [0, 1], "client": [0, 1], "weight": [True, False]}, False)
@number_of_cases(12, 60)
def test_schedules_of_odd_types(worker, tmp_path_factory, columns: dict, grouped: bool):
    """Datasets of any type and shape under the right names give a schedule or a UserError."""
    path = tmp_path_factory.getbasetemp() / "odd.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("participation") if grouped else file
        for name, values in columns.items():
            group[name] = values
    check(worker, "schedule.h5", {"read", "refused"}, path.read_bytes())


# --- Checkpoints, results, data -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> tuple[bytes, bytes]:
    """The newest checkpoint of a run, and the one before."""
    run_path = tmp_path_factory.mktemp("checkpoints") / "run.h5"
    files = []
    for completed in (8, 4):
        checkpoint = Checkpoint(
            run_id=RUN_ID, completed=completed, anchor_round=completed - 1,
            rows={"train": completed, "eval": 2},
            wall_time_s=1.5 * completed, digests={"data": "d" * 64, "model": "e" * 64, "participation": ""},
            global_params=np.arange(5) / completed, accumulated=np.arange(5.0) - completed,
            minibatches_drawn=np.arange(7) * completed,
            participation={"level": np.arange(7), "front": np.array(3), "queue": np.arange(completed)},
        )  # fmt: skip
        files.append(write_checkpoint(run_path, checkpoint).read_bytes())
    return files[0], files[1]


@given(mutations())
@number_of_cases(400, 3000)
def test_checkpoints(worker, checkpoints, changes: list[Mutation]):
    """A damaged checkpoint gives what it held, or the one before with a note; never other contents."""
    newest, older = checkpoints
    check(worker, "checkpoint", {"the same", "older"}, mutate(newest, changes), newest, older)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory) -> bytes:
    """A result file."""
    return finished_run(tmp_path_factory.mktemp("runs") / "run.h5").read_bytes()


@given(mutations())
@number_of_cases(60, 150)
def test_run_files(worker, run_file, changes: list[Mutation]):
    """A damaged result file is read or refused with a UserError, by each of its readers."""
    check(worker, "run", {"read", "refused"}, mutate(run_file, changes))


_ATTRIBUTES = st.sampled_from(
    [
        "fedmpi-run",
        "done",
        "",
        1,
        0,
        -1,
        99,
        0.5,
        [1, 2, 3],
        ["a", "b"],
        b"\xff\xfe",
        np.void(b"x"),
        h5py.Empty("f8"),
    ]
)


@given(
    st.dictionaries(
        st.sampled_from(["format", "format_version", "status", "config"]), _ATTRIBUTES, min_size=1
    ),
    st.sampled_from([None, "train", "train/round", "eval/round", "model", "model/global_params"]),
    st.sampled_from([None, 1.0, "text", h5py.Empty("f8"), [1, 2]]),
)
@example({"format": [1, 2, 3]}, None, None)
@example({"format_version": 1}, "train/round", 1.0)
@number_of_cases(12, 60)
def test_run_files_of_odd_types(
    worker, tmp_path_factory, run_file, attributes: dict, gone: str | None, instead
):
    """A whole file with attributes or datasets of other types is read or refused with a UserError."""
    path = tmp_path_factory.getbasetemp() / "odd-run.h5"
    path.write_bytes(run_file)
    with h5py.File(path, "r+") as file:
        for name, value in attributes.items():
            file.attrs[name] = value
        if gone:
            del file[gone]
            if instead is not None:
                file[gone] = instead
    check(worker, "run", {"read", "refused"}, path.read_bytes())


@pytest.fixture(scope="module")
def data_files(tmp_path_factory) -> list[bytes]:
    """Prepared data: images with client column, float inputs, and clients with names, some held out."""
    folder = tmp_path_factory.mktemp("data")
    numbers = np.random.default_rng(1)
    images = Dataset(
        "images", numbers.integers(0, 256, (20, 1, 4, 4), np.uint8), np.arange(20) % 3,
        numbers.integers(0, 256, (6, 1, 4, 4), np.uint8), np.arange(6) % 3, 3, (0.5,), (0.25,),
        np.arange(20) // 5,
    )  # fmt: skip
    floats = Dataset(
        "floats", numbers.normal(size=(9, 3)), np.arange(9) % 2, np.empty((0, 3)), np.empty(0, np.int64), 2
    )
    natural = replace(
        floats, name="natural",
        held_out_inputs=numbers.normal(size=(4, 3)), held_out_labels=np.arange(4) % 2,
        held_out_clients=np.array([3, 3, 4, 3]), train_clients=np.arange(9) % 3,
        test_clients=np.empty(0, np.int64), client_names=tuple("abcde"), class_names=("yes", "no"),
    )  # fmt: skip
    for dataset in (images, floats, natural):
        write_dataset(folder / f"{dataset.name}.h5", dataset)
    return [(folder / f"{name}.h5").read_bytes() for name in ("images", "floats", "natural")]


@given(st.integers(0, 2), mutations())
@number_of_cases(60, 150)
def test_data_files(worker, data_files, which: int, changes: list[Mutation]):
    """A damaged data file gives the data it had, or a UserError; never other data."""
    whole = data_files[which]
    check(worker, "data", {"the same", "refused"}, mutate(whole, changes), whole)
