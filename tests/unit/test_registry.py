"""Options belong to what reads them: a part added in one file is known wherever it should be."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from fedmpi.__main__ import main
from fedmpi.config import sections, validate
from fedmpi.config.effects import unused_keys
from fedmpi.config.json_schema import json_schema
from fedmpi.config.reference import reference
from fedmpi.config.registry import REGISTRIES
from fedmpi.errors import ConfigError
from tests.support.simulations import run_to_file

CONFIG = """
[run]
num_rounds = 4
[data]
dataset = "stripes"
stripe_width = 7
num_clients = 6
partition = "blocks"
[model]
name = "scaled"
[participation]
availability = "every-other"
selection = "first-two"
weighting = "half"
[task]
name = "top-two"
[algorithm]
name = "lazy"
local_lr = 0.1
local_steps = 2
"""
# The key that names the part, the part, and a key of its own.
ADDED = {
    "data.dataset": ("stripes", "stripe_width"),
    "data.partition": ("blocks", "block_size"),
    "model.name": ("scaled", "scale"),
    "participation.availability": ("every-other", "begin_with"),
    "participation.selection": ("first-two", None),
    "participation.weighting": ("half", None),
    "algorithm.name": ("lazy", "laziness"),
    "task.name": ("top-two", None),
}


@pytest.fixture
def extension() -> Iterator[None]:
    """The parts of tests/data/extension.py, until the test is over."""
    before = {key: set(registry) for key, registry in REGISTRIES.items()}
    sys.modules.pop("tests.data.extension", None)
    importlib.import_module("tests.data.extension")
    yield
    for key, registry in REGISTRIES.items():
        for name in set(registry) - before[key]:
            registry.remove(name)


def test_one_of_each_kind_is_added():
    """The list above has every kind of part there is."""
    assert set(ADDED) == set(REGISTRIES)


def test_without_the_file_nothing_of_it_is_known():
    """The parts come from the file alone."""
    with pytest.raises(ConfigError) as caught:
        validate.parse(CONFIG, "my.toml")
    assert len(caught.value.problems) == len(ADDED) + 1  # each name, and the key stripe_width


@pytest.mark.parametrize("key", ADDED)
def test_a_name_is_listed_where_another_is_not_accepted(extension, key):
    """The error about an unknown name lists the new one."""
    with pytest.raises(ConfigError, match=f'"{ADDED[key][0]}"'):
        validate.parse(CONFIG, "my.toml", [f"{key}=nothing-like-it"])


@pytest.mark.parametrize("key", ADDED)
def test_schema_and_reference_have_it(extension, key):
    """Editors and readers are offered the name and its keys."""
    name, own = ADDED[key]
    section, _, setting = key.partition(".")
    properties = json_schema()["properties"][section]["properties"]
    assert f'"{name}"' in str(properties[setting]).replace("'", '"')
    assert f"- `{name}`: " in reference()
    if own:
        assert own in properties
        assert f"| `{own}` |" in reference()


def test_check_shows_its_keys_and_no_others(extension, tmp_path, capsys):
    """`fedmpi check` prints keys that have an effect, and says how to see the others."""
    path = tmp_path / "my.toml"
    path.write_text(CONFIG)
    with pytest.raises(SystemExit) as caught:
        main(["check", str(path)])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for _, own in ADDED.values():
        assert own is None or f"\n{own} = " in shown
    for other in ("similarity", "hidden", "phase_spread", "mu", "beta1", "amplify_every", "options"):
        assert f"\n{other} = " not in shown
    assert "keys without effect are not shown; see them with --all" in shown
    with pytest.raises(SystemExit):
        main(["check", str(path), "--all"])
    assert "\nsimilarity = 0.05" in capsys.readouterr().out


def test_needs_and_conflicts_are_reported(extension):
    """What a part needs or cannot go with is an error with its words."""
    with pytest.raises(ConfigError, match='stripe_width: missing; dataset = "stripes" needs it; expected'):
        validate.parse(CONFIG.replace("stripe_width = 7\n", ""), "my.toml")
    with pytest.raises(ConfigError, match=r'"every-other" needs two clients, there is 1'):
        validate.parse(CONFIG, "my.toml", ["data.num_clients=1"])


def test_its_key_has_no_effect_elsewhere(extension):
    """A key of one method is named as useless beside another."""
    config = validate.parse(CONFIG, "my.toml", ["algorithm.name=fedavg", "algorithm.laziness=0.1"])
    assert unused_keys(config) == ["algorithm.laziness has no effect with the other settings"]


def test_it_runs(extension, tmp_path):
    """All seven work together: who takes part, with what weight, and what the method makes of it."""
    run = run_to_file(validate.parse(CONFIG, "my.toml"), tmp_path / "a.h5")
    assert run.participation.client.tolist() == [0, 2, 1, 3] * 2
    assert set(run.participation.weight) == {0.5}
    still = run_to_file(validate.parse(CONFIG, "my.toml", ["algorithm.laziness=1"]), tmp_path / "b.h5")
    assert still.eval.train_loss.nunique() == 1
    assert run.eval.train_loss.iloc[-1] < still.eval.train_loss.iloc[-1]


def test_the_reference_page_is_current():
    """configs/REFERENCE.md is what `fedmpi schema --markdown` writes."""
    from tests.support.configs import ROOT

    assert (ROOT / "configs" / "REFERENCE.md").read_text() == reference()


def test_keys_do_not_clash():
    """No two parts declare the same key twice: shared keys stand in one record."""
    for section in sections():
        records = {
            record
            for registry in REGISTRIES.values()
            if registry.section == section
            for part in registry.parts()
            for record in part.keys
        }
        names = [name for record in records for name in record.__dataclass_fields__]
        assert len(names) == len(set(names))
