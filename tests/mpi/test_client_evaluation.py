"""`run.eval_clients_every`: each client's loss and accuracy, the same on any ranks and in packs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedmpi.config import validate
from fedmpi.data.prepared import Dataset, read_dataset, write_dataset
from fedmpi.experiments.lifecycle import start
from fedmpi.mpi import Comm
from fedmpi.simulation.lockstep import in_lockstep
from fedmpi.simulation.outcome import Output
from fedmpi.simulation.pack import make_pack
from fedmpi.storage.reader import Run, load_run

pytestmark = pytest.mark.mpi

CONFIG = """
[run]
num_rounds = 5
eval_every = 2
eval_clients_every = 2
[data]
dataset = "{path}"
partition = "natural"
allow_empty = true
[model]
name = "logistic"
[participation]
selection = "uniform"
clients_per_round = 3
[algorithm]
local_lr = 0.05
local_steps = 3
batch_size = 8
"""


@pytest.fixture
def data_file(comm: Comm, mpi_tmp_path: Path) -> Path:
    """Clients of different sizes, not in order, two of them without samples; three are held out."""
    path = mpi_tmp_path / "natural.h5"
    if comm.is_root:
        draws = np.random.default_rng(0)
        sizes = {"train": 1100, "test": 500, "held_out": 90}
        clients = {part: draws.permutation(draws.integers(0, 9, n) ** 2 // 9) for part, n in sizes.items()}
        clients["test"] = clients["test"] % 7
        clients["held_out"] = 9 + clients["held_out"] % 3
        arrays = {f"{part}_clients": owners for part, owners in clients.items()}
        for part, owners in clients.items():
            arrays[f"{part}_inputs"] = draws.integers(0, 256, (len(owners), 1, 4, 4), np.uint8)
            arrays[f"{part}_labels"] = (owners + draws.integers(0, 2, len(owners))) % 4
        write_dataset(path, Dataset(name="natural", num_classes=4, mean=(0.5,), std=(0.3,), **arrays))
    comm.barrier()
    return path


def results(comm: Comm, data: Path, name: str, *settings: str) -> Run | None:
    """The results of the small experiment; on rank 0."""
    path = data.with_name(name)
    prepared = start(comm, validate.parse(CONFIG.format(path=data), "small.toml", settings), path)
    prepared.simulation.run(prepared.file)
    comm.barrier()
    return load_run(path) if comm.is_root else None


def by_hand(run: Run, data: Dataset, part: str) -> dict[int, tuple[int, float, float]]:
    """Samples, loss and accuracy of each client at the last model, one client after another."""
    weight, bias = (value for value in run.parameters().values())
    inputs, labels, clients = (getattr(data, f"{part}_{kind}") for kind in ("inputs", "labels", "clients"))
    values = ((inputs.reshape(len(inputs), -1) / 255 - 0.5) / 0.3).astype(np.float64)
    scores = torch.log_softmax(torch.from_numpy(values @ weight.T + bias), dim=1).numpy()
    return {
        int(n): (
            int((clients == n).sum()),
            float(-scores[clients == n, labels[clients == n]].mean()),
            float((scores.argmax(axis=1) == labels)[clients == n].mean()),
        )
        for n in np.unique(clients)
    }


def test_each_client_as_by_hand(comm, data_file):
    """Rows of all three sets at 0, 2, 4 and the end; the last are what a plain computation gives."""
    run = results(comm, data_file, "run.h5")
    if not comm.is_root:
        return
    table, data = run.clients_eval, read_dataset(data_file)
    assert sorted(table["round"].unique()) == [0, 2, 4, 5]
    for part, name in (("train", "train"), ("test", "test"), ("held_out", "held-out")):
        expected = by_hand(run, data, part)
        rows = table[(table["round"] == 5) & (table["part"] == name)]
        assert rows.client.tolist() == list(expected)
        assert rows.samples.tolist() == [count for count, _, _ in expected.values()]
        np.testing.assert_allclose(rows.loss, [loss for _, loss, _ in expected.values()], rtol=1e-4)
        np.testing.assert_allclose(rows.accuracy, [right for _, _, right in expected.values()], rtol=1e-12)


def test_means_over_clients_are_those_of_the_sets(comm, data_file):
    """Weighted by samples, clients give the figures of /eval; and looking at them changes no other bit."""
    run = results(comm, data_file, "run.h5")
    plain = results(comm, data_file, "plain.h5", "run.eval_clients_every=0")
    if not comm.is_root:
        return
    assert plain.clients_eval is None
    for column in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        np.testing.assert_array_equal(run.eval[column], plain.eval[column])
        part, metric = column.split("_")
        rows = run.clients_eval[run.clients_eval["part"] == part]
        sums = (rows[metric] * rows.samples).groupby(rows["round"]).sum()
        means = sums / rows.samples.groupby(rows["round"]).sum()
        np.testing.assert_allclose(means, run.eval[column], rtol=1e-12)
    np.testing.assert_array_equal(run.global_params, plain.global_params)


def test_the_same_bits_on_any_ranks(comm, data_file):
    """All ranks together give what one gives, on a subset of the training set too."""
    for settings in ((), ("run.eval_train_samples=300",), ('data.partition="iid"', "data.num_clients=5")):
        together = results(comm, data_file, "together.h5", "run.seed=3", *settings)
        first = comm.first(1)
        alone = results(first, data_file, "alone.h5", "run.seed=3", *settings) if first else None
        comm.barrier()
        if comm.is_root:
            assert together.clients_eval.equals(alone.clients_eval)
            assert len(together.clients_eval)
            data_file.with_name("together.h5").unlink()
            data_file.with_name("alone.h5").unlink()
        comm.barrier()


def test_clients_of_another_partition_are_not_those_of_the_test_set(comm, data_file):
    """With samples dealt anew, training samples have other clients, test samples none."""
    run = results(comm, data_file, "iid.h5", 'data.partition="iid"', "data.num_clients=5")
    if not comm.is_root:
        return
    parts = run.clients_eval.groupby("part", observed=True).client.unique()
    assert {part: sorted(clients) for part, clients in parts.items()} == {
        "train": [0, 1, 2, 3, 4],
        "held-out": [9, 10, 11],
    }


class Kept(Output):
    """Keeps the rows of /clients_eval."""

    takes_rows = True

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def add(self, table: str, **values: object) -> None:
        """A row, or many."""
        if table == "clients_eval":
            self.rows.append(values)


def test_in_a_pack_each_run_has_its_own_clients(comm, data_file):
    """Runs with other seeds, partitions and cadences share the pass, with the rows that they have alone."""
    texts = [
        ("run.seed=1",),
        ("run.seed=2", "run.eval_clients_every=3"),
        ("run.seed=3", 'data.partition="iid"', "data.num_clients=7"),
        ("run.seed=4", "run.eval_clients_every=0"),
    ]
    configs = [validate.parse(CONFIG.format(path=data_file), "x.toml", text) for text in texts]

    def rows(*some: int) -> list[list[dict]]:
        kept = [Kept() for _ in some]
        pack = make_pack(comm, [configs[i] for i in some], torch.device("cpu"), [None] * len(some))
        runs = [simulation.rounds(output) for simulation, output in zip(pack, kept, strict=True)]
        in_lockstep(comm, pack[0].training, pack[0].clock, runs)
        return [output.rows for output in kept]

    packed = rows(0, 1, 2, 3)
    for number, own in enumerate(packed):
        (alone,) = rows(number)
        assert len(own) == len(alone) == (4 * 3, 3 * 3, 4 * 2, 0)[number]
        for seen, expected in zip(own, alone, strict=True):
            assert all(np.array_equal(seen[key], expected[key]) for key in expected)
