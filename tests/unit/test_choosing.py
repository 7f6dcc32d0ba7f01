"""Sweeps that build on each other, runs chosen by name, configs written out, and where old configs went."""

from __future__ import annotations

import shlex

import pytest

import fedmpi
from fedmpi.config import validate
from fedmpi.errors import ConfigError, UserError
from fedmpi.errors.moved_files import command_for
from fedmpi.experiments.reproduce import path_of
from fedmpi.experiments.sweep.choosing import only
from fedmpi.experiments.sweep.points import experiment, load_sweep
from tests.support.configs import SMALL

BELOW = """
base = "small.toml"
seeds = [1]
[common]
algorithm.local_lr = 0.5
run.num_rounds = 7
[quick]
run.num_rounds = 3
[[cases]]
name = "not inherited"
"""
ABOVE = """
base = "below.toml"
seeds = [4, 5]
[common]
run.num_rounds = 9
[grid]
"algorithm.local_steps" = [1, 2]
[[cases]]
name = "one"
[[cases]]
name = "other"
algorithm.local_steps = 3
[cases.grid]
"algorithm.batch_size" = [1, 2]
"""

# Paths of version 0.1, one of each kind.
OLD = [
    "configs/paper/fashion-sweep.toml", "configs/paper/cifar-always-sweep.toml",
    "configs/paper/fashion-initial-sweep.toml", "configs/paper/fashion-wait-sweep.toml",
    "configs/paper/cifar-always-uniform.toml", "configs/paper/fashion-always-permutation.toml",
    *(f"configs/paper/cifar-amplified-p{P}.toml" for P in (1, 100, 300, 700, 900)),
    "configs/paper/fashion-amplified.toml", "configs/paper/cifar-wait-full.toml",
    *(f"/home/me/configs/periodic/{data}-{name}.toml" for data in ("fashion", "cifar") for name in
      ("amplified-fedavg", "amplified-scaffold", "fedau", "fedavg", "fedprox", "fedvarp", "focus", "mifa",
       "scaffold")),
    *(f"configs/unknown-participation/{who}-{name}.toml" for who in ("bernoulli", "cyclic", "markov")
      for name in ("fedau", "fedavg-all", "fedavg-participants", "fedvarp", "known-probability", "mifa")),
    *(f"configs/motivating/gamma{gamma}-eta{eta}.toml" for gamma, eta in
      ((0.05, 1), (0.05, 2), (0.05, 5), (0.05, 10), (0.1, 1), (0.25, 1), (0.5, 1))),
    *(f"configs/theory/{who}.toml" for who in ("markov", "periodic", "permutation", "uniform")),
]  # fmt: skip


@pytest.fixture
def above(tmp_path):
    """A sweep over a sweep over the small experiment."""
    for name, text in (("small", SMALL), ("below", BELOW), ("above", ABOVE)):
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path / "above.toml"


def test_a_sweep_builds_on_another(above):
    """Base and [common] are taken over, cases, grid and seeds are not; a case may have a grid."""
    points = load_sweep(above)
    assert [p.name for p in points if p.seed == 4] == [
        "one_local_steps-1_seed-4", "one_local_steps-2_seed-4",
        "other_batch_size-1_seed-4", "other_batch_size-2_seed-4",
    ]  # fmt: skip
    assert {(p.config.algorithm.local_lr, p.config.run.num_rounds) for p in points} == {(0.5, 9)}
    quick = load_sweep(above, quick=True)
    assert {(p.seed, p.config.run.num_rounds) for p in quick} == {(4, 3)}


def test_a_published_experiment_is_a_base(tmp_path):
    """By its name, where no file has that name: a comparison of one's own on a published protocol."""
    (tmp_path / "own.toml").write_text('base = "periodic"\n[grid]\n"algorithm.local_lr" = [1, 2]\n')
    (point, _) = load_sweep(tmp_path / "own.toml")
    published = load_sweep("periodic")[0].config
    assert point.config.participation == published.participation


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('base = "above.toml"', "more than 10 sweeps on each other"),
        ('base = "small.toml"\n[common]\nalgorithm.local_rl = 1', "did you mean algorithm.local_lr?"),
        ('base = "small.toml"\n[[cases]]\n[cases.grid]\n"run.num_rounds" = 3', "expected a list of values"),
        ('base = "small.toml"\nquick = 3', "expected a section [quick]"),
    ],
)
def test_mistakes_in_layers(above, text, said):
    """Each is told with the file that it stands in."""
    (above.parent / "below.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"(above|below)\.toml") as caught:
        load_sweep(above)
    assert said in str(caught.value)


def test_quick_needs_its_settings(above):
    """A sweep without [quick] has no short version, and says so."""
    (above.parent / "below.toml").write_text('base = "small.toml"')
    with pytest.raises(ConfigError, match="sweep quick: missing"):
        load_sweep(above, quick=True)


def test_only_takes_cases_and_runs(above):
    """By case, by name with or without seed, by pattern, whatever capitals; another name is refused."""
    points = load_sweep(above)
    assert len(only(points, ["ONE"])) == len(only(points, ["other*"])) == 4
    assert len(only(points, ["one_local_steps-1"])) == 2
    assert [p.name for p in only(points, ["other_batch_size-2_seed-5"])] == ["other_batch_size-2_seed-5"]
    assert only(points, None) == points
    with pytest.raises(UserError, match="did you mean other"):
        only(points, ["one", "othr"])


def test_a_config_written_out_is_the_run(fedmpi_cli, above, tmp_path):
    """`sweep --write-configs` gives files that stand alone: same experiment, same bits."""
    done = fedmpi_cli("sweep", above, "--only", "one_local_steps-2_seed-4", "--write-configs", "c")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "c").iterdir()
    (point,) = only(load_sweep(above), ["one_local_steps-2_seed-4"])
    assert experiment(validate.load(path)) == experiment(point.config)
    assert fedmpi_cli("sweep", above, "--only", point.name, "--out", "runs").returncode == 0
    assert fedmpi_cli("run", path, "--out", "alone.h5").returncode == 0
    alone, swept = (fedmpi.load_run(tmp_path / name) for name in ("alone.h5", f"runs/{point.name}.h5"))
    assert (alone.global_params == swept.global_params).all()
    path.write_text("# mine")
    done = fedmpi_cli("sweep", above, "--write-configs", "c")
    assert done.returncode == 2
    assert "exists with other text" in done.stderr


def test_reproduce_lists_and_takes_a_part(fedmpi_cli, tmp_path):
    """Without a name all experiments; with --list its runs; with --only one curve, its table and figure."""
    assert "unknown-participation" in fedmpi_cli("reproduce").stdout
    listed = fedmpi_cli("reproduce", "appendix", "--list").stdout
    assert listed.count("waiting") == 7
    done = fedmpi_cli("reproduce", "appendix", "--only", "gamma-0.05-eta-5")
    assert done.returncode == 0, done.stderr
    assert [path.stem for path in (tmp_path / "reproduced").rglob("*.h5")] == ["gamma-0.05-eta-5_seed-1"]
    assert (tmp_path / "reproduced" / "appendix" / "figure.png").exists()
    assert "no setting is done" not in done.stdout
    assert "--out: missing" in fedmpi_cli("sweep", "appendix").stderr


@pytest.mark.parametrize("path", OLD)
def test_an_old_config_names_its_command(path):
    """Who gives a path of version 0.1 is told the experiment and the curve that it is now."""
    with pytest.raises(UserError, match="moved; it is `fedmpi reproduce ") as caught:
        validate.load(path)
    command = shlex.split(str(caught.value).split("`")[1])
    points = load_sweep(path_of(command[2]))
    assert only(points, command[4].split(",") if len(command) > 3 else None)


def test_other_missing_files_are_not_called_moved():
    """A file that never was in configs/ is simply not there."""
    assert command_for("configs/paper/other.toml") == command_for("periodic/fashion-mifa.toml") == ""
