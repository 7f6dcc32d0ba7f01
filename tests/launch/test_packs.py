"""Sweeps whose runs go on in lockstep, seen from outside."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pandas
import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from tests.support.configs import SLOW, SMALL
from tests.support.jobs import SECONDS, Job, has_rounds, wait_until

# Methods with tables and without, two rates each, one of which diverges; and other models and samples.
MIXED = """
base = "c.toml"
seeds = [1, 2]
[[cases]]
name = "fedavg"
[[cases]]
name = "amplified"
algorithm.amplification = 2.0
algorithm.amplify_every = 2
[[cases]]
name = "scaffold"
algorithm.name = "scaffold"
[[cases]]
name = "mifa"
algorithm.name = "mifa"
algorithm.local_lr = 1e300
[[cases]]
name = "mlp"
model.name = "mlp"
model.hidden = [5]
[[cases]]
name = "images"
data.shape = [1, 5, 5]
[[cases]]
name = "in-float64"
run.dtype = "float64"
"""
SEEDS = 'base = "c.toml"\nseeds = [1, 2, 3]\n'


def lockstep(path: Path) -> list[int]:
    """In how large a pack each leg of a run went on."""
    return [leg.get("runs_in_lockstep", 1) for leg in json.loads(fedmpi.load_run(path).attributes["legs"])]


def test_a_pack_makes_the_files_of_single_runs(tmp_path, mpirun, fedmpi_cli):
    """Two groups of ranks, and two ranks for each run: everything that is stored has the same bits."""
    (tmp_path / "c.toml").write_text(SMALL)
    (tmp_path / "s.toml").write_text(MIXED)
    assert fedmpi_cli("sweep", "s.toml", "--out", "single", "--pack", 1).returncode == 3
    for folder, ranks_per_run in (("groups", 1), ("pairs", 2)):
        done = mpirun(2, "sweep", "s.toml", "--out", folder, "--ranks-per-run", ranks_per_run)
        assert done.returncode == 3, done.stdout + done.stderr
        for path in sorted((tmp_path / "single").glob("*.h5")):
            packed, single = fedmpi.load_run(tmp_path / folder / path.name), fedmpi.load_run(path)
            assert first_difference(packed, single) is None, path.name
            assert packed.status == single.status == ("diverged" if "mifa" in path.name else "done")
    # What may share a pack: here all of the same samples, model and precision, whatever the method.
    pairs = {path.name: lockstep(path) for path in sorted((tmp_path / "pairs").glob("*.h5"))}
    assert {name.partition("_")[0]: sizes[0] for name, sizes in pairs.items()} == {
        "fedavg": 8, "amplified": 8, "scaffold": 8, "mifa": 8, "mlp": 2, "images": 2, "in-float64": 2,
    }  # fmt: skip
    table = pandas.read_csv(tmp_path / "pairs" / "index.csv")
    assert sorted(table["status"]) == ["diverged"] * 2 + ["done"] * 12


@pytest.mark.parametrize("how", [signal.SIGUSR1, signal.SIGKILL], ids=["USR1", "KILL"])
def test_a_pack_goes_on_packed_and_unpacked(tmp_path, fedmpi_cli, how):
    """Stopped or killed in the middle, one run is resumed by itself, the others in another pack."""
    (tmp_path / "c.toml").write_text(SLOW)
    (tmp_path / "s.toml").write_text(SEEDS)
    job = Job(tmp_path, 1, "sweep", "s.toml", "--out", "d", sleep=0.01)
    paths = [tmp_path / "d" / f"seed-{seed}.h5" for seed in (1, 2, 3)]
    wait_until(lambda: all(has_rounds(path, 6) for path in paths if path.exists()) and paths[2].exists(),
               "six rounds of all")  # fmt: skip
    for pid in job.ranks() if how == signal.SIGKILL else [job.process.pid]:
        os.kill(pid, how)
    status, output = job.end(SECONDS)
    assert (status == 75) == (how == signal.SIGUSR1), output
    wait_until(lambda: not job.processes(), "the end of all processes")

    # One alone, the other two in a pack of two.
    done = fedmpi_cli("resume", "d/seed-2.h5", "--wait", 15)
    assert done.returncode == 0, done.stderr
    done = fedmpi_cli("sweep", "s.toml", "--out", "d", "--pack", 2)
    assert done.returncode == 0, done.stdout
    assert [lockstep(path) for path in paths] == [[3, 2], [3, 1], [3, 2]]
    for seed, path in enumerate(paths, 1):
        words = "run", "c.toml", "--out", f"{seed}.h5", "--set", f"run.seed={seed}"
        assert fedmpi_cli(*words).returncode == 0
        alone = fedmpi.load_run(tmp_path / f"{seed}.h5")
        assert first_difference(fedmpi.load_run(path), alone) is None
        assert len(alone.train) == 30


def test_what_cannot_be_packed_runs_alone_and_is_told(tmp_path, fedmpi_cli):
    """A method of the user's own that says so; the others are packed around it."""
    (tmp_path / "c.toml").write_text(SMALL)
    (tmp_path / "own.py").write_text(
        "from fedmpi.methods import Method\nclass Lonely(Method):\n    in_packs = False\n"
    )
    (tmp_path / "s.toml").write_text(
        SEEDS + '[[cases]]\nname = "plain"\n[[cases]]\nname = "lonely"\nalgorithm.name = "own:Lonely"\n'
    )
    done = fedmpi_cli("sweep", "s.toml", "--out", "d")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'note: 3 runs are not packed with others: algorithm.name = "own:Lonely"' in done.stdout
    sizes = {path.stem: lockstep(path) for path in (tmp_path / "d").glob("*.h5")}
    assert sizes == {f"{name}_seed-{seed}": [size] for name, size in (("plain", 3), ("lonely", 1))
                     for seed in (1, 2, 3)}  # fmt: skip


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "all"])
def test_bad_sizes_of_packs(tmp_path, fedmpi_cli, size):
    """One sentence, before anything is made."""
    (tmp_path / "c.toml").write_text(SMALL)
    (tmp_path / "s.toml").write_text(SEEDS)
    done = fedmpi_cli("sweep", "s.toml", "--out", "d", f"--pack={size}")
    assert done.returncode == 2
    assert f'--pack {size}: expected "auto", 1 for runs by themselves, or a number of runs' in done.stderr
    assert not (tmp_path / "d").exists()
