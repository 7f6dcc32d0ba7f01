"""The live view: frames of a run and of a folder, rates, curves, bad input."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fedmpi.cli.watch import see, watch
from fedmpi.storage.sketch import sparkline
from tests.support.run_files import INITIAL, add_rounds, create_run, finished_run


def test_a_run_going_on(tmp_path, fedmpi_cli):
    """Three of six rounds at four a second: half done, the rest takes 0.75 s."""
    writer = create_run(tmp_path / "r.h5")
    add_rounds(writer, 0, 3)
    writer.add("eval", 3, 1.5, 0.5, 2.0, 0.25, 0.75)
    writer.flush(INITIAL)
    seen = see(tmp_path / "r.h5")
    assert (seen.completed, seen.total, seen.rate, seen.left) == (3, 6, 4.0, 0.75)
    done = fedmpi_cli("watch", "r.h5", "--once")
    assert done.returncode == 0, done.stderr
    assert " 50% ██████████░░░░░░░░░░ 3/6 rounds  4.0/s  left 0.8s" in done.stdout
    assert "train loss        1.5000" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_folder(tmp_path, fedmpi_cli):
    """Runs going on come first, then finished ones; a broken file is named."""
    finished_run(tmp_path / "a-done.h5")
    create_run(tmp_path / "b-begun.h5")
    (tmp_path / "c.h5").write_text("no run")
    done = fedmpi_cli("watch", ".", "--once")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "2 runs: 1 done, 1 running; 1 unreadable"
    assert "6/12 rounds of all" in lines[1]
    assert lines[2].startswith("b-begun")
    assert lines[3].startswith("a-done")
    assert "loss 1.2500  acc 0.750  done" in lines[3]
    assert "c.h5: not a readable" in lines[4]


def test_it_ends_with_the_run(tmp_path, capsys):
    """Frames follow the file; the view ends when the run is done."""
    writer = create_run(tmp_path / "r.h5")

    def simulate():
        time.sleep(0.3)
        add_rounds(writer, 0, 6)
        writer.flush(INITIAL, status="done")

    thread = threading.Thread(target=simulate)
    thread.start()
    assert watch(str(tmp_path / "r.h5"), once=False, every=0.1) == 0
    thread.join()
    out = capsys.readouterr().out
    assert "0/6 rounds" in out
    assert "100%" in out.splitlines()[-2]


def test_a_silent_run_may_be_dead(tmp_path, fedmpi_cli):
    """A run that has not written for long is marked."""
    create_run(tmp_path / "r.h5")
    old = time.time() - 600
    os.utime(tmp_path / "r.h5", (old, old))
    out = fedmpi_cli("watch", "r.h5", "--once").stdout
    assert "silent for 10m" in out
    assert "no evaluation yet" in out


def test_bad_input(tmp_path, fedmpi_cli):
    """No file, text, an empty folder: a sentence and status 2."""
    (tmp_path / "t.h5").write_text("no run")
    (tmp_path / "empty").mkdir()
    for name, message in [("no.h5", "no such file"), ("t.h5", "not a readable"), ("empty", "no .h5 file")]:
        done = fedmpi_cli("watch", name, "--once")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert message in done.stderr


def test_it_needs_neither_torch_nor_mpi(tmp_path):
    """Nor pandas nor matplotlib: it starts quickly over ssh."""
    code = (
        "import sys; from fedmpi.cli.watch import watch; watch(sys.argv[1], once=True, every=1);"
        "print([n for n in ('torch', 'mpi4py', 'matplotlib', 'pandas') if n in sys.modules])"
    )
    path = finished_run(tmp_path / "r.h5")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [([], 5, ""), ([3, 3], 5, "▁▁"), ([0, 0, 7, 7], 2, "▁█"), ([7, 0], 9, "█▁")],
)
def test_sparkline_by_hand(values, width, expected):
    """From the lowest to the highest block; long curves are joined."""
    assert sparkline(np.array(values, float), width) == expected
