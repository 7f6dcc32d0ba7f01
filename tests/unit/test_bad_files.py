"""Files that are no runs, or not whole: every command that reads results says so in a sentence."""

from __future__ import annotations

import os
import re
import shutil

import h5py
import numpy as np
import pytest

import fedmpi
from fedmpi.errors import UserError
from tests.support.run_files import create_run, finished_run


def _missing(path) -> None:
    path.unlink()


def _folder(path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside.txt").write_text("no run")


def _half(path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _other(path) -> None:
    path.unlink()
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)


def _newer(path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = np.int64(99)


def _no_table(path) -> None:
    with h5py.File(path, "r+") as file:
        del file["eval"]


BAD = {
    "missing": (_missing, "no such file"),
    "folder": (_folder, "is a folder|holds no .h5 file"),
    "half-written": (_half, r"truncated to [\d,]+ of [\d,]+ bytes"),
    "empty": (lambda path: path.write_bytes(b""), "it is empty"),
    "text": (lambda path: path.write_text("round,loss\n"), "it is some other kind of file"),
    "other HDF5": (_other, "format None, .*it holds something else"),
    "newer version": (_newer, "version 99; .*a newer fedmpi wrote it"),
    "without a table": (_no_table, "damaged, or not complete"),
}
COMMANDS = {
    "plot": ("plot", "r.h5", "--out", "f.png"),
    "timing": ("plot", "r.h5", "--out", "f.png", "--preset", "timing"),
    "trajectory": ("plot", "r.h5", "--out", "f.png", "--trajectory"),
    "report": ("report", "r.h5", "--out", "r.html"),
    "export": ("export", "r.h5", "--out", "t.csv"),
    "watch": ("watch", "r.h5", "--once"),
    "info": ("info", "r.h5"),
}


@pytest.mark.parametrize("kind", BAD)
def test_every_command_says_what_is_wrong(fedmpi_cli, tmp_path, kind):
    """The file is named with the reason, the status is 2, nothing is written."""
    spoil, reason = BAD[kind]
    spoil(finished_run(tmp_path / "r.h5"))
    before = sorted(tmp_path.rglob("*"))
    for command in COMMANDS.values():
        done = fedmpi_cli(*command)
        assert done.returncode == 2, command
        assert done.stderr.startswith("fedmpi: error: ")
        assert "r.h5" in done.stderr
        assert re.search(reason, done.stderr), done.stderr
    assert sorted(tmp_path.rglob("*")) == before
    for load in (fedmpi.load_run, fedmpi.load_runs):
        with pytest.raises(UserError, match=reason):
            load(tmp_path / "r.h5")


@pytest.mark.parametrize(
    ("command", "code"), [("plot", 2), ("export", 2), ("report", 0), ("watch", 0), ("info", 0)]
)
def test_run_without_evaluations(fedmpi_cli, tmp_path, command, code):
    """There is nothing to draw or to export; what shows the state of a run shows that it has begun."""
    create_run(tmp_path / "r.h5")
    done = fedmpi_cli(*COMMANDS[command])
    assert done.returncode == code
    assert ("none of the runs holds" in done.stderr) == (code == 2)


@pytest.mark.parametrize("command", ["plot", "report", "export", "watch"])
def test_bad_files_among_good_ones(fedmpi_cli, tmp_path, command):
    """A folder with every kind of bad file: the two good runs are shown, each bad file is named."""
    folder = tmp_path / "r.h5"  # a folder that is called as the commands want it
    folder.mkdir()
    finished_run(folder / "a.h5")
    finished_run(folder / "b.h5", "algorithm.local_lr=0.5")
    kinds = [kind for kind in BAD if kind not in ("missing", "folder")]
    for kind in kinds:
        shutil.copy(folder / "a.h5", folder / f"bad {kind}.h5")
        BAD[kind][0](folder / f"bad {kind}.h5")
    done = fedmpi_cli(*COMMANDS[command], COLUMNS="200")
    assert done.returncode == 0
    if command == "watch":
        assert done.stdout.startswith(f"2 runs: 2 done; {len(kinds)} unreadable")
    else:
        assert all(f"bad {kind}.h5" in done.stderr for kind in kinds)
    if command == "report":
        page = (tmp_path / "r.html").read_text()
        assert all(f"bad {kind}.h5" in page for kind in kinds)
