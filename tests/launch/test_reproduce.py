"""A published experiment from scratch, on the images that come with fedmpi."""

from __future__ import annotations

import pandas

from fedmpi.results.compare import first_difference
from fedmpi.results.settled import settled
from fedmpi.storage.reader import load_run
from tests.support.bands import bands
from tests.support.commands import in_process
from tests.support.jobs import Job, has_rounds, wait_until

# Training loss at the end: the first is lower than the second.
ORDER = [
    ("Amplified-SCAFFOLD", "SCAFFOLD"),
    ("SCAFFOLD", "FedAvg"),
    ("FedVARP", "SCAFFOLD"),
    ("Amplified-SCAFFOLD", "FedAvg"),
]


def test_the_order_of_methods(mpirun, tmp_path):
    """`fedmpi reproduce periodic --quick`: each method ends in its band, those that correct lower."""
    done = mpirun(2, "reproduce", "periodic", "--quick", "--out", "r")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "r" / "figure.png").stat().st_size > 20_000
    curves = pandas.read_csv(tmp_path / "r" / "curves.csv")
    assert len(curves) == 9 * 46  # methods, evaluations
    methods = curves["name"].str.partition("_seed")[0]
    losses = {
        name: settled(part["round"].to_numpy(), part.train_loss.to_numpy(), cycle=20)
        for name, part in curves.groupby(methods)
    }
    for name, loss in losses.items():
        low, high = bands()[f"periodic/{name}"]
        assert low < loss < high, name
    for better, worse in ORDER:
        assert losses[better] < losses[worse]
        assert f"{better} " in done.stdout


def test_killed_and_gone_on_with(tmp_path):
    """Killed in mid-run, `--resume` ends with the bits of an undisturbed run, on other ranks."""
    words = ("reproduce", "periodic", "--quick", "--out", "r")
    chosen = ("--only", "SCAFFOLD,Amplified-SCAFFOLD", "--seeds", 4)
    names = [f"periodic/{name}_seed-4.h5" for name in ("SCAFFOLD", "Amplified-SCAFFOLD")]
    job = Job(tmp_path, 2, *words, *chosen)
    wait_until(lambda: any(has_rounds(tmp_path / "r" / name, 10) for name in names), "rounds")
    job.kill_all()
    assert not all(has_rounds(tmp_path / "r" / name, 400) for name in names)
    done = in_process(tmp_path, *words, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    whole = in_process(tmp_path, *words[:-1], "w", *chosen)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert (tmp_path / "r" / "curves.csv").read_text() == (tmp_path / "w" / "curves.csv").read_text()
    for name in names:
        assert first_difference(load_run(tmp_path / "r" / name), load_run(tmp_path / "w" / name)) is None
