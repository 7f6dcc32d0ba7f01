"""`fedmpi help` explains every name that a config may hold; `fedmpi new` writes configs that are valid."""

from __future__ import annotations

from dataclasses import fields

import pytest

from fedmpi.cli.commands_page import commands
from fedmpi.config import AVAILABILITIES, METHODS, sections
from fedmpi.config.effects import unused_keys
from fedmpi.config.explain import explain, topics
from fedmpi.config.registry import REGISTRIES
from fedmpi.config.starting import starting_config
from fedmpi.config.validate import parse

KEYS = [f"{section}.{key.name}" for section, record in sections().items() for key in fields(record)]


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_explained(key):
    """By its full name and by its own: meaning, what is accepted, default, who reads it."""
    (told,) = explain(key)
    assert told.startswith(f"{key}: ")
    for part in ("accepted:", "default:", "read by:"):
        assert f"\n  {part}" in told
    assert told in explain(key.partition(".")[2])


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
def test_every_name_is_explained(registry):
    """Methods, availabilities, models, data sets, ...: what they are, with each key of their own."""
    assert registry.parts()
    for part in registry.parts():
        (told,) = [
            text for text in explain(part.name) if text.startswith(f'{registry.key} = "{part.name}"')
        ]
        assert all(f"\n  {key}: " in told for key in part.key_names)
    assert all(f"\n  {part.name} " in explain(registry.key)[0] for part in registry.parts())


def test_help_in_the_terminal(fedmpi_cli):
    """A key, a name that stands for two things, a command, and all there is."""
    done = fedmpi_cli("help", "algorithm.amplify_every")
    assert done.returncode == 0
    assert done.stdout.startswith("algorithm.amplify_every: P, rounds between amplifications\n")
    both = fedmpi_cli("help", "quadratic").stdout
    assert 'data.dataset = "quadratic": ' in both
    assert 'model.name = "quadratic": ' in both
    assert "usage: fedmpi sweep best" in fedmpi_cli("help", "sweep", "best").stdout
    everything = fedmpi_cli("help").stdout
    assert all(name in everything for name in [*METHODS, *AVAILABILITIES, *commands()])


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("algorithm.amplfy_every", "did you mean algorithm.amplify_every?"),
        ("makrov", "did you mean markov?"),
        ("resmue", "did you mean resume?"),
        ("zzzz", "expected a config key, a section, a name"),
    ],
)
def test_unknown_names_are_refused(fedmpi_cli, wrong, meant):
    """Status 2, and what was meant, or what there is."""
    done = fedmpi_cli("help", wrong)
    assert done.returncode == 2
    assert f"fedmpi: error: help {wrong}: nothing has this name; {meant}" in done.stderr
    assert wrong not in topics()


@pytest.mark.parametrize("availability", AVAILABILITIES)
@pytest.mark.parametrize("method", METHODS)
def test_every_starting_config_is_valid(method, availability):
    """Each method with each availability: valid, it is what was asked for, and no key is without effect."""
    text = starting_config(method, availability)
    config = parse(text, "new.toml")
    assert (config.algorithm.name, config.participation.availability) == (method, availability)
    assert unused_keys(config) == []
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("#") >= text.count(" = ")


@pytest.mark.parametrize("number", range(max(len(METHODS), len(AVAILABILITIES))))
def test_check_accepts_starting_configs(fedmpi_cli, number):
    """`fedmpi check` has no objection and no note: every method and every availability once."""
    method = list(METHODS)[number % len(METHODS)]
    availability = list(AVAILABILITIES)[number % len(AVAILABILITIES)]
    assert fedmpi_cli("new", "--method", method, "--participation", availability,
                      "--out", "my.toml").returncode == 0  # fmt: skip
    done = fedmpi_cli("check", "my.toml")
    assert done.returncode == 0, done.stderr
    assert "my.toml: valid" in done.stdout
    assert "note: " not in done.stdout


def test_new_keeps_what_is_there(fedmpi_cli, tmp_path):
    """An earlier file is overwritten only by --force, and an unknown method is named."""
    assert fedmpi_cli("new", "--out", "my.toml").returncode == 0
    (tmp_path / "my.toml").write_text("mine")
    refused = fedmpi_cli("new", "--out", "my.toml")
    assert (refused.returncode, (tmp_path / "my.toml").read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    assert fedmpi_cli("new", "--out", "my.toml", "--force").returncode == 0
    assert "local_lr" in (tmp_path / "my.toml").read_text()
    unknown = fedmpi_cli("new", "--method", "scafold")
    assert unknown.returncode == 2
    assert "did you mean scaffold?" in unknown.stderr


def test_a_trace_comes_with_an_example(fedmpi_cli, tmp_path):
    """The file of intervals is written too, and one that is there stays."""
    assert fedmpi_cli("new", "--participation", "trace", "--out", "my.toml").returncode == 0
    trace = tmp_path / "my.trace.csv"
    assert trace.read_text().startswith("client,start,end\n0,0,8\n")
    trace.write_text("client,start,end\n0,0,1\n")
    assert fedmpi_cli("new", "--participation", "trace", "--out", "my.toml", "--force").returncode == 0
    assert trace.read_text() == "client,start,end\n0,0,1\n"
