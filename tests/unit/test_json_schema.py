"""The JSON schema: editors accept what fedmpi accepts, and object to what it refuses."""

from __future__ import annotations

import json
import tomllib

import jsonschema
import pytest

from fedmpi.__main__ import main
from fedmpi.config.json_schema import json_schema
from tests.support.configs import ROOT

CONFIGS = [
    path
    for path in sorted(ROOT.glob("configs/**/*.toml"))
    if "base" not in (table := tomllib.loads(path.read_text())) and "run" in table
]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """A checker by the schema, which is itself valid."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_valid(validator, path):
    """No shipped config is underlined in an editor."""
    assert [e.message for e in validator.iter_errors(tomllib.loads(path.read_text()))] == []


WRONG = {
    "unknown key": ("algorithm", "amplfy_every", 2, "amplfy_every"),
    "wrong type": ("run", "num_rounds", "ten", "'ten' is not of type 'integer'"),
    "too small": ("run", "num_rounds", 0, "less than the minimum"),
    "too large": ("data", "similarity", 1.5, "greater than the maximum"),
    "unknown name": ("algorithm", "name", "fedavgg", "fedavgg"),
    "what a part needs": ("participation", "availability", "periodic", "'num_groups' is a required"),
    "a list of the wrong": ("model", "hidden", ["wide"], "'wide' is not of type 'integer'"),
}


@pytest.mark.parametrize(("section", "key", "value", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_are_found(validator, section, key, value, message):
    """What fedmpi would refuse, the editor refuses too."""
    table = {
        "run": {"num_rounds": 3},
        "data": {"dataset": "fashion-mini", "num_clients": 10},
        "model": {"name": "mlp"},
        "algorithm": {"local_lr": 0.1, "local_steps": 1},
    }
    assert not list(validator.iter_errors(table))
    table.setdefault(section, {})[key] = value
    assert any(message in error.message for error in validator.iter_errors(table))


def test_a_function_or_a_file_of_ones_own_is_accepted(validator):
    """Names with a colon, and prepared files."""
    table = {
        "run": {"num_rounds": 3},
        "data": {"dataset": "mine.h5", "num_clients": 10, "partition": "my.rules:by_size"},
        "model": {"name": "my.models:net"},
        "algorithm": {"name": "my.methods:Slow", "local_lr": 1, "local_steps": 1},
    }
    assert not list(validator.iter_errors(table))


def test_the_command_writes_it(tmp_path, capsys):
    """`fedmpi schema` prints it, `--out` writes it."""
    with pytest.raises(SystemExit) as caught:
        main(["schema", "--out", str(tmp_path / "new" / "fedmpi.json")])
    assert caught.value.code == 0
    assert json.loads((tmp_path / "new" / "fedmpi.json").read_text()) == json_schema()
    with pytest.raises(SystemExit):
        main(["schema"])
    assert json.loads(capsys.readouterr().out.partition("\n")[2]) == json_schema()
