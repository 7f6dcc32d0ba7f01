"""Tasks other than classification, seen from outside: ranks, resumption and packs keep every bit."""

from __future__ import annotations

import json

import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from tests.support.tasks import config_of

CASES = [
    ("regression", "", "batched"),
    ("multi-label", "", "loop"),
    ("next-character", "char-lstm", "loop"),
    ("next-character", "transformer", "batched"),
]


@pytest.mark.parametrize(("task", "model", "engine"), CASES)
def test_any_ranks_a_resumption_and_a_pack_give_the_same_bits(
    tmp_path, mpirun, fedmpi_cli, task, model, engine
):
    """One rank, three (which lend clients), four rounds and then the rest, and two seeds in lockstep."""
    (tmp_path / "c.toml").write_text(config_of(tmp_path, task, model))
    chosen = ("--set", f"algorithm.engine={engine}")
    assert fedmpi_cli("run", "c.toml", "--out", "one.h5", *chosen).returncode == 0
    for out, ranks, rounds in (("three.h5", 3, 8), ("resumed.h5", 2, 4)):
        done = mpirun(ranks, "run", "c.toml", "--out", out, *chosen, "--set", f"run.num_rounds={rounds}")
        assert done.returncode == 0, done.stderr
    assert fedmpi_cli("resume", "resumed.h5", "--set", "run.num_rounds=8").returncode == 0
    (tmp_path / "s.toml").write_text('base = "c.toml"\nseeds = [1, 2]\n')
    done = fedmpi_cli("sweep", "s.toml", "--out", "pack", "--pack", 2)
    assert done.returncode == 0, done.stderr
    whole = fedmpi.load_run(tmp_path / "one.h5")
    for out in ("three.h5", "resumed.h5"):
        assert first_difference(whole, fedmpi.load_run(tmp_path / out)) is None
    alone = fedmpi.run(tmp_path / "c.toml", {"run.seed": 2}, progress=False)
    runs = [fedmpi.load_run(path) for path in (tmp_path / "pack").glob("*.h5")]
    (packed,) = (run for run in runs if run.config["run"]["seed"] == 2)
    assert json.loads(packed.attributes["legs"])[-1]["runs_in_lockstep"] == 2
    assert first_difference(alone, packed) is None
