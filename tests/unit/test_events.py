"""TensorBoard events: what the result file holds, once each, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import fedmpi
from fedmpi.errors import OutputError
from fedmpi.experiments.tensorboard import EventFiles, events_folder
from fedmpi.results.compare import first_difference
from tests.support.run_files import INITIAL, add_rounds, create_run, finished_run

METRICS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each curve, as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected(path) -> dict[str, list[tuple[int, float]]]:
    """The same from the result file."""
    run = fedmpi.load_run(path)
    norms = dict(zip(run.train["round"] + 1, run.train.weighted_sum_norm, strict=True))
    curves = {
        name: [(t, np.float32(v)) for t, v in zip(run.eval["round"], run.eval[name], strict=True)]
        for name in METRICS
    }
    return curves | {
        "weighted_sum_norm": [(t, np.float32(norms[t])) for t in run.eval["round"] if t in norms]
    }


def test_run_and_resume(small_config, tmp_path, fedmpi_cli):
    """A run writes its evaluations as events; one that goes on keeps the earlier points, none twice."""
    result = fedmpi_cli("run", small_config, "--out", "r.h5", "--set", "run.tensorboard=true")
    assert result.returncode == 0, result.stderr
    first = scalars(tmp_path / "r.tb")
    assert [step for step, _ in first["train_loss"]] == [0, 3, 6]
    assert [step for step, _ in first["weighted_sum_norm"]] == [3, 6]
    assert first == expected(tmp_path / "r.h5")
    fedmpi_cli("resume", "r.h5", "--set", "run.num_rounds=9")
    assert [step for step, _ in scalars(tmp_path / "r.tb")["train_loss"]] == [0, 3, 6, 9]
    assert scalars(tmp_path / "r.tb") == expected(tmp_path / "r.h5")


def test_no_bit_changes(small_config, tmp_path, fedmpi_cli):
    """With and without events, switched on when a run goes on or off, the results are the same."""
    for name, first, then in (("a", "true", "false"), ("b", "false", "true")):
        fedmpi_cli("run", small_config, "--out", f"{name}.h5", "--set", f"run.tensorboard={first}")
        more = ("--set", "run.num_rounds=9", "--set", f"run.tensorboard={then}")
        assert fedmpi_cli("resume", f"{name}.h5", *more).returncode == 0
    a, b = (fedmpi.load_run(tmp_path / f"{name}.h5") for name in "ab")
    assert len(a.eval) == 4
    assert first_difference(a, b) is None
    assert scalars(tmp_path / "b.tb") == expected(tmp_path / "b.h5")


def test_points_after_the_checkpoint_are_forgotten(tmp_path):
    """What a killed run had shown, but the result file does not hold, is gone when it goes on."""
    path = finished_run(tmp_path / "r.h5")
    events = EventFiles(path, 0.0)
    metrics = dict.fromkeys(("train_loss", "train_accuracy", "test_loss", "test_accuracy"), 0.5)
    events.add("eval", round=12, **metrics, wall_time_s=3.0)  # never reached the result file
    events.close()
    assert [step for step, _ in scalars(events_folder(path))["test_loss"]][-1] == 12
    EventFiles(path, 1.5).close()
    assert scalars(events_folder(path)) == expected(path)


def test_metric_that_was_not_evaluated(tmp_path):
    """A round without a training figure has no point in that curve."""
    writer = create_run(tmp_path / "r.h5")
    add_rounds(writer, 0, 2)
    writer.add("eval", 2, np.nan, np.nan, 1.5, 0.5, 0.5)
    writer.flush(INITIAL)
    EventFiles(tmp_path / "r.h5", 0.0).close()
    assert scalars(tmp_path / "r.tb") == {
        "test_loss": [(2, 1.5)], "test_accuracy": [(2, 0.5)], "weighted_sum_norm": [(2, 0.25)]
    }  # fmt: skip


def test_overwritten_run_leaves_no_old_events(small_config, tmp_path, fedmpi_cli):
    """`--force` without events removes those of the run that is overwritten, and no other file."""
    fedmpi_cli("run", small_config, "--out", "r.h5", "--set", "run.tensorboard=true")
    (tmp_path / "r.tb" / "notes.txt").write_text("mine")
    assert fedmpi_cli("run", small_config, "--out", "r.h5", "--force").returncode == 0
    assert [path.name for path in (tmp_path / "r.tb").iterdir()] == ["notes.txt"]


def test_folder_that_cannot_be_made(tmp_path):
    """A file where the folder should be is an error that names it."""
    path = finished_run(tmp_path / "r.h5")
    (tmp_path / "r.tb").write_text("in the way")
    with pytest.raises(OutputError, match=r"cannot write .*r\.tb: "):
        EventFiles(path, 0.0)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_missing_package_is_told_before_the_run(small_config, tmp_path, fedmpi_process, command):
    """Without tensorboard there is one sentence with the remedy, status 2, and no result file."""
    (tmp_path / "stub" / "tensorboard").mkdir(parents=True)
    (tmp_path / "stub" / "tensorboard" / "__init__.py").write_text("raise ImportError('not here')")
    small_config.write_text(small_config.read_text().replace("[run]", "[run]\ntensorboard = true"))
    (tmp_path / "sweep.toml").write_text('base = "small.toml"\nseeds = [1]\n')
    target = {"run": ("small.toml", "--out", "r.h5"), "sweep": ("sweep.toml", "--out", "runs")}[command]
    path = f"{tmp_path / 'stub'}:{':'.join(sys.path)}"
    result = fedmpi_process(command, *target, PYTHONPATH=path)
    assert result.returncode == 2
    assert result.stderr.startswith("fedmpi: error: config run.tensorboard = true: needs the package")
    assert "(not here); pip install tensorboard" in result.stderr
    assert not list(tmp_path.rglob("*.h5"))


def test_nothing_is_imported_unless_asked_for(small_config, tmp_path):
    """A run without events loads no TensorBoard."""
    code = (
        "import sys\nfrom fedmpi.cli.run import run\n"
        "run(sys.argv[1], sys.argv[2], [])\n"
        "assert not [name for name in sys.modules if 'tensorboard' in name and 'fedmpi' not in name]"
    )
    command = [sys.executable, "-c", code, str(small_config), str(tmp_path / "r.h5")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
