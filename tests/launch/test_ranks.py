"""The same bits on any number of ranks, from the files that a user would compare."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from fedmpi.simulation.running_total import most_kept
from tests.support.configs import SMALL

WARM_AMPLIFIED = SMALL.replace("[algorithm]", "[algorithm]\namplification = 3.0\namplify_every = 2") + (
    "[warmup]\nnum_rounds = 2\nlocal_lr = 0.1\n"
)
CNN = """
[run]
num_rounds = 6
eval_every = 3
[data]
dataset = "fashion-mini"
num_clients = 60
partition = "majority-label"
[model]
name = "cnn-fashion"
[participation]
availability = "periodic"
num_groups = 5
rounds_per_group = 2
random_offset = true
selection = "permutation"
clients_per_round = 5
[algorithm]
local_lr = 0.01
local_steps = 2
amplification = 4.0
amplify_every = 2
[warmup]
num_rounds = 2
local_lr = 0.1
"""
MANY = """
[run]
num_rounds = 2
[data]
dataset = "synthetic"
num_clients = 5000
train_samples = 10000
test_samples = 100
shape = [1, 2, 2]
partition = "iid"
[model]
name = "logistic"
[participation]
selection = "all"
[algorithm]
local_lr = 0.05
local_steps = 1
batch_size = 2
"""
LATE = SMALL.replace("num_rounds = 6", "num_rounds = 14").replace(
    "[participation]", "[participation]\nlate_probability = 0.5\nlate_rounds = [1, 3]\ndropout = 0.1"
)
DROPOUT = SMALL.replace('"logistic"', '"tests.support.user_code:dropout_model"')
QUADRATIC = """
[run]
num_rounds = 5
eval_every = 1
[data]
dataset = "quadratic"
centers = [[1.0], [2.0], [4.0]]
noise_std = 0.5
[model]
name = "quadratic"
[participation]
selection = "uniform"
clients_per_round = 2
[algorithm]
local_lr = 0.3
local_steps = 3
"""


def results(path) -> dict[str, np.ndarray]:
    """What must be the same, bit for bit."""
    wanted = ("eval/round", "eval/train_loss", "eval/train_accuracy", "eval/test_loss",
              "eval/test_accuracy", "participation/round", "participation/client",
              "participation/weight", "train/weighted_sum_norm", "train/is_amplification",
              "model/global_params")  # fmt: skip
    with h5py.File(path) as file:
        return {name: file[name][()] for name in wanted}


@pytest.mark.parametrize(("name", "text"), [("dropout", DROPOUT), ("quadratic", QUADRATIC), ("late", LATE)])
def test_verify_says_so(fedmpi_process, tmp_path, name, text):
    """`fedmpi verify` launches itself on four ranks; with them quadratic has a rank without clients."""
    (tmp_path / "c.toml").write_text(text)
    done = fedmpi_process("verify", "c.toml", "--ranks", "1,2,3,4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same bits on 1, 2, 3, 4 ranks" in done.stdout


@pytest.mark.parametrize(("name", "text"), [("amplified", WARM_AMPLIFIED), ("cnn", CNN)])
def test_one_to_four_ranks_give_the_same_bits(fedmpi_cli, mpirun, tmp_path, name, text):
    """1 = 2 = 3 = 4 ranks, each a job of its own; with 4 there are more ranks than participants."""
    (tmp_path / "c.toml").write_text(text)
    files = []
    for ranks in (1, 2, 3, 4):
        out = tmp_path / f"{ranks}.h5"
        words = ("run", "c.toml", "--out", out)
        done = fedmpi_cli(*words) if ranks == 1 else mpirun(ranks, *words)
        assert done.returncode == 0, done.stderr
        files.append(results(out))
    for ranks, other in enumerate(files[1:], start=2):
        for key, value in files[0].items():
            np.testing.assert_array_equal(other[key], value, err_msg=f"{key} on {ranks} ranks")


def test_eight_ranks_with_thousands_of_participants(fedmpi_cli, mpirun, tmp_path):
    """More participants than are kept, on far more ranks than cores: the bits of one rank."""
    (tmp_path / "c.toml").write_text(MANY)
    words = "run", "c.toml", "--out"
    assert fedmpi_cli(*words, "1.h5").returncode == 0
    done = mpirun(8, *words, "8.h5")
    assert done.returncode == 0, done.stderr
    one, eight = (fedmpi.load_run(tmp_path / name) for name in ("1.h5", "8.h5"))
    assert one.train.participants.tolist() == [5000, 5000]
    assert most_kept(len(one.global_params)) < 5000
    assert first_difference(one, eight) is None


def test_evaluation_cadence_does_not_change_the_model(fedmpi_cli, small_config, tmp_path):
    """How often one looks does not change what one sees."""
    for every in (0, 1):
        done = fedmpi_cli("run", small_config, "--out", f"{every}.h5", "--set", f"run.eval_every={every}")
        assert done.returncode == 0, done.stderr
    never, always = results(tmp_path / "0.h5"), results(tmp_path / "1.h5")
    np.testing.assert_array_equal(never["model/global_params"], always["model/global_params"])
    assert len(never["eval/round"]) == 1
    assert always["eval/round"].tolist() == [0, 1, 2, 3, 4, 5, 6]
