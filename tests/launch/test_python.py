"""fedmpi from a Python script under mpirun, seen from outside: results on all ranks, and never a hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from tests.support.configs import ROOT, SMALL

# Fifteen lines: two methods from one config, compared in a picture.
SCRIPT = """
import fedmpi

runs = {
    "FedAvg": fedmpi.run("small.toml", {"algorithm.name": "fedavg"}, out="fedavg.h5"),
    "SCAFFOLD": fedmpi.run("small.toml", {"algorithm.name": "scaffold"}, out="scaffold.h5"),
}
losses = {name: run.eval.train_loss.iloc[-1] for name, run in runs.items()}
if fedmpi.is_root():
    axes = None
    for name, run in runs.items():
        axes = run.eval.plot("round", "train_loss", label=name, ax=axes)
    axes.figure.savefig("methods.png")
with open(f"rank-{fedmpi.is_root()}.txt", "w") as file:
    file.write(repr(losses))
"""
PREAMBLE = """
import pathlib, time
import fedmpi
first = fedmpi.run("small.toml", progress=False)
print("first", first.status, flush=True)
pathlib.Path("began").write_text(str(time.time()))
"""


@pytest.fixture
def script(tmp_path: Path):
    """Run a Python script on some ranks."""
    (tmp_path / "small.toml").write_text(SMALL)

    def run(text: str, ranks: int = 2) -> subprocess.CompletedProcess:
        (tmp_path / "script.py").write_text(text)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "script.py"]
        if ranks > 1:
            command = ["mpirun", "-n", str(ranks), *command]
        return subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    return run


def test_a_script_of_fifteen_lines_compares_two_methods(script, tmp_path):
    """Both ranks have both results, one draws; and the files have the bits of one process."""
    assert len(SCRIPT.strip().splitlines()) <= 15
    done = script(SCRIPT)
    assert done.returncode == 0, done.stderr
    told = [(tmp_path / f"rank-{is_root}.txt").read_text() for is_root in (True, False)]
    assert told[0] == told[1]
    assert (tmp_path / "methods.png").read_bytes().startswith(b"\x89PNG")
    for method in ("fedavg", "scaffold"):
        alone = fedmpi.run(
            tmp_path / "small.toml", {"algorithm.name": method}, tmp_path / "alone.h5", force=True,
            progress=False,
        )  # fmt: skip
        assert first_difference(fedmpi.load_run(tmp_path / f"{method}.h5"), alone) is None


def test_an_error_can_be_caught_on_all_ranks(script):
    """A bad config is an exception everywhere; the next run works."""
    done = script(
        PREAMBLE
        + """
try:
    fedmpi.run("small.toml", {"algorithm.local_lr": -1})
except fedmpi.errors.UserError as error:
    print("caught", error, flush=True)
print("second", fedmpi.run("small.toml", progress=False).status)
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("caught") == done.stdout.count("second done") == 2
    assert "local_lr = -1.0: expected a number > 0 (overrides)" in done.stdout


FAULTS = {
    "an error that all ranks share": ('fedmpi.run("nowhere.toml")', "nowhere.toml: no such file"),
    "a rank that fails between two runs": (
        "import os\nif not fedmpi.is_root():\n    raise ValueError('only me')\n"
        'fedmpi.run("small.toml", progress=False)',
        "ValueError: only me",
    ),
    "a callback that fails": (
        "def fail(n):\n    assert n < 2, 'too far'\n"
        'fedmpi.run("small.toml", on_round=fail, progress=False)',
        "AssertionError: too far",
    ),
    "an object that fails on one rank": (
        "def who(t):\n    assert t < 2 or fedmpi.is_root(), 'gone'\n    return [0, 1]\n"
        'fedmpi.run("small.toml", participation=who, progress=False)',
        "AssertionError: gone",
    ),
    "a method that fails on one rank": (
        "from fedmpi.methods import Method\n"
        "class Bad(Method):\n"
        "    def direction(self, state, current):\n"
        "        assert current.t < 2 or fedmpi.is_root(), 'lost'\n"
        "        return current.sums['weighted_sum'], {}\n"
        'fedmpi.run("small.toml", method=Bad, progress=False)',
        "AssertionError: lost",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_fault_ends_all_ranks_within_seconds(script, tmp_path, text, expected):
    """Whoever meets it, the job ends with a status that is not 0, and says why; starting is not counted."""
    done = script(PREAMBLE + text)
    seconds = time.time() - float((tmp_path / "began").read_text())
    assert done.returncode != 0
    assert done.stdout.count("first done") == 2
    assert expected in done.stderr
    assert seconds < 15


def test_a_sweep_from_a_script_is_shared_by_the_ranks(script, tmp_path):
    """Two ranks do four runs beside each other; both get the whole table."""
    done = script(
        """
import fedmpi
plan = {"base": "small.toml", "seeds": [1, 2], "grid": {"algorithm.local_lr": [0.1, 0.01]}}
table = fedmpi.sweep(plan, "all", progress=False)
print("rows", table.groupby(["seed", "algorithm.local_lr"]).ngroups, flush=True)
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rows 4") == 2
    assert len(list((tmp_path / "all").glob("*.h5"))) == 4
