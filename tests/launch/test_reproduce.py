"""A published experiment from scratch, on the images that come with fedmpi."""

from __future__ import annotations

import pandas

from fedmpi.results.settled import settled
from tests.support.bands import bands

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
