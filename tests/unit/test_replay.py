"""`fedmpi replay`: the bits that the run had, from whatever state is near; a divergence is found again."""

from __future__ import annotations

import subprocess
import sys

import h5py
import pytest

import fedmpi
from tests.support.commands import with_tests_on_the_path

EVERY = ("--set", "run.checkpoint_every=2")
DIVERGES = (
    '[run]\nnum_rounds = 500\n[data]\ndataset = "quadratic"\ncenters = [[1.0], [2.0]]\n'
    '[model]\nname = "quadratic"\n[algorithm]\nlocal_lr = 100.0\nlocal_steps = 2\n'
)


def client_of(path, t: int, place: int = 0) -> int:
    """One who took part in a round."""
    rows = fedmpi.load_run(path).participation
    return int(rows[rows["round"] == t]["client"].iloc[place])


@pytest.mark.parametrize(
    ("method", "words", "t", "source"),
    [
        ("fedavg", EVERY, 5, "the checkpoint after 4 rounds, 1 round done again"),
        ("fedavg", EVERY, 3, "x_0, 3 rounds done again"),
        ("fedavg", EVERY, 4, "the checkpoint after 4 rounds\n"),
        ("scaffold", EVERY, 5, "the checkpoint after 4 rounds, 1 round done again"),
        ("fedavg", ("--set", "run.record_params_every=1"), 3, "the model stored for round 3\n"),
        ("scaffold", ("--set", "run.record_params_every=1"), 3, "x_0, 3 rounds done again"),
    ],
)
def test_the_bits_of_the_run(fedmpi_cli, small_config, tmp_path, method, words, t, source):
    """From a checkpoint, from the round itself, from the start; with tables of clients too."""
    more = ("--set", f"algorithm.name={method}", "--set", "participation.selection=permutation")
    assert fedmpi_cli("run", small_config, "--out", "r.h5", *words, *more).returncode == 0
    client = client_of(tmp_path / "r.h5", t, 1)
    done = fedmpi_cli("replay", "r.h5", "--round", t, "--client", client)
    assert done.returncode == 0, done.stdout + done.stderr
    assert source in done.stdout
    assert "had the same bits" in done.stdout


def test_other_bits_are_told(fedmpi_cli, small_config, tmp_path):
    """The file says something else, of this round or of one before: status 1, and where they part."""
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0
    early, late = client_of(tmp_path / "r.h5", 0), client_of(tmp_path / "r.h5", 2)
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        file["participation/update_max"][0] *= 1.0001
    done = fedmpi_cli("replay", "r.h5", "--round", 0, "--client", early)
    assert done.returncode == 1
    assert "other bits" in done.stdout
    done = fedmpi_cli("replay", "r.h5", "--round", 2, "--client", late)
    assert done.returncode == 1
    assert f"round 0, client {early} has another update than in the file" in done.stdout


def test_a_divergence_is_found_again(fedmpi_cli, tmp_path):
    """The message names the command, which finds the local step; nothing is written."""
    (tmp_path / "c.toml").write_text(DIVERGES)
    done = fedmpi_cli("run", "c.toml", "--out", "r.h5")
    assert done.returncode == 3
    line = next(line for line in done.stdout.splitlines() if "look at that update with" in line)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = fedmpi_cli(*line.partition("fedmpi ")[2].split())
    assert again.returncode == 0, again.stderr
    assert "not finite after local step" in again.stdout
    assert "diverged in this round: by this client" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--round", 6, "--client", 0), "--round 6: r.h5 has rounds 0 to 5"),
        (("--round", 0, "--client", 7), "--client 7: the run has clients 0 to 6"),
        (("--round", -1, "--client", 0), "'-1' is not an integer >= 0"),
    ],
)
def test_what_is_not_there_is_refused(fedmpi_cli, small_config, words, message):
    """A round or client that the run does not have: status 2, and what it has."""
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0
    done = fedmpi_cli("replay", "r.h5", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_client_that_took_no_part_is_refused(fedmpi_cli, small_config, tmp_path):
    """Status 2, and who did take part."""
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0
    rows = fedmpi.load_run(tmp_path / "r.h5").participation
    there = rows[rows["round"] == 0]["client"].tolist()
    (absent, *_) = sorted(set(range(7)) - set(there))
    done = fedmpi_cli("replay", "r.h5", "--round", 0, "--client", absent)
    assert done.returncode == 2
    assert f"those who did: {', '.join(map(str, there))}" in done.stderr


def test_no_mpi_is_needed(fedmpi_cli, small_config, tmp_path):
    """A process in which MPI cannot be loaded at all."""
    assert fedmpi_cli("run", small_config, "--out", "r.h5").returncode == 0
    words = ["replay", "r.h5", "--round", "0", "--client", str(client_of(tmp_path / "r.h5", 0))]
    script = (
        f"import sys; sys.modules['mpi4py'] = None\nfrom fedmpi.cli.dispatch import main\nmain({words})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=with_tests_on_the_path({}),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "had the same bits" in done.stdout
