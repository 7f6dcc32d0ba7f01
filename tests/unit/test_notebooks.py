"""The notebooks of analysis/ run from top to bottom on small results and end in a conclusion."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.experiments.sweep.points import load_sweep
from fedmpi.storage.writer import RunWriter
from tests.support.configs import ROOT
from tests.support.run_files import add_rounds, always_run, attributes, finished_run

NOTEBOOKS = sorted((ROOT / "analysis").glob("[0-9]*.ipynb"))
ALL = sorted((ROOT / "analysis").glob("*.ipynb"))  # theory.ipynb is run by tests/launch/test_advise.py


def appendix_run(path, eta: float) -> None:
    """Algorithm 1 on three quadratics in turn, by hand, with the shipped config."""
    text = (ROOT / "configs" / "appendix-example.toml").read_text()
    config = validate.parse(text, "appendix-example.toml", [f"algorithm.amplification={eta}"])
    x = anchor = np.array([1.0, 2.0])
    writer = RunWriter.create(path, attributes() | {"config": config.to_toml()}, '[["x", [2]]]', x)
    writer.add_snapshot(0, x)
    for t in range(15):
        x = x + 0.05 * (np.array(config.data.centers[t % 3]) - x)
        if t % 3 == 2:
            x = anchor = anchor + eta * (x - anchor)
        writer.add_snapshot(t + 1, x)
    add_rounds(writer, 0, 15)
    writer.flush(x, status="done")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs as the appendix has them, by eta; by P and seed; by selection and seed; as environment."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "appendix").mkdir()
    (folder / "runs").mkdir()
    for eta in (1, 5):
        appendix_run(folder / "appendix" / f"{eta}.h5", eta)
    for interval in (2, 5, 10):
        for seed in (1, 2):
            losses = np.linspace(2, 1 / interval + 0.01 * seed, 40)
            finished_run(
                folder / "runs" / f"{interval}-{seed}.h5", f"run.seed={seed}", "algorithm.amplification=2",
                f"algorithm.amplify_every={interval}", losses=losses, accuracies=1 - losses / 4,
            )  # fmt: skip
    (folder / "always").mkdir()
    for selection, wave in (("uniform", 0.4), ("permutation", 0.1)):
        for seed in (1, 2):
            losses = 1 + wave * (1 + np.cos(np.arange(40)))
            path = folder / "always" / f"{selection}-{seed}.h5"
            always_run(path, selection, f"run.seed={seed}", "algorithm.amplification=3", losses=losses)
    return {
        "FEDMPI_TUTORIAL": str(folder / "tutorial"),
        "FEDMPI_TUTORIAL_ROUNDS": "30",
        "FEDMPI_ALWAYS": str(folder / "always"),
        "FEDMPI_RUN": str(folder / "runs" / "2-1.h5"),
        "FEDMPI_RUNS": str(folder / "runs"),
        "FEDMPI_APPENDIX": str(folder / "appendix"),
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, results, monkeypatch, tmp_path):
    """No cell fails; the last one prints the conclusion, which is that of the results made here."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e .[test]")
    nbformat = pytest.importorskip("nbformat")
    for name, value in results.items():
        monkeypatch.setenv(name, value)
    # The kernel finds the code under test, wherever pytest was started.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    (said,) = [o["text"] for o in notebook.cells[-1].outputs if o["output_type"] == "stream"]
    expected = {"1": "is 0.5100", "2": "amplify_every 10", "3": "10", "4": "eta = 5 ends nearest"}
    expected["0"] = "at its best of the rates tried amplification by 3"
    expected["6"] = "amplified FedAvg has the lower training loss"
    expected["5"] = "exactly even is permutation: regularized, P = 7. With amplification 3"
    assert said.startswith("Conclusion: ")
    assert expected[path.name[0]] in said


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_thumbnail(path):
    """The list of notebooks shows a small picture of each."""
    assert f"[{path.stem}]({path.name}) ![]({path.stem}.png)" in (path.parent / "README.md").read_text()
    picture = path.with_suffix(".png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000


@pytest.mark.parametrize("path", sorted((ROOT / "analysis").glob("*.toml")), ids=lambda path: path.stem)
def test_sweep_of_a_notebook(path):
    """The sweeps that make the notebooks' results are valid, and README says how to run them."""
    assert len(load_sweep(path)) >= 10
    assert path.stem in (path.parent / "README.md").read_text()


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_outputs_are_stripped(path):
    """What is committed holds no outputs."""
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
