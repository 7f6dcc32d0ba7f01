"""A disk that fails at any single operation: a sentence, and results from which the run goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fedmpi
from fedmpi.results.compare import first_difference
from fedmpi.storage import rows, segments
from fedmpi.storage.reader import peek
from tests.support.bad_disk import bad_disk

# Results, a table of what clients remember, two checkpoints.
WORDS = (
    "--set", "run.num_rounds=3", "--set", "run.checkpoint_every=2", "--set", "run.eval_every=0",
    "--set", "algorithm.name=scaffold",
)  # fmt: skip


def test_every_single_write_in_turn(fedmpi_cli, small_config, tmp_path, monkeypatch):
    """The k-th fails, for k = 1, 2, ... until the run passes: status 1 and the reason; what is there can be
    read, and goes on to the bits of a run without a fault. Rows are put away in segments.
    """
    monkeypatch.setattr(rows, "_CHUNK_ROWS", 4)
    monkeypatch.setattr(segments, "_MOST_BYTES", 250)
    assert fedmpi_cli("run", small_config, "--out", "whole.h5", *WORDS).returncode == 0
    whole, failed, states = fedmpi.load_run(tmp_path / "whole.h5"), [], []
    for k in range(1, 200):
        folder = tmp_path / str(k)
        folder.mkdir()
        with bad_disk(folder, k) as disk:
            done = fedmpi_cli("run", small_config, "--out", f"{k}/r.h5", *WORDS)
        if not disk.failed:
            break

        # Status and sentence.
        failed.append(disk.failed)
        assert done.returncode == 1, (k, disk.failed, done.stderr)
        assert f"cannot write {k}/r.h5" in done.stderr, (k, disk.failed)
        assert "what was written before is kept" in done.stderr
        assert "Traceback" not in done.stderr

        # On a disk that is well again the run goes on, or begins; once for each state that is left.
        left = {path.name: _rounds(path) for path in folder.iterdir()}
        if left in states:
            continue
        states.append(left)
        if (folder / "r.h5").exists():
            assert fedmpi.load_run(folder / "r.h5").status in ("running", "done")
            again = fedmpi_cli("resume", f"{k}/r.h5")
        else:
            again = fedmpi_cli("run", small_config, "--out", f"{k}/r.h5", *WORDS)
        assert again.returncode == 0, (k, disk.failed, again.stderr)
        run = fedmpi.load_run(folder / "r.h5")
        assert first_difference(run, whole) is None, (k, disk.failed)
        assert run.clients.equals(whole.clients), (k, disk.failed)
    assert done.returncode == 0, done.stderr
    assert {"write", "fsync", "replace", "pwrite"} <= set(failed)
    assert len(failed) > 20
    assert any("r.h5.rows-1" in left for left in states)


_LARGE = """
import resource
from pathlib import Path
import numpy as np
from fedmpi.errors import OutputError
from fedmpi.storage.files import is_sealed, replacing
from fedmpi.storage.columns import TABLES
from fedmpi.storage.rows import create_table, extend

path, draws, refused = Path("large.h5"), np.random.default_rng(0), 0
path.write_text("older")
for limit in [*range(2_000, 300_000, 6_000), resource.RLIM_INFINITY]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with replacing(path, on_disk=True) as file:
            file["table"] = draws.random((1_000, 10))
            create_table(file.create_group("participation"), TABLES["participation"])
            for column in file["participation"].values():
                extend(column, draws.integers(0, 10**6, 9_000))
    except OutputError as error:
        refused += "cannot write large.h5: File too large; what was" in str(error)
        assert path.read_text() == "older"
    assert [name.name for name in Path().iterdir()] == ["large.h5"]
assert is_sealed(path)
print(refused)
"""


def test_a_disk_that_is_full_below_a_large_file(tmp_path):
    """Files that are written piece by piece, not from memory: at whatever byte the disk is full, HDF5 does
    not crash, and the older file stays.
    """
    done = subprocess.run([sys.executable, "-c", _LARGE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert int(done.stdout) > 30


def _rounds(path: Path) -> tuple | None:
    """What a result file says of itself; None of other files."""
    found = peek(path) if path.suffix == ".h5" else None
    return found and (found["status"], found["rounds"])
