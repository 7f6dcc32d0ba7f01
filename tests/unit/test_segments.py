"""Long result files: rows in segments, joined by readers and at the end."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

import fedmpi
from fedmpi.errors import UserError
from fedmpi.storage import rows as row_files
from fedmpi.storage import segments
from fedmpi.storage.files import read_sealed
from fedmpi.storage.reader import load_run
from fedmpi.storage.writer import RunWriter
from tests.support.configs import SMALL
from tests.support.run_files import INITIAL, create_run

CLIENTS = np.arange(40)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """A few rounds are too much."""
    monkeypatch.setattr(row_files, "_CHUNK_ROWS", 64)
    monkeypatch.setattr(segments, "_MOST_BYTES", 4500)


def add_rounds(writer: RunWriter, first: int, last: int, *, flush: bool = True) -> None:
    """Rounds with 40 clients each, an evaluation and a snapshot, flushed one by one."""
    for t in range(first, last):
        writer.add("train", t, 40, 0.5 / (t + 1), False, 0.25 * t, 0.125, 0.0625, 0.03125)
        writer.add("participation", t, CLIENTS, CLIENTS / 7 + t, 2.5)
        writer.add("eval", t, 1.0 / (t + 1), 0.5, 2.0, 0.5, 0.25 * t)
        writer.add_snapshot(t, INITIAL + t)
        if flush:
            writer.flush(INITIAL + t)


def contents(path: Path) -> list:
    """All rows, the model and the attributes that matter."""
    run = load_run(path)
    columns = [table.to_dict("list") for table in (run.train, run.participation, run.eval, run.clients)]
    return [
        *columns,
        run.global_params.tolist(),
        *(part.tolist() for part in run.params),
        run.attributes["run_id"],
    ]


def parts(path: Path) -> list[str]:
    """The names of the segments on disk."""
    return sorted(file.name for file in path.parent.glob(f"{path.name}.rows-*"))


@pytest.fixture
def plain(tmp_path, monkeypatch) -> Path:
    """Nine rounds in one file."""
    with monkeypatch.context() as patched:
        patched.setattr(segments, "_MOST_BYTES", 1 << 40)
        writer = create_run(tmp_path / "plain.h5")
        add_rounds(writer, 0, 9)
    return writer.path


@pytest.fixture
def long(tmp_path) -> RunWriter:
    """The same rounds with their rows put away."""
    writer = create_run(tmp_path / "long.h5")
    add_rounds(writer, 0, 9)
    return writer


def test_readers_join_segments(plain, long):
    """A file in segments reads as one that has all rows, in every way of reading."""
    assert len(parts(long.path)) >= 2
    assert contents(long.path) == contents(plain)
    for table in ("eval", "train", "participation", "clients"):
        one, other = fedmpi.load_runs([long.path], table), fedmpi.load_runs([plain], table)
        assert one.drop(columns="file").equals(other.drop(columns="file"))
    assert segments.count_all_rows(h5py.File(long.path)) == long.rows
    assert long.rows["participation"] == 360


def test_a_flush_does_not_write_old_rows_again(long):
    """Segments stay as they are, and the file that is written at each flush does not grow with the run."""
    first = [(long.path.with_name(name).stat().st_mtime_ns, name) for name in parts(long.path)]
    sizes = []
    for t in range(9, 30):
        add_rounds(long, t, t + 1)
        sizes.append(long.path.stat().st_size)
    assert [(long.path.with_name(name).stat().st_mtime_ns, name) for _, name in first] == first
    assert max(sizes[10:]) <= 1.3 * max(sizes[:10])
    assert len(parts(long.path)) >= 6
    assert len(load_run(long.path).participation) == 1200


@pytest.mark.parametrize("in_memory", [1 << 40, 0], ids=["in memory", "on disk"])
def test_in_the_end_there_is_one_ordinary_file(plain, long, monkeypatch, in_memory):
    """Sealed, of the format's first version, readable by other tools, without segments beside it."""
    monkeypatch.setattr(segments, "_IN_MEMORY", in_memory)
    long.close()
    assert parts(long.path) == []
    assert contents(long.path) == contents(plain)
    assert hashlib.sha256(read_sealed(long.path)).digest() == long.path.read_bytes()[-32:]
    with h5py.File(long.path) as file:
        assert file.attrs["format_version"] == 1
        assert "segments" not in file.attrs
    with xarray.open_dataset(long.path, group="participation", engine="h5netcdf") as data:
        assert data.client.values.tolist() == 9 * CLIENTS.tolist()


@pytest.mark.parametrize("completed", [0, 3, 6, 8])
def test_a_file_is_cut_back_to_a_checkpoint(tmp_path, completed):
    """Whichever segment the checkpoint's last row is in; then it goes on as if it had never been longer."""
    writer = create_run(tmp_path / "run.h5")
    add_rounds(writer, 0, completed)
    rows = dict(writer.rows)
    add_rounds(writer, completed, 9)
    writer = RunWriter.reopen(writer.path, rows, {"num_ranks": 5})
    assert len(load_run(writer.path).participation) == 40 * completed
    add_rounds(writer, completed, 9)
    other = create_run(tmp_path / "other.h5")
    add_rounds(other, 0, 9)
    assert contents(writer.path) == contents(other.path)
    writer.close()
    assert contents(writer.path) == contents(other.path)


class Killed(BaseException):
    """As a kill: nothing handles it."""


@pytest.mark.parametrize("doing", ["flush", "close", "reopen"])
def test_a_kill_at_any_moment_loses_nothing(tmp_path, monkeypatch, doing):
    """Whatever file was about to appear or go, the run is readable, with the rows of before or after."""
    for moment in range(20):
        writer = create_run(tmp_path / f"run-{moment}.h5")
        add_rounds(writer, 0, 7)
        rows = dict(writer.rows)
        add_rounds(writer, 7, 8)
        before = contents(writer.path)
        add_rounds(writer, 8, 9, flush=False)
        is_over = True
        with monkeypatch.context() as patched:
            _kill_at(patched, moment)
            try:
                if doing == "flush":
                    patched.setattr(segments, "_MOST_BYTES", 100)
                    writer.flush(INITIAL + 8)
                elif doing == "close":
                    writer.close()
                else:
                    RunWriter.reopen(writer.path, rows, {})
            except Killed:
                is_over = False
        after = contents(writer.path)
        counts = len(before[1]["round"]), len(after[1]["round"])
        assert counts[1] in {"flush": (320, 360), "close": (320,), "reopen": (320, 280)}[doing]
        assert after[1]["weight"] == (CLIENTS / 7 + np.arange(counts[1] // 40)[:, None]).flatten().tolist()

        # And it can be reopened, and goes on.
        RunWriter.reopen(writer.path, rows, {}).close()
        assert len(load_run(writer.path).participation) == 280
        if is_over:
            assert moment >= 2
            return
    raise AssertionError


def _kill_at(patched, moment: int) -> None:
    """End the process, as it were, before the n-th file is renamed or removed."""
    left = [moment]

    def counted(function):
        def call(*args, **kwargs):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*args, **kwargs)

        return call

    patched.setattr(os, "replace", counted(os.replace))
    unlink = Path.unlink
    patched.setattr(
        Path,
        "unlink",
        lambda self, **k: counted(unlink)(self, **k) if ".rows-" in self.name else unlink(self, **k),
    )


def test_a_missing_segment_is_named(long):
    """Who copies the file alone is told what is missing."""
    long.path.with_name("long.h5.rows-2").unlink()
    with pytest.raises(UserError, match=r"long\.h5\.rows-2, which is missing; copy it too"):
        load_run(long.path)


def test_a_damaged_or_foreign_segment_is_refused(long, tmp_path):
    """A segment has a checksum, and belongs to one run."""
    place = long.path.with_name("long.h5.rows-1")
    data = bytearray(place.read_bytes())
    data[40] ^= 1
    whole = place.read_bytes()
    place.write_bytes(data)
    with pytest.raises(UserError, match="checksum"):
        load_run(long.path)
    place.write_bytes(long.path.with_name("long.h5.rows-2").read_bytes()[:-40])
    with pytest.raises(UserError, match="not a part of a run file, or truncated"):
        load_run(long.path)
    place.write_bytes(whole)
    with h5py.File(long.path, "r+") as file:
        file.attrs["run_id"] = "another"
    with pytest.raises(UserError, match="belongs to another run"):
        load_run(long.path)


def test_a_reader_that_comes_while_the_file_is_joined(long, monkeypatch):
    """It has opened the old file, whose segments go: it reads the new one."""
    whole, expected = segments._opened, contents(long.path)

    def later(*args, **kwargs):
        monkeypatch.setattr(segments, "_opened", whole)
        long.close()
        yield from whole(*args, **kwargs)

    monkeypatch.setattr(segments, "_opened", later)
    assert contents(long.path) == expected


def test_a_run_in_segments_is_stopped_and_resumed(tmp_path, fedmpi_cli, monkeypatch):
    """A stopped run keeps its segments; resumed, it ends as one file with the rows of a run in one go."""
    monkeypatch.setattr(segments, "_MOST_BYTES", 100)
    config = tmp_path / "small.toml"
    config.write_text(SMALL)
    settings = [
        "--set",
        "run.num_rounds=6",
        "--set",
        "run.record_params_every=1",
        "--set",
        "run.checkpoint_every=2",
    ]
    fedmpi_cli("run", config, "--out", tmp_path / "whole.h5", *settings)
    monkeypatch.setattr("fedmpi.storage.writer.RunWriter.close", lambda self: None)
    fedmpi_cli("run", config, "--out", tmp_path / "cut.h5", *settings, "--set", "run.num_rounds=3")
    assert parts(tmp_path / "cut.h5")
    monkeypatch.undo()
    monkeypatch.setattr(segments, "_MOST_BYTES", 100)
    fedmpi_cli("resume", tmp_path / "cut.h5", "--set", "run.num_rounds=6")
    one, other = load_run(tmp_path / "whole.h5"), load_run(tmp_path / "cut.h5")
    assert parts(tmp_path / "cut.h5") == []
    assert one.params[1].tolist() == other.params[1].tolist()
    assert one.participation.equals(other.participation)
    assert one.train["weighted_sum_norm"].equals(other.train["weighted_sum_norm"])
