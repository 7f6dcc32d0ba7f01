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


ONE_RANK_LEAVES = "rank 0 calls fedmpi.run, but rank 1 has ended: all ranks of a program have to make"
FAULTS |= {
    "a rank that leaves by sys.exit": (
        'import sys\nif not fedmpi.is_root():\n    sys.exit(3)\nfedmpi.run("small.toml", progress=False)',
        ONE_RANK_LEAVES,
    ),
    "a rank that comes to its end too early": (
        'if fedmpi.is_root():\n    fedmpi.run("small.toml", progress=False)',
        ONE_RANK_LEAVES,
    ),
    "an error that only one rank catches": (
        'try:\n    fedmpi.run("nowhere.toml")\nexcept fedmpi.errors.UserError:\n'
        "    if not fedmpi.is_root():\n        raise\n"
        'fedmpi.run("small.toml", progress=False)',
        ONE_RANK_LEAVES,
    ),
    "ranks that make different calls": (
        'if fedmpi.is_root():\n    fedmpi.run("small.toml", progress=False)\n'
        'else:\n    fedmpi.sweep({"base": "small.toml"}, progress=False)',
        "rank 0 calls fedmpi.run, but rank 1 calls fedmpi.sweep",
    ),
    "a callback that calls for all ranks": (
        'fedmpi.run("small.toml", on_round=lambda n: fedmpi.run("small.toml"), progress=False)',
        "fedmpi.run inside fedmpi.run: a callback runs on rank 0 alone",
    ),
    "sys.exit in a user's function": (
        "import sys\ndef who(t):\n    if t == 2 and not fedmpi.is_root():\n        sys.exit(3)\n"
        '    return [0, 1]\nfedmpi.run("small.toml", participation=who, progress=False)',
        "",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_fault_ends_all_ranks_within_seconds(script, tmp_path, text, expected):
    """Whoever meets it, the job ends with a status that is not 0, and says why; starting is not counted."""
    done = script(PREAMBLE + text)
    ended = time.time()
    assert (tmp_path / "began").exists(), done.stderr
    seconds = ended - float((tmp_path / "began").read_text())
    assert done.returncode != 0
    assert "first done" in done.stdout  # what another rank printed last may be lost with the job
    assert expected in done.stderr
    assert seconds < 15


def test_a_program_with_mpi_of_its_own(script):
    """MPI that the program started is left to it; ranks that part are ended all the same."""
    own = "from mpi4py import MPI\n" + PREAMBLE
    done = script(own + "print('sum', MPI.COMM_WORLD.allreduce(1), flush=True)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2") == 2
    done = script(own + 'if fedmpi.is_root():\n    fedmpi.run("small.toml", progress=False)')
    assert done.returncode != 0
    assert ONE_RANK_LEAVES in done.stderr
    done = script(own + "MPI.Finalize()")
    assert done.returncode == 0, done.stderr


def test_a_signal_ends_all_ranks_with_a_checkpoint(script, tmp_path):
    """TERM reaches one rank; all end with the status to requeue on, and the run can go on."""
    done = script(
        PREAMBLE
        + """
import os, signal
def on_round(completed):
    if completed == 2:
        os.kill(os.getpid(), signal.SIGTERM)
fedmpi.run("small.toml", out="a.h5", on_round=on_round, progress=False)
print("not reached", flush=True)
"""
    )
    assert done.returncode == 75, done.stderr
    assert "stopped after round 3; go on with fedmpi.resume('a.h5'): signal TERM" in done.stderr
    assert "not reached" not in done.stdout
    assert fedmpi.resume(tmp_path / "a.h5", progress=False).status == "done"


def test_ctrl_c_ends_all_ranks_together(script):
    """One traceback, of rank 0; whoever catches it goes on."""
    interrupted = (
        PREAMBLE
        + """
import os, signal
def on_round(completed):
    if completed == 2:
        os.kill(os.getpid(), signal.SIGINT)
"""
    )
    call = 'fedmpi.run("small.toml", on_round=on_round, progress=False)'
    done = script(interrupted + call)
    assert done.returncode != 0
    assert done.stderr.count("KeyboardInterrupt: stopped after round 3") == 1
    done = script(
        interrupted + f"try:\n    {call}\nexcept KeyboardInterrupt:\n    print('caught', flush=True)\n"
        "print('again', fedmpi.run('small.toml', progress=False).status, flush=True)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("caught") == done.stdout.count("again done") == 2


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
