"""Result files: layout, reading while a run goes on, failures while writing, damaged files."""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

import fedmpi
from fedmpi.errors import UserError
from fedmpi.storage.reader import load_run, peek
from fedmpi.storage.writer import RunWriter, check_target
from tests.support.run_files import INITIAL, PARAMETERS, add_rounds, attributes, create_run, finished_run

xarray = pytest.importorskip("xarray")

# Group -> dataset -> (kind of its numbers, units), as the public layout has it; there may be more.
LAYOUT = {
    "train": {
        "round": ("i", "rounds"),
        "participants": ("i", "clients"),
        "weighted_sum_norm": ("f", "1"),
        "is_amplification": ("b", "1"),
        "wall_time_s": ("f", "s"),
        "compute_time_s": ("f", "s"),
        "comm_time_s": ("f", "s"),
        "idle_time_s": ("f", "s"),
    },
    "eval": {
        "round": ("i", "rounds"),
        "train_loss": ("f", "nats"),
        "train_accuracy": ("f", "1"),
        "test_loss": ("f", "nats"),
        "test_accuracy": ("f", "1"),
        "wall_time_s": ("f", "s"),
    },
    "participation": {"round": ("i", "rounds"), "client": ("i", "1"), "weight": ("f", "1")},
    "clients": {
        "client": ("i", "1"),
        "size": ("i", "samples"),
        "majority_label": ("i", "1"),
        "rank": ("i", "1"),
    },
    "params": {"round": ("i", "rounds"), "global_params": ("f", "1")},
    "model": {"global_params": ("f", "1")},
}
ROOT_ATTRIBUTES = {
    "format", "format_version", "status", "config", "creator", "run_id", "created_utc", "seed", "num_ranks",
    "mpi_library", "device_names", "host_names", "versions", "data_digest", "model_digest",
}  # fmt: skip
DIMENSIONS = {
    "train": ("round",),
    "eval": ("round",),
    "participation": ("round",),
    "clients": ("client",),
    "params": ("round", "parameter"),
    "model": ("parameter",),
}


@pytest.fixture
def path(tmp_path) -> Path:
    """A finished run of six rounds with two stored models."""
    path = tmp_path / "run.h5"
    writer = create_run(path)
    add_rounds(writer, 0, 6)
    for t, loss in [(0, 2.5), (3, 0.1), (6, np.nan)]:
        writer.add("eval", t, loss, 0.5, 1 / 3, 0.25, 0.25 * t)
    writer.add_snapshot(3, INITIAL / 3)
    writer.add_snapshot(6, INITIAL / 7)
    writer.flush(INITIAL / 7, status="done")
    return path


def datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """All datasets of a file by their path."""
    found = {}
    file.visititems(
        lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None
    )
    return found


# Layout.


def test_layout(path):
    """The file has the groups, datasets, kinds of numbers and root attributes of the public layout."""
    with h5py.File(path) as file:
        assert set(file) == set(LAYOUT)
        assert set(file.attrs) >= ROOT_ATTRIBUTES
        assert (file.attrs["format"], file.attrs["format_version"]) == ("fedmpi-run", 1)
        assert file.attrs["status"] == "done"
        for group, columns in LAYOUT.items():
            assert set(file[group]) >= set(columns)
            for name, (kind, _) in columns.items():
                assert file[group][name].dtype.kind == kind, f"{group}/{name}"
        for name in ("train/weighted_sum_norm", "eval/train_loss", "participation/weight"):
            assert file[name].dtype == np.float64
        assert file["params/global_params"].dtype == file["model/global_params"].dtype == np.float64
        assert file["model"].attrs["parameters"] == PARAMETERS


def test_every_dataset_explains_itself(path):
    """Every dataset carries units and a description."""
    with h5py.File(path) as file:
        for name, data in datasets(file).items():
            assert data.attrs.get("units"), f"{name} has no units"
            assert len(data.attrs.get("description", "")) > 5, f"{name} has no description"
        for group, columns in LAYOUT.items():
            for name, (_, units) in columns.items():
                assert file[group][name].attrs["units"] == units


def test_dimension_scales_are_attached(path):
    """Every dimension of every dataset has its scale attached and named."""
    with h5py.File(path) as file:
        for group, dimensions in DIMENSIONS.items():
            for name in dimensions:
                assert file[group][name].is_scale, f"{group}/{name}"
            for name in set(file[group]) - set(dimensions):
                data = file[group][name]
                assert [dim.label for dim in data.dims] == list(dimensions)
                for dim, scale in zip(data.dims, dimensions, strict=True):
                    assert dim[0] == file[group][scale]
                    assert len(file[group][scale]) == data.shape[dimensions.index(scale)]


def test_params_only_when_recorded(tmp_path):
    """/params exists only where models were recorded; load_run gives None for it otherwise."""
    path = finished_run(tmp_path / "run.h5")
    with h5py.File(path) as file:
        assert set(file) == set(LAYOUT) - {"params"}
    assert load_run(path).params is None


# Values.

TRAIN = {
    "round": [0, 1, 2, 3, 4, 5],
    "participants": [2] * 6,
    "weighted_sum_norm": [0.5, 0.25, 0.5 / 3, 0.125, 0.1, 0.5 / 6],
    "is_amplification": [False, False, True, False, False, True],
    "wall_time_s": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5],
    "compute_time_s": [0.125] * 6,
    "comm_time_s": [0.0625] * 6,
    "idle_time_s": [0.03125] * 6,
}
EVAL = {
    "round": [0, 3, 6],
    "train_loss": [2.5, 0.1, np.nan],
    "train_accuracy": [0.5] * 3,
    "test_loss": [1 / 3] * 3,
    "test_accuracy": [0.25] * 3,
    "wall_time_s": [0.0, 0.75, 1.5],
}
PARTICIPATION = {
    "round": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
    "client": [0, 3, 1, 4, 2, 5, 3, 6, 4, 0, 5, 1],
    "weight": [0.25, 0.75] * 6,
}
CLIENTS = {
    "client": [0, 1, 2, 3, 4, 5, 6],
    "size": [60, 61, 62, 63, 64, 65, 66],
    "majority_label": [6, 5, 4, 3, 2, 1, 0],
    "rank": [0, 1, 2, 0, 1, 2, 0],
}
TABLES = {"train": TRAIN, "eval": EVAL, "participation": PARTICIPATION, "clients": CLIENTS}


def test_values_survive(path):
    """load_run gives every value as it was written, bit for bit."""
    run = load_run(path)
    assert (run.status, run.name, run.path) == ("done", "small", path)
    assert run.config == tomllib.loads(attributes()["config"])
    for table, columns in TABLES.items():
        frame = getattr(run, table)
        assert list(frame.columns)[: len(columns)] == list(columns)
        for name, values in columns.items():
            np.testing.assert_array_equal(frame[name], values, err_msg=f"{table}/{name}")
    for name, value in attributes().items():
        np.testing.assert_array_equal(run.attributes[name], value)
    np.testing.assert_array_equal(run.global_params, INITIAL / 7)
    rounds, params = run.params
    assert rounds.tolist() == [3, 6]
    np.testing.assert_array_equal(params, [INITIAL / 3, INITIAL / 7])
    assert {name: p.tolist() for name, p in run.parameters().items()} == {
        "weight": [[0.0, 1 / 7], [2 / 7, 3 / 7]],
        "bias": [4 / 7],
    }


@pytest.mark.parametrize("group", TABLES)
def test_xarray_reads_tables(path, group):
    """xarray opens each table along its dimension, with values and units, times as plain numbers."""
    with xarray.open_dataset(path, group=group, engine="h5netcdf") as data:
        (dimension,) = DIMENSIONS[group]
        assert dict(data.sizes) == {dimension: len(TABLES[group][dimension])}
        assert set(data.variables) >= set(LAYOUT[group])
        assert set(data.coords) == {dimension}
        for name, values in TABLES[group].items():
            np.testing.assert_array_equal(data[name].values, values, err_msg=name)
            assert data[name].attrs["units"] == LAYOUT[group][name][1]
            assert data[name].dtype.kind in ("i", "f", "b")


def test_xarray_reads_models(path):
    """xarray opens /params along round and parameter, and /model along parameter."""
    with xarray.open_dataset(path, group="params", engine="h5netcdf") as data:
        assert dict(data.sizes) == {"round": 2, "parameter": 5}
        assert data["round"].values.tolist() == [3, 6]
        np.testing.assert_array_equal(data.global_params.sel(round=6), INITIAL / 7)
    with xarray.open_dataset(path, group="model", engine="h5netcdf") as data:
        assert dict(data.sizes) == {"parameter": 5}
        np.testing.assert_array_equal(data.global_params, INITIAL / 7)
        assert data.attrs["parameters"] == PARAMETERS


def test_many_flushes(tmp_path):
    """Rows written in many small flushes are the same as rows written in one; snapshots too."""
    writer = create_run(tmp_path / "run.h5")
    for t in range(30):
        add_rounds(writer, t, t + 1)
        writer.add_snapshot(t, INITIAL * t)
        writer.flush(INITIAL * t)
    run = load_run(tmp_path / "run.h5")
    assert run.train["round"].tolist() == list(range(30))
    assert len(run.participation) == 60
    assert run.params[0].tolist() == list(range(30))
    np.testing.assert_array_equal(run.params[1], np.arange(30)[:, None] * INITIAL)


def test_snapshots_are_copies(tmp_path):
    """A stored model is the one of its round, though the vector goes on changing."""
    writer = create_run(tmp_path / "run.h5")
    vector = INITIAL.copy()
    writer.add_snapshot(1, vector)
    vector += 1
    writer.flush(vector)
    np.testing.assert_array_equal(load_run(tmp_path / "run.h5").params[1], [INITIAL])


def test_round_without_participants(tmp_path):
    """A round without clients has a row in /train and none in /participation."""
    writer = create_run(tmp_path / "run.h5")
    writer.add("train", 0, 0, 0.0, False, 0.1, 0.0, 0.0, 0.0)
    writer.add("participation", 0, np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    writer.flush(INITIAL)
    run = load_run(tmp_path / "run.h5")
    assert (len(run.train), len(run.participation)) == (1, 0)


def test_reopened_file_goes_on(tmp_path):
    """A file is cut back to the rows that a checkpoint names, and rows are written once."""
    path = tmp_path / "run.h5"
    writer = create_run(path)
    add_rounds(writer, 0, 3)
    writer.add_snapshot(3, INITIAL)
    writer.flush(INITIAL)
    rows = dict(writer.rows)
    add_rounds(writer, 3, 5)
    writer.add("eval", 5, 1.0, 0.5, 1.0, 0.5, 2.0)
    writer.add_snapshot(5, INITIAL)
    writer.flush(INITIAL, status="stopped")

    writer = RunWriter.reopen(path, rows, {"num_ranks": 9})
    run = load_run(path)
    assert (run.status, run.attributes["num_ranks"]) == ("running", 9)
    assert (len(run.train), len(run.participation), len(run.eval), len(run.clients)) == (3, 6, 0, 7)
    assert run.params[0].tolist() == [3]
    add_rounds(writer, 3, 6)
    writer.flush(INITIAL)
    run = load_run(path)
    assert run.train["round"].tolist() == TRAIN["round"]
    assert run.participation["client"].tolist() == PARTICIPATION["client"]


def test_long_config(tmp_path):
    """A config of 200 kB is stored whole and can be read by load_run and xarray."""
    long = attributes()
    long["config"] += "".join(f"# {i:06d} some long remark in the config\n" for i in range(5000))
    assert len(long["config"]) > 200_000
    path = tmp_path / "run.h5"
    writer = RunWriter.create(path, long, PARAMETERS, INITIAL)
    add_rounds(writer, 0, 2)
    writer.flush(INITIAL)
    assert load_run(path).attributes["config"] == long["config"]
    with xarray.open_dataset(path, group="train", engine="h5netcdf") as data:
        assert data["round"].values.tolist() == [0, 1]


def test_many_ranks(tmp_path):
    """The names of ten thousand ranks' hosts fit."""
    many = attributes() | {"host_names": [f"node{i:05d}.cluster.example" for i in range(10_000)]}
    RunWriter.create(tmp_path / "run.h5", many, PARAMETERS, INITIAL)
    assert load_run(tmp_path / "run.h5").attributes["host_names"].tolist() == many["host_names"]


def test_reading_needs_neither_torch_nor_mpi(path):
    """load_run works in a process that never loads torch, mpi4py or matplotlib."""
    code = (
        "import sys, fedmpi; run = fedmpi.load_run(sys.argv[1]); print(len(run.train), "
        "[name for name in ('torch', 'mpi4py', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert result.stdout == "6 []\n", result.stderr


# Reading while a run goes on.


def test_file_is_whole_from_the_start(tmp_path):
    """Before the first round the file can be read: running, no rows, the initial model."""
    path = tmp_path / "run.h5"
    writer = create_run(path)
    run = fedmpi.load_run(path)
    assert run.status == "running"
    assert (len(run.train), len(run.eval), len(run.clients)) == (0, 0, 7)
    np.testing.assert_array_equal(run.global_params, INITIAL)
    add_rounds(writer, 0, 4)
    assert len(load_run(path).train) == 0
    writer.flush(INITIAL + 1)
    run = load_run(path)
    assert (run.status, len(run.train)) == ("running", 4)
    np.testing.assert_array_equal(run.global_params, INITIAL + 1)


def test_reader_in_this_process_does_not_block(tmp_path):
    """A reader with HDF5's default locking may hold the file open while the writer flushes."""
    path = tmp_path / "run.h5"
    writer = create_run(path)
    with h5py.File(path, "r") as held, xarray.open_dataset(path, group="train", engine="h5netcdf") as data:
        add_rounds(writer, 0, 3)
        writer.flush(INITIAL)
        assert len(load_run(path).train) == 3
        assert len(held["train/round"]) == 0, "a reader's view changed under its hands"
        assert data.sizes["round"] == 0


HOLD_OPEN = """
import sys, h5py
with h5py.File(sys.argv[1], "r") as file:
    print(len(file["train/round"]), flush=True)
    sys.stdin.readline()
    print(file["clients/size"][()].sum())
"""


def test_reader_in_another_process_does_not_block(tmp_path):
    """Another process may hold the file open, with locks, while the writer flushes."""
    path = tmp_path / "run.h5"
    writer = create_run(path)
    environment = {k: v for k, v in os.environ.items() if k != "HDF5_USE_FILE_LOCKING"}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_OPEN, path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as reader:  # fmt: skip
        assert reader.stdout.readline() == "0\n"
        add_rounds(writer, 0, 3)
        writer.flush(INITIAL)
        assert len(load_run(path).train) == 3
        rest, _ = reader.communicate("go on\n", timeout=30)
    assert rest == "441\n"  # 60 + 61 + ... + 66


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from tests.support.run_files import INITIAL, add_rounds, create_run
writer = create_run(Path(sys.argv[1]))
for t in range(10**9):
    add_rounds(writer, t, t + 1)
    writer.flush(INITIAL)
    print(t, flush=True)
"""


@pytest.mark.parametrize("rounds", [1, 7, 20])
def test_kill_leaves_a_readable_file(tmp_path, rounds):
    """A writer killed at any moment leaves a file with all that it had flushed."""
    path = tmp_path / "run.h5"
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, path], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        for _ in range(rounds):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    run = load_run(path)
    assert len(run.train) > last
    assert run.train["round"].tolist() == list(range(len(run.train)))
    assert len(run.participation) == 2 * len(run.train)
    assert run.status == "running"


def test_remains_of_a_killed_run_do_no_harm(tmp_path):
    """A left-over partial file is neither used nor kept."""
    path = tmp_path / "run.h5"
    finished_run(tmp_path / "old.h5")
    left_over = tmp_path / ".run.h5.partial"
    os.rename(tmp_path / "old.h5", left_over)
    check_target(path, force=False)
    create_run(path)
    assert len(load_run(path).train) == 0
    assert os.listdir(tmp_path) == ["run.h5"]


def test_flushes_are_paced(tmp_path, monkeypatch):
    """Flushes come two seconds apart, or a hundred times as far apart as one takes."""
    now = [100.0]
    cost = [0.0]
    writer = create_run(tmp_path / "run.h5")
    replace = os.replace

    def slow_replace(*names: object) -> None:
        now[0] += cost[0]
        replace(*names)

    monkeypatch.setattr(os, "replace", slow_replace)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def rows_after(seconds: float) -> int:
        now[0] += seconds
        if writer.is_flush_due:
            writer.flush(INITIAL)
        return len(load_run(tmp_path / "run.h5").train)

    writer.flush(INITIAL)
    add_rounds(writer, 0, 1)
    assert rows_after(1.9) == 0
    cost[0] = 0.5
    assert rows_after(0.2) == 1
    add_rounds(writer, 1, 2)
    assert rows_after(49.0) == 1
    assert rows_after(1.1) == 2


# Failures while writing.


def _fail(*arguments: object, **options: object) -> None:
    raise OSError(28, "No space left on device")


FAILURES = {"open": (builtins, "open"), "sync": (os, "fsync"), "rename": (os, "replace")}


@pytest.mark.parametrize("step", FAILURES)
def test_failed_flush_can_be_repeated(tmp_path, monkeypatch, step):
    """A flush that fails leaves the earlier file intact; its rows are written once by the next flush."""
    path = tmp_path / "run.h5"
    writer = create_run(path)
    add_rounds(writer, 0, 2)
    writer.add_snapshot(2, INITIAL)
    writer.flush(INITIAL + 1)
    before = path.read_bytes()

    add_rounds(writer, 2, 5)
    writer.add_snapshot(5, INITIAL)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(*FAILURES[step], _fail)
            with pytest.raises(UserError, match=r"run\.h5: No space left on device; .* kept"):
                writer.flush(INITIAL + 2, status="done")
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["run.h5"]

    add_rounds(writer, 5, 6)
    writer.flush(INITIAL + 3, status="done")
    run = load_run(path)
    assert run.train["round"].tolist() == [0, 1, 2, 3, 4, 5]
    assert run.participation["round"].tolist() == PARTICIPATION["round"]
    assert run.params[0].tolist() == [2, 5]
    assert run.status == "done"
    np.testing.assert_array_equal(run.global_params, INITIAL + 3)


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from fedmpi.errors import UserError
from fedmpi.storage.reader import load_run
from tests.support.run_files import INITIAL, add_rounds, create_run

path, room = Path(sys.argv[1]), int(sys.argv[2])
writer = create_run(path)
add_rounds(writer, 0, 3)
writer.flush(INITIAL)
before = path.read_bytes()
weights = np.random.default_rng(1).random(30_000)  # 240 kB that cannot be packed
writer.add("participation", 3, np.arange(30_000), weights, 0.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, resource.RLIM_INFINITY))
try:
    writer.flush(INITIAL)
except UserError as error:
    print("file too large" in str(error).lower())
assert path.read_bytes() == before
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.flush(INITIAL)
run = load_run(path)
print(len(run.participation), run.participation.weight[6:].tolist() == weights.tolist())
"""


@pytest.mark.parametrize("room", [0, 1000, 60_000, 200_000])
def test_full_disk(tmp_path, room):
    """A disk that fills up in mid-flush is a UserError; the run goes on where there is room again."""
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path / "run.h5", str(room)],
        capture_output=True, text=True, timeout=60, cwd=root,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "True\n30006 True\n"), result.stderr[-2000:]
    assert os.listdir(tmp_path) == ["run.h5"]


def test_failed_creation_leaves_nothing(tmp_path, monkeypatch):
    """A result file that cannot be created leaves no trace."""
    monkeypatch.setattr(os, "replace", _fail)
    with pytest.raises(UserError, match=r"cannot write .*run\.h5: No space left"):
        create_run(tmp_path / "run.h5")
    assert os.listdir(tmp_path) == []


# Files that cannot be read.


def _edit(action: object) -> object:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            action(file)

    return damage


def _flip_stored_byte(path: Path) -> None:
    """Change one byte among the packed bytes of a column."""
    with h5py.File(path, "r") as file:
        chunk = file["train/weighted_sum_norm"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + 2] ^= 0xFF
    path.write_bytes(data)


def _foreign(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["table"] = [1.0, 2.0]


DAMAGE = {
    "missing": (lambda path: path.unlink(), "no such file"),
    "directory": (lambda path: (path.unlink(), path.mkdir()), "is a folder"),
    "empty": (lambda path: os.truncate(path, 0), "not a readable HDF5 file"),
    "text": (lambda path: path.write_text("round,loss\n"), "not a readable HDF5 file"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 100), "not a readable HDF5 file"),
    "foreign HDF5": (_foreign, "format None.*accepted is 'fedmpi-run'"),
    "prepared data": (_edit(lambda f: f.attrs.update(format="fedmpi-data")), "format 'fedmpi-data'"),
    "newer": (_edit(lambda f: f.attrs.update(format_version=3)), "version 3.*up to version 2"),
    "version as text": (_edit(lambda f: f.attrs.update(format_version="one")), "version one; accepted"),
    "missing table": (_edit(lambda f: f.pop("eval")), "not complete .*'eval'"),
    "missing column": (_edit(lambda f: f["train"].pop("wall_time_s")), "not complete .*'wall_time_s'"),
    "missing config": (_edit(lambda f: f.attrs.pop("config")), r"not complete \('config'\)"),
    "broken config": (_edit(lambda f: f.attrs.update(config="[run")), r"not complete \(Expected '\]'"),
    "flipped byte": (_flip_stored_byte, "do not match its checksum"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_unreadable_files(path, kind):
    """A file that is missing, foreign, damaged or newer is a UserError with its name and the reason."""
    damage, message = DAMAGE[kind]
    damage(path)
    with pytest.raises(UserError, match=message) as caught:
        load_run(path)
    assert str(path) in str(caught.value)


def test_peek(path, tmp_path):
    """`peek` gives status and rounds of a run, and None for anything else."""
    assert peek(path) == {"status": "done", "rounds": 6}
    assert peek(tmp_path / "nothing.h5") is None
    _foreign(tmp_path / "foreign.h5")
    assert peek(tmp_path / "foreign.h5") is None


# Where a run may be written.


def test_existing_run_is_refused(path):
    """An existing run is not overwritten unless forced; the message says what it holds."""
    before = path.read_bytes()
    with pytest.raises(UserError, match=r'status "done", 6 rounds.*--force'):
        check_target(path, force=False)
    check_target(path, force=True)
    assert path.read_bytes() == before, "checking alone must not touch it"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["text", "foreign", "directory"])
def test_foreign_file_is_refused(tmp_path, kind, force):
    """A file that is no run is never overwritten, forced or not."""
    path = tmp_path / "thesis.h5"
    if kind == "text":
        path.write_text("three years of work")
    elif kind == "foreign":
        _foreign(path)
    else:
        path.mkdir()
    with pytest.raises(UserError, match="is not a fedmpi run file; choose another name"):
        check_target(path, force=force)
    assert path.exists()


@pytest.mark.parametrize("place", ["file.txt/run.h5", "file.txt/below/run.h5"])
def test_path_below_a_file_is_refused(tmp_path, place):
    """A path that cannot be a folder is refused before anything is computed."""
    (tmp_path / "file.txt").write_text("not a folder")
    with pytest.raises(UserError, match="cannot write there"):
        check_target(tmp_path / place, force=False)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to write everywhere, for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o555, 0o444, 0o000], ids=["not writable", "not searchable", "closed"])
def test_folder_without_permission_is_refused(mode):
    """A folder in which one may not write, or not even look, is refused before anything is computed."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, mode)
        try:
            with as_nobody(), pytest.raises(UserError, match="Permission denied"):
                check_target(Path(folder) / "run.h5", force=False)
        finally:
            os.chmod(folder, 0o700)


@pytest.mark.parametrize("length", [250, 300])
def test_too_long_name_is_refused(tmp_path, length):
    """A name that the file system does not take is refused, by writer and reader."""
    path = tmp_path / ("x" * length)
    with pytest.raises(UserError, match="cannot write there"):
        check_target(path, force=False)
    with pytest.raises(UserError, match="run file"):
        load_run(path)


def test_missing_folders_are_made(tmp_path):
    """Folders of the result file are made; nothing else is left there by the check."""
    check_target(tmp_path / "a" / "b" / "run.h5", force=False)
    assert os.listdir(tmp_path / "a" / "b") == []
