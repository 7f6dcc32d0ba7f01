"""Profiles of sites for `fedmpi slurm`: what they ask for, who wins, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedmpi.errors import ConfigError
from fedmpi.experiments import job_site
from fedmpi.experiments.job_site import load_site, parse_site
from tests.support.configs import ROOT

_FEW = "fedmpi: warning: 8 ranks for 7 clients: some ranks will own no client\n"
SHIPPED = sorted(path.stem for path in (Path(job_site.__file__).parent / "sites").glob("*.toml"))


@pytest.fixture
def slurm(fedmpi_cli, small_config):
    """`fedmpi slurm` of a small config: what it prints."""
    return lambda *words, **env: fedmpi_cli("slurm", small_config, "--time", "30", *words, **env)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("perlmutter", ["--constraint=gpu", "--qos=regular", "--gpus-per-node=4", "--cpus-per-task=32"]),
        ("lumi-g", ["--partition=standard-g", "--gpus-per-node=8", "--cpus-per-task=7"]),
        ("juwels-booster", ["--partition=booster", "--gres=gpu:4", "--cpus-per-task=12"]),
    ],
)
def test_the_shipped_profiles(slurm, tmp_path, name, lines):
    """A rank for each GPU, SLURM's own way to start the site's MPI, no memory; nothing for shellcheck."""
    done = slurm("--site", name, "--account", "mine")
    assert done.returncode == 0, done.stderr
    assert done.stderr.replace(_FEW, "") == ""
    for line in [*lines, "--account=mine"]:
        assert f"#SBATCH {line}\n" in done.stdout
    assert "--mpi" not in done.stdout
    assert "mpirun" not in done.stdout  # not there
    assert "--mem" not in done.stdout
    assert f"by the profile {name}." in done.stdout
    (tmp_path / "job.sh").write_text(done.stdout)
    subprocess.run([shutil.which("shellcheck") or "true", tmp_path / "job.sh"], check=True)


def test_all_shipped_profiles_are_tested():
    """Those above are all; each says what it is and that the site takes no job without an account."""
    assert SHIPPED == ["juwels-booster", "lumi-g", "perlmutter"]
    assert {load_site(name).needs for name in SHIPPED} == {("account",)}
    assert len({load_site(name).about for name in SHIPPED}) == 3


def test_options_win_over_the_profile(slurm):
    """Each by itself; one way to ask for GPUs or memory takes the place of the other; lines add up."""
    text = slurm(
        "--site", "perlmutter", "--account", "a", "--qos", "debug", "--mpi", "pmix", "--gpus-per-task", "1",
        "--memory-per-gpu-mb", "9", "--sbatch", "--mail-type=END", "--sbatch", "--constraint=cpu",
    ).stdout  # fmt: skip
    for line in (
        "--qos=debug", "--gpus-per-task=1", "--ntasks-per-node=4", "--mem-per-gpu=9M", "--mail-type=END",
        "--constraint=cpu",
    ):  # fmt: skip
        assert f"#SBATCH {line}" in text
    for line in ("--qos=regular", "--gpus-per-node", "--constraint=gpu"):
        assert line not in text
    assert "launch=(srun --mpi=pmix --cpu-bind=cores)" in text


def test_a_profile_of_ones_own(slurm, tmp_path):
    """Any file; all its keys have an effect."""
    (tmp_path / "mine.toml").write_text(
        'about = "My cluster"\nnodes = 2\nranks_per_node = 3\nlead = 200\nmpi = "pspmix"\nretries = 5\n'
        'hint = "nomultithread"\nmemory_mb = 700\nsbatch = ["--exclusive"]\nsetup = ["module load mpi"]\n'
    )
    done = slurm("--site", "mine.toml")
    assert done.returncode == 0, done.stderr
    for line in (
        "# For My cluster, by the profile mine.toml.", "#SBATCH --nodes=2", "#SBATCH --hint=nomultithread",
        "#SBATCH --mem-per-cpu=700M", "#SBATCH --exclusive", "module load mpi", "retries=5",
        "launch=(srun --mpi=pspmix)",
    ):  # fmt: skip
        assert line in done.stdout.splitlines()
    assert "--ntasks-per-node=3 " in done.stdout
    assert "B:USR1@200" in done.stdout


def test_the_profile_in_the_readme():
    """What jobs/README.md shows as a profile is one, and it names every key."""
    page = (ROOT / "jobs" / "README.md").read_text()
    (block,) = page.split("```toml\n")[1:]
    example, rest = block.split("```")[:2]
    assert parse_site(example, "README.md").settings["ranks_per_node"] == 4
    assert [key for key in job_site._KEYS if key not in block.split("## ")[0]] == []
    assert rest.startswith("\n\nFurther keys")


def test_the_problems_of_a_profile_are_one_report():
    """Unknown keys with a suggestion, values of another kind with what is expected; nothing is written."""
    text = (
        'partitoin = "gpu"\nranks_per_node = 0\ngres = 1\nhint = "fast"\nsbatch = ["--a=1", "2&3"]\n'
        'needs = ["acount"]\nlauncher = "aprun"\nsrun = "--x"\nqos = ["a"]\nmemory_mb = true\n'
        'mpi = "a\\nb"\n'
    )
    with pytest.raises(ConfigError) as refused:
        parse_site(text, "mine.toml")
    report = str(refused.value)
    assert report.startswith("11 problems in site profile mine.toml:")
    for part in (
        "partitoin: unknown key; did you mean partition?",
        "ranks_per_node = 0: expected an integer >= 1",
        "gres = 1: expected true or false",
        "hint = 'fast': expected one of nomultithread",
        "sbatch '2&3': expected one option of sbatch",
        "needs: 'acount' is not an option that a site can need; did you mean account?",
        "launcher = 'aprun': expected srun or mpirun",
        "srun = '--x': expected a list of lines of text",
        "qos = ['a']: expected a line of text",
        "memory_mb = True: expected an integer >= 0",
        "mpi = 'a\\nb': expected a line of text",
    ):
        assert part in report


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--site", "perlmuter"], "--site perlmuter: unknown site; did you mean perlmutter?"),
        (["--site", "none.toml"], "--site none.toml: No such file or directory; name a TOML file"),
        (["--site", "binary.toml"], "--site binary.toml: not a text file"),
        (
            ["--site", "unknown.toml"],
            "1 problem in site profile unknown.toml:\n  gpus: unknown key; accepted: about, account",
        ),
        (["--site", "broken.toml"], "not valid TOML"),
        (["--site", "both.toml"], "--gpus-per-node and --gpus-per-task: both.toml gives both"),
        (["--site", "lumi-g"], "--site lumi-g: LUMI-G (CSC), GPU nodes takes no job without --account"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_bad_profiles(slurm, tmp_path, words, text):
    """A clear sentence, status 2, and no script."""
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "unknown.toml").write_text("gpus = 1\n")
    (tmp_path / "broken.toml").write_text("qos = \n")
    (tmp_path / "both.toml").write_text("gpus_per_node = 1\ngpus_per_task = 1\n")
    done = slurm(*words, "--script", "job.sh")
    assert done.returncode == 2
    assert text in done.stderr
    assert not (tmp_path / "job.sh").exists()


def test_an_account_in_another_way(slurm):
    """sbatch takes it from the environment and from a line too."""
    assert slurm("--site", "lumi-g", SBATCH_ACCOUNT="a").returncode == 0
    assert slurm("--site", "lumi-g", "--sbatch", "-A mine").returncode == 0


def test_a_partition_that_does_not_exist(slurm, tmp_path, monkeypatch):
    """Where SLURM answers, refused with the nearest name; elsewhere it is for another machine."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    sinfo = tmp_path / "bin" / "sinfo"

    def answer(lines: str) -> None:
        sinfo.write_text(f"#!/bin/sh\n{lines}\n")
        sinfo.chmod(0o755)

    answer("echo standart-g; echo debug")
    done = slurm("--site", "lumi-g", "--account", "a")
    assert done.returncode == 2
    assert "site profile lumi-g: partition standard-g does not exist on this cluster" in done.stderr
    assert "did you mean standart-g?" in done.stderr
    assert slurm("--site", "lumi-g", "--account", "a", "--partition", "debug").returncode == 0
    assert "--partition: partition x does not exist" in slurm("--partition", "debug,x").stderr
    answer("echo down >&2; exit 1")
    assert slurm("--partition", "x").returncode == 0
