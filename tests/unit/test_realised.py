"""`fedmpi participation`: the realised Q as a file that a schedule takes back."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from fedmpi.cli.participation import write_participation
from fedmpi.config import validate
from fedmpi.errors import UserError
from fedmpi.experiments.advising import participation_of
from fedmpi.participation import make_participation
from fedmpi.participation.schedule import read_schedule

KINDS = {
    "uniform": [],
    "bernoulli": ["availability=bernoulli", "probability=0.3", "selection=all"],
    "known": [
        "availability=bernoulli",
        "probability=0.3",
        "selection=all",
        "weighting=inverse-probability",
    ],
    "labels": [
        "availability=markov",
        "to_active=0.3",
        "probability_from=labels",
        "mean_probability=0.3",
        "selection=all",
        "weighting=inverse-probability",
    ],
    "thirds": ["selection=permutation", "weighting=all"],
    "sinusoidal": ["availability=sinusoidal", "probability=0.2", "amplitude=0.2", "rounds_per_day=5"],
    "nobody": ["availability=bernoulli", "probability=0", "selection=all"],
}


@pytest.mark.parametrize("suffix", [".h5", ".csv"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_gives_the_same_weights_back(small_config, tmp_path, kind, suffix):
    """All rounds: the same clients and the same bits of weights, through either format."""
    out = tmp_path / "new" / f"q{suffix}"
    overrides = [f"participation.{pair}" for pair in KINDS[kind]]
    assert write_participation(str(small_config), overrides, str(out), 40, force=False) == 0
    config = validate.load(small_config, overrides)
    again = ["participation.selection=schedule", f"participation.schedule={out}"]
    schedule = make_participation(validate.load(small_config, again), 7)
    original, num_clients = participation_of(config)
    assert num_clients == 7
    total = 0
    for t in range(40):
        (clients, weights), (same, same_weights) = original.weights(t), schedule.weights(t)
        assert clients.tolist() == same.tolist(), f"round {t}"
        assert weights.tolist() == same_weights.tolist(), f"round {t}"
        total += len(clients)
    assert (total == 0) == (kind == "nobody")
    assert len(schedule.weights(40)[0]) == 0


def test_by_default_all_rounds_of_the_run_are_written(small_config, tmp_path, capsys):
    """T rounds of 3 clients, and a word on how to use them."""
    out = tmp_path / "q.h5"
    write_participation(str(small_config), [], str(out), None, force=False)
    with h5py.File(out) as file:
        assert file.attrs["format"] == "fedmpi-participation"
        assert (file.attrs["num_rounds"], file.attrs["num_clients"]) == (6, 7)
        assert np.bincount(file["participation/round"]).tolist() == [3] * 6
        assert validate.parse(str(file.attrs["config"]), "stored") == validate.load(small_config)
    printed = capsys.readouterr().out
    assert "6 rounds of 7 clients, 18 weights" in printed
    assert f'participation.schedule = "{out}"' in printed


def test_the_data_are_read_only_where_participation_depends_on_them(small_config):
    """A data set that is not there is no hindrance, unless labels or the number of clients come from it."""
    missing = ["data.dataset=missing.h5"]
    assert participation_of(validate.load(small_config, missing))[1] == 7
    labels = ["participation.availability=bernoulli", "participation.probability_from=labels"]
    with pytest.raises(UserError, match="no such file"):
        participation_of(validate.load(small_config, missing + labels))


@pytest.mark.parametrize("name", ["q.json", "q", "q.h5x"])
def test_other_formats_are_refused(small_config, tmp_path, name):
    """A suffix that is not read back is refused with those that are."""
    with pytest.raises(UserError, match=r"accepted: \.h5, \.hdf5, \.csv"):
        write_participation(str(small_config), [], str(tmp_path / name), 5, force=False)
    assert not (tmp_path / name).exists()


def test_an_existing_file_stays_unless_forced(small_config, tmp_path):
    """Nothing is overwritten by accident."""
    out = tmp_path / "q.csv"
    out.write_text("precious")
    with pytest.raises(UserError, match="exists; choose another name, or overwrite it with --force"):
        write_participation(str(small_config), [], str(out), 5, force=False)
    assert out.read_text() == "precious"
    write_participation(str(small_config), [], str(out), 5, force=True)
    assert len(read_schedule(out, 7).weights(4)[0]) == 3


def test_a_place_that_cannot_be_written_is_a_user_error(small_config, tmp_path):
    """A file where a folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write there"):
        write_participation(str(small_config), [], str(tmp_path / "file" / "q.h5"), 5, force=False)


def test_the_command_line(fedmpi_cli, small_config, tmp_path):
    """`fedmpi participation CONFIG --out q.csv --rounds 3 --set ...`."""
    arguments = ["participation", small_config, "--out", "q.csv", "--rounds"]
    assert fedmpi_cli(*arguments, 3, "--set", "participation.clients_per_round=1").returncode == 0
    lines = (tmp_path / "q.csv").read_text().splitlines()
    assert lines[0] == "round,client,weight"
    assert [line.split(",")[::2] for line in lines[1:]] == [["0", "1.0"], ["1", "1.0"], ["2", "1.0"]]
    assert fedmpi_cli(*arguments, 0).returncode == 2
