"""The line on what a run cost, and the hint on what to change."""

from __future__ import annotations

import json

import pytest

import fedmpi
from fedmpi.results.costs import cost_line, hint
from fedmpi.storage.files import replacing
from tests.support.run_files import finished_run

TRAFFIC = {"vector": 1000, "sent": 1, "received": 2}


@pytest.fixture
def ended(tmp_path):
    """A run of six rounds with two participants each, whose ranks spent their time so."""

    def make(*ranks: dict[str, float], settings: tuple[str, ...] = ()) -> fedmpi.Run:
        path = finished_run(tmp_path / "r.h5", *settings)
        with replacing(path, copy=True) as file:
            file.attrs["phases"] = json.dumps(ranks)
            file.attrs["traffic"] = json.dumps(TRAFFIC)
        return fedmpi.load_run(path)

    return make


def spent(in_all: float, **seconds: float) -> dict[str, float]:
    """Seconds of a rank."""
    return {"local SGD": 1.0, "evaluation": 0.0, "idle": 0.0, **seconds, "in all": in_all, "memory_mb": 9.0}


LONG = ("run.num_rounds=30000", "run.eval_every=50")


def test_evaluations_that_take_much(ended):
    """41 of 100 s for evaluations every 50 rounds: with 350 a seventh of them is left, which saves 35 s."""
    run = ended(spent(100.0, evaluation=41.0), settings=LONG)
    assert hint(run) == "evaluation took 41% of the time: run.eval_every = 350 would save about 35.1s"


def test_evaluations_still_see_the_whole_cycle(ended):
    """With a cycle of 20 rounds no multiple of 2 or 5 is suggested."""
    cycle = ("participation.availability=periodic", "participation.num_groups=2",
             "participation.rounds_per_group=10")  # fmt: skip
    text = hint(ended(spent(100.0, evaluation=41.0), settings=LONG + cycle))
    every = int(text.partition("eval_every = ")[2].split()[0])
    assert 260 < every < 530
    assert every % 2
    assert every % 5


def test_theory_that_takes_much(ended):
    """Of two things to change, the one that saves more is told."""
    run = ended(spent(100.0, evaluation=20.0, theory=60.0), settings=(*LONG, "run.record_theory_every=10"))
    assert hint(run).startswith("theory took 60% of the time: run.record_theory_every = 150 would save")


@pytest.mark.parametrize(
    ("seconds", "settings"),
    [
        (spent(20.0, evaluation=9.0), LONG),  # less than ten seconds
        (spent(1000.0, evaluation=50.0), LONG),  # a twentieth of the time
        (spent(100.0, evaluation=41.0), ("run.num_rounds=1000", "run.eval_every=50")),  # 20 points only
        (spent(100.0, evaluation=41.0), ("run.num_rounds=30000", "run.eval_every=0")),  # at the end only
    ],
)
def test_silence(ended, seconds, settings):
    """Nothing is said where nothing is worth saying, or where the curve would suffer."""
    assert hint(ended(seconds, settings=settings)) == ""


def test_ranks_without_work(ended):
    """Two participants a round keep two of three ranks busy; told only if ranks did wait for that."""
    waiting = [spent(100.0), spent(100.0, idle=2.0), spent(100.0, idle=90.0)]
    assert hint(ended(*waiting)) == (
        "ranks waited 31% of the time: with 2 participants in a round 2 ranks would be about as fast as 3"
    )
    assert hint(ended(*[spent(100.0, idle=15.0)] * 3)) == ""
    assert hint(ended(*[spent(100.0, idle=40.0)] * 2)) == ""  # not for want of clients


def test_a_run_that_goes_on(tmp_path):
    """Times by phase are not known yet: no hint."""
    assert hint(fedmpi.load_run(finished_run(tmp_path / "r.h5"))) == ""


def test_costs(ended):
    """Twelve participations of two steps, three vectors of 1000 bytes each."""
    assert cost_line(ended(spent(1.0))) == "24 local steps, 36.0 kB between clients and server"


def test_the_end_of_a_run_tells_both(tmp_path, fedmpi_cli, monkeypatch):
    """`fedmpi run` and `fedmpi info` end with them."""
    monkeypatch.setattr("fedmpi.results.costs._WORTH_SHARE", -1.0)
    monkeypatch.setattr("fedmpi.results.costs._WORTH_SECONDS", 0.0)
    (tmp_path / "c.toml").write_text(
        '[run]\nnum_rounds = 60\neval_every = 1\n[data]\ndataset = "synthetic"\nnum_clients = 3\n'
        '[model]\nname = "logistic"\n[participation]\nselection = "all"\n'
        "[algorithm]\nlocal_lr = 0.1\nlocal_steps = 2\n"
    )
    done = fedmpi_cli("run", "c.toml", "--out", "r.h5")
    assert done.returncode == 0, done.stderr
    assert "\n  cost     360 local steps, " in done.stdout
    assert "\n  hint     evaluation took " in done.stdout
    told = fedmpi_cli("info", "r.h5").stdout
    assert "\n  hint       evaluation took " in told
    assert "\n  cost       " in told
