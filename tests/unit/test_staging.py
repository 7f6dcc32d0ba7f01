"""Copies of prepared data on a node's own disk."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedmpi.config import DataConfig
from fedmpi.data.prepared import Dataset, write_dataset
from fedmpi.data.sources import load_dataset
from fedmpi.data.staging import staged
from fedmpi.errors import UserError


def data(value: float) -> Dataset:
    """Ten samples."""
    labels = np.arange(10) % 2
    return Dataset(
        "mine", np.full((10, 3), value, np.float32), labels, np.zeros((0, 3), np.float32), labels[:0], 2
    )


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A prepared file, and a node's own disk in $SCRATCH."""
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    write_dataset(tmp_path / "mine.h5", data(1.0))
    return tmp_path / "mine.h5"


def test_a_copy_is_made_once_and_read(prepared, tmp_path):
    """The second run reads the copy: the original may be gone slow, not gone."""
    config = DataConfig(dataset=str(prepared), stage="$SCRATCH/fedmpi")
    first = load_dataset(config, on_node=True)
    (copy,) = (tmp_path / "scratch" / "fedmpi").iterdir()
    made = copy.stat().st_mtime_ns
    assert staged(prepared, "$SCRATCH/fedmpi") == copy
    assert load_dataset(config, on_node=True).digest() == first.digest() == data(1.0).digest()
    assert copy.stat().st_mtime_ns == made


def test_a_file_that_changed_is_copied_anew(prepared, tmp_path):
    """An old copy is never taken for a new file of the same name."""
    staged(prepared, "$SCRATCH")
    write_dataset(prepared, data(2.0))
    os.utime(prepared, ns=(1, 1))
    config = DataConfig(dataset=str(prepared), stage="$SCRATCH")
    assert load_dataset(config, on_node=True).digest() == data(2.0).digest()
    assert len(list((tmp_path / "scratch").iterdir())) == 2


def test_a_damaged_copy_is_removed(prepared, capsys):
    """What is read from a copy is checked; the file itself is as good as before."""
    copy = staged(prepared, "$SCRATCH")
    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    config = DataConfig(dataset=str(prepared), stage="$SCRATCH")
    assert load_dataset(config, on_node=True).digest() == data(1.0).digest()
    assert "damaged" in capsys.readouterr().err
    assert not copy.exists()


def test_other_commands_leave_the_disk_alone(prepared, tmp_path):
    """`fedmpi check` on a login node reads the file itself, even where the variable is not set."""
    assert load_dataset(DataConfig(dataset=str(prepared), stage="$NOT_SET_HERE")).name == "mine"
    assert not (tmp_path / "scratch").exists()


def test_a_disk_that_cannot_be_written_costs_the_copy_only(prepared, tmp_path, capsys):
    """The run reads the file itself, and says why."""
    (tmp_path / "full").write_text("not a folder")
    assert staged(prepared, str(tmp_path / "full" / "x")) == prepared
    assert "reading" in capsys.readouterr().err


def test_a_variable_that_is_not_set_is_told(prepared, monkeypatch):
    """Never a folder that is called $TMPDIR."""
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(UserError, match=r"data.stage = .\$NOT_SET/x.: a variable in it is not set"):
        staged(prepared, "$NOT_SET/x")


def test_staging_needs_a_prepared_file(tmp_path):
    """Raw downloads are not staged; the error names the command that prepares them."""
    with pytest.raises(UserError, match="fedmpi data prepare fashion-mnist"):
        load_dataset(DataConfig(dataset="fashion-mnist", root=str(tmp_path), stage=str(tmp_path)))


def test_a_missing_file_is_told(tmp_path):
    """Before anything is copied."""
    with pytest.raises(UserError, match="cannot be read"):
        staged(tmp_path / "none.h5", str(tmp_path))
