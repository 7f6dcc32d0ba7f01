"""Sweeps: which runs a file means, who may do them, and what the table of best settings says."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import pytest

from fedmpi.cli.sweep import best
from fedmpi.errors import ConfigError, UserError
from fedmpi.experiments.sweep import claims
from fedmpi.experiments.sweep.best import collect
from fedmpi.experiments.sweep.points import experiment, load_sweep
from fedmpi.experiments.sweep.store import Outcome, Store, outcome_of
from fedmpi.storage import holder
from tests.support.configs import SMALL
from tests.support.run_files import finished_run


@pytest.fixture
def write(tmp_path):
    """A sweep file over the small experiment."""
    (tmp_path / "small.toml").write_text(SMALL)

    def write(text: str) -> str:
        (tmp_path / "s.toml").write_text('base = "small.toml"\n' + text)
        return str(tmp_path / "s.toml")

    return write


def test_runs_are_cases_times_grid_times_seeds(write):
    """The product, with readable names; a case that sets a grid key takes no part in that axis."""
    points = load_sweep(
        write(
            'seeds = [3, 4]\n[grid]\n"algorithm.local_lr" = [0.1, 0.01]\n[[cases]]\n[[cases]]\n'
            'name = "prox"\nalgorithm.name = "fedprox"\nalgorithm.local_lr = 1\n'
        )
    )
    assert [p.name for p in points] == [
        "local_lr-0.1_seed-3", "local_lr-0.1_seed-4", "local_lr-0.01_seed-3", "local_lr-0.01_seed-4",
        "prox_seed-3", "prox_seed-4",
    ]  # fmt: skip
    assert [p.config.algorithm.local_lr for p in points] == [0.1, 0.1, 0.01, 0.01, 1.0, 1.0]
    assert [p.config.run.seed for p in points] == [3, 4] * 3
    assert [p.method for p in points] == ["fedavg"] * 4 + ["prox"] * 2
    assert points[0].config.run.name == "local_lr-0.1_seed-3"


def test_names_are_safe_and_differ(write):
    """Odd values give file names without odd characters, and no two runs share one."""
    points = load_sweep(
        write(
            '[grid]\n"data.root" = ["a/b", "a b", "a-b", "../x"]\n'
            '"model.hidden" = [[1, 2], [12]]\n"data.alpha" = [0.1, 0.10000000001]\n'
        )
    )
    names = [p.name for p in points]
    assert len(set(names)) == 16
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") for name in names)
    assert not any(name.startswith(".") for name in names)


def test_all_problems_in_one_report(write):
    """Unknown keys, wrong types and bad values are all told at once."""
    with pytest.raises(ConfigError) as caught:
        load_sweep(
            write(
                'sedes = [1]\nseeds = ["x"]\n[grid]\n"algorithm.local_rl" = [1]\n"run.seed" = [1]\nx = 3\n'
            )
        )
    text = str(caught.value)
    assert "sweep sedes: unknown key; did you mean seeds?" in text
    assert "sweep seeds = ['x']: expected a list of integers" in text
    assert "sweep grid algorithm.local_rl: unknown key; did you mean algorithm.local_lr?" in text
    assert "sweep grid run.seed: the sweep sets it; use seeds" in text
    assert "sweep grid x = 3: expected a list of values" in text


def test_every_config_is_validated(write):
    """Bad values of single runs are found before the first run, each told once."""
    path = write(
        'seeds = [1, 2]\n[grid]\n"algorithm.local_lr" = [0.1, -1, "x"]\n"run.num_rounds" = [0, 5]\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_sweep(path)
    assert len(caught.value.problems) == 3
    assert "algorithm.local_lr = -1.0: expected a number > 0" in str(caught.value)
    assert "s.toml)" in str(caught.value)


def test_longest_first(write):
    """Runs with more rounds, steps or clients count as longer."""
    points = load_sweep(write('[grid]\n"run.num_rounds" = [10, 1000]\n"algorithm.local_steps" = [1, 5]\n'))
    assert sorted(range(4), key=lambda i: -points[i].work) == [3, 2, 1, 0]


def _take_all(folder, queue):
    mine = [name for name in map(str, range(40)) if claims.take(folder, name)]
    queue.put(mine)
    time.sleep(1)  # stay alive, or the others recover the claims


def test_a_run_has_one_holder(tmp_path):
    """Six processes that claim forty runs at once: each run goes to exactly one of them."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_take_all, args=(tmp_path, queue)) for _ in range(6)]
    for process in processes:
        process.start()
    taken = [name for _ in processes for name in queue.get(timeout=20)]
    for process in processes:
        process.join()
    assert sorted(taken, key=int) == [str(i) for i in range(40)]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_claims_of_the_dead_are_recovered(tmp_path):
    """A holder that was killed on this host loses its claim at once; a living one keeps it."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fedmpi.experiments.sweep import claims\n"
        "claim = claims.take(Path(sys.argv[1]), 'a')\nprint(claim is not None, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "True\n"
        assert claims.is_held(tmp_path, "a")
        assert claims.take(tmp_path, "a") is None
        other.kill()
        other.wait()
        claim = claims.take(tmp_path, "a")
    assert claim is not None
    assert claim.path.name == "a.claim-2"
    claim.release()
    assert not claims.is_held(tmp_path, "a")


def test_claims_of_other_hosts(tmp_path, monkeypatch):
    """Elsewhere a holder counts as dead when its file is old, or if it was an earlier life of this job."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(holder, "machine", lambda: "elsewhere")
    claim = claims.take(tmp_path, "a")
    claims.take(tmp_path, "b")
    monkeypatch.setattr(holder, "machine", lambda: "here")
    assert claims.take(tmp_path, "a") is None
    os.utime(claim.path, (0, time.time() - 2 * claims.STALE_SECONDS))
    assert claims.take(tmp_path, "a") is not None
    assert claims.take(tmp_path, "b") is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert claims.take(tmp_path, "b") is not None


@pytest.fixture
def finished(write, tmp_path):
    """A finished sweep with known losses: one rate diverged, the other two have means 1.5 and 1.25."""
    points = load_sweep(write('seeds = [1, 2]\n[grid]\n"algorithm.local_lr" = [0.1, 0.2, 9.0]\n'))
    store = Store(tmp_path / "d")
    store.create(points)
    for point, loss in zip(points, [1.0, 2.0, 1.0, 1.5, 1.0, 1.0], strict=True):
        finished_run(store.run_path(point.name), losses=(3.0, 3.0, loss))
        status = "diverged" if point.settings["algorithm.local_lr"] == 9 else "done"
        store.note(point.name, outcome_of(store.run_path(point.name), point, status))
    return store, points


def test_best_settings(finished, capsys):
    """Mean and spread over seeds; diverged settings do not win; a value at the grid's edge is told."""
    store, _ = finished
    assert [group.values for group in collect(store, "train_loss")] == [[1.0, 2.0], [1.0, 1.5], []]
    assert collect(store, "train_loss", last=2)[1].values == [2.0, 2.25]
    assert best(str(store.folder), "train_loss", 1) == 0
    output = capsys.readouterr().out
    assert "fedavg  local_lr 0.2  1.2500 ± 0.3536  2" in output
    assert "2 of 6 runs have no result" in output
    assert best(str(store.folder), "train_loss", 1, everything=True) == 0
    assert "local_lr is the lowest tried" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean train_loss"):
        best(str(store.folder), "train_los", 1)
    with pytest.raises(UserError, match="not a sweep folder"):
        best(str(store.folder / "x"), "train_loss", 1)


def test_the_index_is_a_table(finished):
    """One row a run with its settings, state and last metrics."""
    import pandas

    store, _ = finished
    table = pandas.read_csv(store.folder / "index.csv")
    assert table["status"].tolist() == ["done"] * 4 + ["diverged"] * 2
    assert table["algorithm.local_lr"].tolist() == [0.1, 0.1, 0.2, 0.2, 9.0, 9.0]
    assert table["train_loss"].tolist() == [1.0, 2.0, 1.0, 1.5, 1.0, 1.0]


def test_what_is_left_to_do(finished, write):
    """A done run is final until more rounds are asked for, a diverged one is; a failed one for this job."""
    store, points = finished
    assert all(store.is_final(p, store.outcome(p.name)) for p in points)
    path = write('seeds = [1, 2]\n[grid]\n"algorithm.local_lr" = [0.1, 0.2, 9.0]\n')
    base = store.folder.parent / "small.toml"
    base.write_text(SMALL.replace("num_rounds = 6", "num_rounds = 7"))
    longer = load_sweep(path)
    assert [p.digest for p in longer] == [p.digest for p in points]
    assert [store.is_final(p, store.outcome(p.name)) for p in longer] == [False] * 4 + [True] * 2
    failed = Outcome("failed", points[0].digest, time=100.0)
    assert store.is_final(points[0], failed, since=99.0)
    assert not store.is_final(points[0], failed, since=101.0)
    store.run_path(points[0].name).unlink()
    assert not store.is_final(points[0], store.outcome(points[0].name))


def test_a_default_that_is_written_out_is_the_same_experiment(write):
    """Keys at their default do not count: a version of fedmpi with more keys goes on with old sweeps."""
    plain = load_sweep(write("seeds = [1]\n"))[0]
    text = '[grid]\n"run.threads" = [1]\n"algorithm.amplification" = [1.0]\n'
    spelt = load_sweep(write(f"seeds = [1]\n{text}"))[0]
    other = load_sweep(write('seeds = [1]\n[grid]\n"algorithm.amplification" = [2.0]\n'))[0]
    assert "run.threads" not in experiment(spelt.config)
    assert spelt.digest == plain.digest != other.digest


def test_another_experiment_is_refused(finished, write):
    """A base config that changed does not mix with the runs of the old one."""
    store, _ = finished
    write("")
    path = store.folder.parent / "small.toml"
    path.write_text(SMALL.replace("batch_size = 8", "batch_size = 4"))
    points = load_sweep(write('seeds = [1, 2]\n[grid]\n"algorithm.local_lr" = [0.1, 0.2, 9.0]\n'))
    with pytest.raises(UserError, match="6 runs of different settings"):
        store.create(points)
