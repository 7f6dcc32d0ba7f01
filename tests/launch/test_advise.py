"""`fedmpi advise`, measured constants, and what a run records of the theory, as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedmpi
from fedmpi import theory
from fedmpi.config import validate
from tests.support.commands import under_mpirun, with_tests_on_the_path
from tests.support.configs import ROOT, SMALL

APPENDIX = ROOT / "configs" / "appendix-example.toml"
AMPLIFY = ("--set", "algorithm.amplification=2", "--set", "algorithm.amplify_every=2")
RECORD = (
    "--set", "run.record_theory_every=2", "--set", "run.eval_at_amplification=true",
    "--set", "run.record_params_every=1",
)  # fmt: skip


def advice(done: subprocess.CompletedProcess) -> dict:
    """The JSON object that was printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_advice_on_the_appendix_example(fedmpi_cli, tmp_path):
    """Every constant of the three-client example is what one computes by hand."""
    found = advice(fedmpi_cli("advise", APPENDIX, "--json", "--plot", "advice.png"))
    assert found["rho"] == 1
    assert found["regularized_P"] == 3
    assert found["delta2"][:4] == [[1, pytest.approx(2)], [2, pytest.approx(0.5)], [3, 0], [4, 0.125]]
    assert found["longest_absence"] == 2
    gap = (1 + (2 - np.sqrt(1 / 3)) ** 2) / 2
    assert found["constants"]["F"] == pytest.approx(gap)
    assert found["constants"]["beta2"] == found["constants"]["d2"] == pytest.approx(4 / 3)
    assert found["conditions"] == {
        "gamma <= 1/(12 L I P)": False, "gamma*eta <= 1/(2 L I P)": False, "P <= T/2": True,
        "sum of q = 1": True,
    }  # fmt: skip
    assert found["bound"]["start"] == pytest.approx(8 * gap / (0.05 * 10 * 15))
    assert found["bound"]["beta"] == pytest.approx(144 * 0.05**2 * 9 * 4 / 3)
    terms = [value for term, value in found["bound"].items() if term != "total"]
    assert found["bound"]["total"] == pytest.approx(sum(terms))
    suggested = found["suggested"]
    assert suggested["amplify_every"] == 3
    assert suggested["local_lr"] == pytest.approx(1 / (12 * 3 * np.sqrt(15)))
    assert suggested["amplification"] == pytest.approx(6 * np.sqrt(15))
    assert suggested["corollary"].startswith("3.2")
    assert (tmp_path / "advice.png").stat().st_size > 10_000


def test_advice_from_weights_alone_at_a_million_clients(fedmpi_cli, small_config):
    """Without constants it tells of evenness only, in seconds, and finds a P of 5,000 rounds."""
    million = ["--set", "data.num_clients=1000000", "--set", "data.allow_empty=true"]
    how = ["--set", "participation.selection=permutation", "--set", "participation.clients_per_round=200"]
    found = advice(
        fedmpi_cli("advise", small_config, "--json", *million, *how, "--set", "run.num_rounds=50000")
    )
    assert found["regularized_P"] == 5000
    assert found["suggested"]["amplify_every"] == 5000
    assert found["suggested"]["local_lr"] is None
    assert found["bound"] is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """whole.h5, a small run on two ranks that records everything, with its config."""
    path = tmp_path_factory.mktemp("recorded")
    (path / "small.toml").write_text(SMALL)
    done = under_mpirun(path, 2, "run", "small.toml", "--out", "whole.h5", *AMPLIFY, *RECORD)
    assert done.returncode == 0, done.stderr
    return path


def test_measured_constants_of_a_logistic_model(mpirun, folder):
    """On two ranks, L, d^2, beta^2 and F at a run's model are those of numpy with dense Hessians."""
    path = folder / "whole.h5"
    found = advice(mpirun(2, "advise", folder / "small.toml", "--at", path, "--json"))["constants"]
    assert found["source"].startswith("estimates at a point")
    run = fedmpi.load_run(path)
    losses, gradients, largest = _logistic(run.global_params, hessians=True)
    deviations = gradients - gradients.mean(axis=0)
    expected = theory.divergence(theory.Weights.dense(weights_of(run)), deviations)
    assert found["F"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["d2"] == pytest.approx(expected.d2, rel=1e-4)
    assert found["beta2"] == pytest.approx(expected.beta2, rel=1e-4)
    assert found["nu2"] == pytest.approx(expected.nu2, rel=1e-4)
    assert 0.9 * largest < found["L"] <= largest * 1.001  # a power iteration comes from below
    assert found["sigma2"] > 0


def weights_of(run: fedmpi.storage.reader.Run) -> np.ndarray:
    """Q of a run of SMALL."""
    q = np.zeros((6, 7))
    q[run.participation["round"], run.participation.client] = run.participation.weight
    return q


def _logistic(x: np.ndarray, *, hessians: bool = False) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses and gradients of the clients of SMALL, and the largest eigenvalue of their Hessians."""
    from fedmpi.data.partition import make_partition
    from fedmpi.data.sources import load_dataset

    config = validate.parse(SMALL, "small", [])
    data = load_dataset(config.data)
    partition = make_partition(data.train_labels, None, data.num_classes, config.data, config.run.seed)
    weight, bias = x[:-10].reshape(10, -1), x[-10:]
    losses, gradients, largest = [], [], 0.0
    for n in range(7):
        first = partition.offsets[n]
        rows = partition.order[first : first + partition.sizes[n]]
        inputs = data.train_inputs[rows].reshape(len(rows), -1).astype(float)
        if data.train_inputs.dtype == np.uint8:
            inputs = (inputs / 255 - data.mean[0]) / data.std[0]
        logits = inputs @ weight.T + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        truth = np.eye(10)[data.train_labels[rows]]
        losses.append(-np.log((p * truth).sum(axis=1)).mean())
        gradients.append(
            np.concatenate([((p - truth).T @ inputs).ravel(), (p - truth).sum(axis=0)]) / len(rows)
        )
        if not hessians:
            continue
        extended = np.hstack([inputs, np.ones((len(rows), 1))])
        hessian = sum(
            np.kron(np.diag(c) - np.outer(c, c), np.outer(a, a)) for c, a in zip(p, extended, strict=True)
        )
        largest = max(largest, np.linalg.eigvalsh(hessian / len(rows))[-1])
    return np.array(losses), np.array(gradients), largest


def test_what_a_run_records_of_the_theory(folder):
    """/theory holds what numpy computes at x_t; /amplification both sides of each amplification."""
    run = fedmpi.load_run(folder / "whole.h5")
    assert run.theory["round"].tolist() == [0, 2, 4]
    for row in run.theory.itertuples():
        _, gradients, _ = _logistic(run.params[1][row.round])
        mean = gradients.mean(axis=0)
        distances = ((gradients - mean) ** 2).sum(axis=1)
        q = theory.Weights.dense(weights_of(run)[row.round : row.round + 1])
        expected = theory.divergence(q, gradients - mean)
        assert row.grad_norm2 == pytest.approx((mean**2).sum(), rel=1e-4)
        assert row.d2 == pytest.approx(distances.max(), rel=1e-4)
        assert row.mean_d2 == pytest.approx(distances.mean(), rel=1e-4)
        assert (row.beta2, row.nu2) == pytest.approx((expected.beta2, expected.nu2), rel=1e-4)

    teeth = run.amplification
    assert teeth["round"].tolist() == [2, 2, 4, 4, 6, 6]
    assert teeth.is_after.tolist() == [False, True] * 3
    assert teeth.train_loss.iloc[-1] == run.eval.train_loss.iloc[-1]
    # Just before the first amplification by 2, x had gone half the way.
    losses, _, _ = _logistic((run.params[1][0] + run.params[1][2]) / 2)
    loss = np.average(losses, weights=run.clients["size"])
    assert teeth.train_loss[0] == pytest.approx(loss, rel=1e-5)


def test_recording_changes_no_bit_and_goes_on_after_a_resume(fedmpi_cli, folder, tmp_path):
    """A run in two legs on one rank records the same; without recording the model is the same."""
    config, short = folder / "small.toml", ("--set", "run.num_rounds=4")
    assert fedmpi_cli("run", config, "--out", "plain.h5", *AMPLIFY).returncode == 0
    assert fedmpi_cli("run", config, "--out", "legs.h5", *AMPLIFY, *RECORD, *short).returncode == 0
    assert fedmpi_cli("resume", "legs.h5", "--set", "run.num_rounds=6").returncode == 0
    plain, legs = (fedmpi.load_run(tmp_path / f"{name}.h5") for name in ("plain", "legs"))
    whole = fedmpi.load_run(folder / "whole.h5")
    assert whole.theory.equals(legs.theory)
    assert whole.amplification.equals(legs.amplification)
    assert plain.theory is None
    assert plain.amplification is None
    np.testing.assert_array_equal(plain.global_params, whole.global_params)
    assert plain.eval.drop(columns="wall_time_s").equals(whole.eval.drop(columns="wall_time_s"))


def test_the_eight_panels(tmp_path):
    """One script runs the appendix example; only amplification comes near the optimum in 15 rounds."""
    done = subprocess.run(
        [sys.executable, ROOT / "analysis" / "motivating.py", "panels.png"],
        cwd=tmp_path, env=with_tests_on_the_path({}), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "panels.png").stat().st_size > 50_000
    gaps = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("  gamma")]
    assert len(gaps) == 8
    assert min(gaps[:4]) > 0.01
    assert max(gaps[6:]) < 0.001


def test_the_theory_notebook(fedmpi_cli, tmp_path, monkeypatch):
    """On short runs of two configs the bound holds, and the notebook tells who is even over 5 rounds."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e .[test]")
    nbformat = pytest.importorskip("nbformat")
    (tmp_path / "runs").mkdir()
    done = fedmpi_cli("sweep", "theory", "--only", "permutation,uniform", "--write-configs", "configs")
    assert done.returncode == 0, done.stderr
    for who in ("permutation_seed-1", "uniform_seed-1"):
        config = f"configs/{who}.toml"
        done = fedmpi_cli("run", config, "--out", f"runs/{who}.h5", "--set", "run.num_rounds=100")
        assert done.returncode == 0, done.stderr
    monkeypatch.setenv("FEDMPI_THEORY", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "analysis" / "theory.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    (said,) = [o["text"] for o in notebook.cells[-1].outputs if o["output_type"] == "stream"]
    assert "the bound holds at every T in all 2 runs" in said
    assert "delta^2(5) is exactly 0 for permutation." in said
