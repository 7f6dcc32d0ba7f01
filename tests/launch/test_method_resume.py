"""Methods whose clients remember: stopped, killed or damaged, the bits of one undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from tests.support.configs import SMALL
from tests.support.jobs import Job

TEXT = SMALL.replace(
    "num_rounds = 6", "num_rounds = 24\ncheckpoint_every = 4\nrecord_params_every = 6"
).replace("[algorithm]", '[algorithm]\nname = "{}"\namplification = 1.5\namplify_every = 5')


@pytest.fixture
def fedmpi_on(mpirun, fedmpi_cli):
    """`fedmpi` on some ranks, which must succeed; its output."""

    def run(ranks: int, *arguments: str) -> str:
        done = fedmpi_cli(*arguments) if ranks == 1 else mpirun(ranks, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def assert_same(folder: Path) -> None:
    """All 24 rounds are in both files once, bit for bit."""
    found, reference = fedmpi.load_run(folder / "r.h5"), fedmpi.load_run(folder / "whole.h5")
    assert found.train["round"].tolist() == list(range(24))
    assert found.status == "done"
    assert (found.params[1] == reference.params[1]).all()
    assert first_difference(found, reference) is None


def test_killed(fedmpi_on, tmp_path):
    """Amplified SCAFFOLD, SIGKILL to all of 2 ranks in mid-run, resumed on 3."""
    text = TEXT.format("amplified-scaffold").replace('"logistic"', '"tests.support.user_code:slow_model"')
    (tmp_path / "c.toml").write_text(text)
    fedmpi_on(1, "run", "c.toml", "--out", "whole.h5")
    job = Job(tmp_path, 2, "run", "c.toml", "--out", "r.h5", sleep=0.02)
    job.wait_for_rounds(9)
    job.kill_all()
    assert fedmpi.load_run(tmp_path / "r.h5").status != "done"
    fedmpi_on(3, "resume", "r.h5")
    assert_same(tmp_path)


def stop_after_nine(fedmpi_on, folder: Path, method: str) -> None:
    """24 rounds on 2 ranks in one go, as whole.h5; and 9 of them on 3 ranks, up to mid-interval."""
    (folder / "c.toml").write_text(TEXT.format(method))
    fedmpi_on(2, "run", "c.toml", "--out", "whole.h5")
    fedmpi_on(3, "run", "c.toml", "--out", "r.h5", "--set", "run.num_rounds=9")


@pytest.mark.parametrize("method", ["mifa", "fedpbc"])
def test_stopped(fedmpi_on, tmp_path, method):
    """What clients remember, their own models too: 9 rounds on 3 ranks, the rest on 1."""
    stop_after_nine(fedmpi_on, tmp_path, method)
    fedmpi_on(1, "resume", "r.h5", "--set", "run.num_rounds=24")
    assert_same(tmp_path)


LATE = "late_probability = 0.6\nlate_rounds = [2, 5]"


def test_late_updates(fedmpi_on, tmp_path):
    """Updates on their way when a run is killed on 2 ranks arrive on 3, those at a stop on 1."""
    text = TEXT.format("fedavg").replace("[participation]", f"[participation]\n{LATE}")
    text = text.replace('"uniform"', '"permutation"')
    (tmp_path / "c.toml").write_text(text.replace('"logistic"', '"tests.support.user_code:slow_model"'))
    fedmpi_on(1, "run", "c.toml", "--out", "whole.h5")
    job = Job(tmp_path, 2, "run", "c.toml", "--out", "r.h5", sleep=0.02)
    job.wait_for_rounds(9)
    job.kill_all()
    fedmpi_on(3, "resume", "r.h5", "--set", "run.num_rounds=15")
    fedmpi_on(1, "resume", "r.h5", "--set", "run.num_rounds=24")
    assert_same(tmp_path)


def test_damaged(fedmpi_on, tmp_path):
    """SCAFFOLD, a part of the newest checkpoint damaged: a note, and the older one is used."""
    stop_after_nine(fedmpi_on, tmp_path, "scaffold")
    part = tmp_path / "r.h5.checkpoint-9.part-1"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    output = fedmpi_on(1, "resume", "r.h5", "--set", "run.num_rounds=24")
    assert part.name in output
    assert "going back to an older one" in output
    assert_same(tmp_path)
