"""What a config file may say, and what a user reads when it says something else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpi import config as names
from fedmpi.config import validate
from fedmpi.config.effects import unused_keys
from fedmpi.errors import ConfigError, UserError
from fedmpi.experiments.reproduce import path_of
from fedmpi.experiments.sweep.points import experiment, load_sweep
from tests.support.configs import ROOT

# Line numbers matter: the tables below name them.
BASE = """\
[run]
num_rounds = 6
eval_every = 3

[data]
dataset = "synthetic"
num_clients = 7
partition = "iid"

[model]
name = "logistic"

[participation]
selection = "uniform"
clients_per_round = 3

[algorithm]
local_lr = 0.05
local_steps = 2
"""

QUADRATIC = """\
[run]
num_rounds = 6

[data]
dataset = "quadratic"
centers = [[1.0, 0.0], [0.0, 1.0]]

[model]
name = "quadratic"
initial = [1.0, 2.0]

[algorithm]
local_lr = 0.05
local_steps = 2
"""

SOURCE = "my.toml"


def edit(text: str, *changes: tuple[str, str]) -> str:
    """The text with each (line, replacement) applied; the line must be there."""
    for old, new in changes:
        assert f"{old}\n" in text, f"no line {old!r} to change"
        text = text.replace(f"{old}\n", f"{new}\n" if new else "", 1)
    return text


def parse(text: str, *overrides: str) -> names.Config:
    """The Config of a text that stands in my.toml."""
    return validate.parse(text, SOURCE, overrides)


def problems_of(text: str, *overrides: str) -> list[str]:
    """All problems of a broken config."""
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


DATASETS = (
    '"fashion-mnist", "cifar-10", "fashion-mini", "synthetic", "synthetic-text", "quadratic", '
    "package.module:function, "
    "path of an .h5 file"
)
MODELS = (
    '"cnn-fashion", "cnn-cifar", "cnn-small", "cnn-fedau", "logistic", "mlp", "quadratic", '
    '"char-lstm", "transformer", "resnet18-gn", '
    "package.module:function"
)
PARTITIONS = (
    '"iid", "majority-label", "dirichlet", "dirichlet-per-client", "classes-per-client", "natural", '
    "package.module:function"
)
SELECTIONS = (
    '"all", "uniform", "permutation", "least-recent", "by-method", "minimum-separation", "schedule"'
)

# One wrong value in BASE: key, TOML text, value shown, accepted, line.
WRONG_VALUES = [
    # an integer
    ("run.num_rounds", '"6"', '"6"', "an integer >= 1", 2),
    ("run.num_rounds", "6.0", "6.0", "an integer >= 1", 2),
    ("run.num_rounds", "true", "True", "an integer >= 1", 2),
    ("run.num_rounds", "[6]", "[6]", "an integer >= 1", 2),
    ("run.num_rounds", "{}", "{}", "an integer >= 1", 2),
    ("run.num_rounds", "2022-05-26", "datetime.date(2022, 5, 26)", "an integer >= 1", 2),
    ("run.num_rounds", "0", "0", "an integer >= 1", 2),
    ("run.eval_every", "-1", "-1", "an integer >= 0", 3),
    ("run.seed", "-1", "-1", "an integer from 0 to 9223372036854775807", 2),
    (
        "run.seed",
        "9223372036854775808",
        "9223372036854775808",
        "an integer from 0 to 9223372036854775807",
        2,
    ),
    ("data.num_clients", "7.5", "7.5", "an integer >= 1", 7),
    ("data.num_classes", "1001", "1001", "an integer from 2 to 1000", 6),
    ("participation.clients_per_round", "0", "0", "an integer >= 1", 15),
    # a number
    ("algorithm.local_lr", '"0.05"', '"0.05"', "a number > 0", 18),
    ("algorithm.local_lr", "true", "True", "a number > 0", 18),
    ("algorithm.local_lr", "nan", "nan", "a number > 0", 18),
    ("algorithm.local_lr", "inf", "inf", "a number > 0", 18),
    ("algorithm.local_lr", "0", "0.0", "a number > 0", 18),
    ("algorithm.amplification", "-10", "-10.0", "a number > 0", 18),
    ("data.similarity", "1.5", "1.5", "a number from 0 to 1", 6),
    ("data.noise_std", "-0.1", "-0.1", "a number >= 0", 6),
    # a string
    ("run.name", "5", "5", "a string", 2),
    ("data.root", '["data"]', "['data']", "a string", 6),
    # one of several names
    ("data.dataset", '"mnist"', '"mnist"', f"one of {DATASETS}", 6),
    ("data.partition", '"IID"', '"IID"', f"one of {PARTITIONS}", 8),
    ("model.name", '"resnet"', '"resnet"', f"one of {MODELS}", 11),
    ("model.name", '":build"', '":build"', f"one of {MODELS}", 11),
    ("model.name", '"own.h5"', '"own.h5"', f"one of {MODELS}", 11),
    ("participation.availability", '"no"', '"no"', 'tables {name = "...", ...} with keys of their own', 14),
    ("participation.selection", '"some"', '"some"', f"one of {SELECTIONS}", 14),
    ("participation.weighting", '"1/N"', '"1/N"', 'one of "equal", "all", "inverse-probability"', 14),
    ("algorithm.name", '"fedsgd"', '"fedsgd"', '"fednova", package.module:function', 18),
    ("run.device", '"gpu"', '"gpu"', 'one of "auto", "cpu", "cuda"', 2),
    ("run.device", '["cpu"]', "['cpu']", 'one of "auto", "cpu", "cuda"', 2),
    ("run.dtype", '"float16"', '"float16"', 'one of "float32", "float64"', 2),
    # true or false
    ("data.allow_empty", "1", "1", "true or false", 6),
    ("data.augment", '"yes"', '"yes"', "true or false", 6),
    # a list
    ("data.shape", "784", "784", "a list of integers >= 1", 6),
    ("data.shape", "[1, 28.0]", "[1, 28.0]", "a list of integers >= 1", 6),
    ("data.shape", "[1, true]", "[1, True]", "a list of integers >= 1", 6),
    ("data.shape", "[0]", "[0]", "a list of integers >= 1", 6),
    ("model.hidden", "[]", "[]", "a list of integers >= 1", 11),
    ("model.initial", "[nan]", "[nan]", "a list of numbers", 11),
    ("data.centers", "[1.0]", "[1.0]", "a list of lists of numbers", 6),
    ("data.centers", "[[0, inf]]", "[[0.0, inf]]", "a list of lists of numbers", 6),
    # a table
    ("model.options", "3", "3", "a table of plain values", 11),
    ("model.options", "{a = {b = 1}}", "{'a': {'b': 1}}", "a table of plain values", 11),
    ("model.options", "{a = 07:32:00}", "{'a': datetime.time(7, 32)}", "a table of plain values", 11),
]


def with_value(key: str, value: str) -> str:
    """BASE with one key set: in its line, or below the section's header if BASE has it not."""
    section, name = key.split(".")
    head, body = BASE.split(f"[{section}]\n")
    lines = body.split("\n\n")[0].splitlines()
    old = next((line for line in lines if line.startswith(f"{name} = ")), None)
    if old is None:
        return f"{head}[{section}]\n{name} = {value}\n{body}"
    return f"{head}[{section}]\n" + body.replace(old, f"{name} = {value}", 1)


@pytest.mark.parametrize(("key", "value", "seen", "accepted", "line"), WRONG_VALUES)
def test_a_wrong_value_is_named_with_what_is_accepted_and_its_line(key, value, seen, accepted, line):
    """A wrong value gives one problem with key, value seen, what is accepted, and file and line."""
    [problem] = problems_of(with_value(key, value))
    assert problem.startswith(f"config {key} = {seen}: expected ")
    assert problem.endswith(f"{accepted} ({SOURCE}:{line})")


@pytest.mark.parametrize(
    ("override", "key", "seen", "accepted"),
    [
        ("run.num_rounds=0", "run.num_rounds", "0", "an integer >= 1"),
        ("run.num_rounds=many", "run.num_rounds", '"many"', "an integer >= 1"),
        ("run.num_rounds=", "run.num_rounds", '""', "an integer >= 1"),
        ("run.name=5", "run.name", "5", "a string"),
        ("data.shape=[1,", "data.shape", '"[1,"', "a list of integers >= 1"),
        ("algorithm.local_lr=-inf", "algorithm.local_lr", "-inf", "a number > 0"),
        ("model.name=cnn", "model.name", '"cnn"', '"cnn-fashion", "cnn-cifar"'),
    ],
)
def test_a_wrong_value_on_the_command_line_is_located_there(override, key, seen, accepted):
    """A wrong value given by --set is reported like one in the file, with --set as its place."""
    [problem] = problems_of(BASE, override)
    assert problem.startswith(f"config {key} = {seen}: expected ")
    assert accepted in problem
    assert problem.endswith("(--set)")


# Keys and sections that do not exist, or are missing: text, parts of the one problem.
WRONG_KEYS = {
    "misspelt key": (
        edit(BASE, ("local_steps = 2", "local_steps = 2\namplfy_every = 5")),
        ["config algorithm.amplfy_every: unknown key", "did you mean amplify_every?", "my.toml:20"],
    ),
    "key in the wrong section": (
        edit(BASE, ("[run]", "[run]\nlocal_steps = 5")),
        [
            "config run.local_steps: unknown key",
            "accepted: ",
            "num_rounds, record_params_every",
            "my.toml:2",
        ],
    ),
    "misspelt section": (
        f"{BASE}[warm-up]\nnum_rounds = 1\nlocal_lr = 1.0\n",
        ["config warm-up: unknown section", "did you mean warmup?", "my.toml"],
    ),
    "unknown section": (
        f"{BASE}[server]\n",
        ["config server: unknown section", "algorithm, data, model, participation, run, task, warmup"],
    ),
    "key outside a section": (
        f"seed = 3\n{BASE}",
        ["config seed: unknown section", "accepted: ", "my.toml"],
    ),
    "section that is a value": (
        f'warmup = "long"\n{BASE}',
        ['config warmup = "long"', "expected a section [warmup]", "my.toml"],
    ),
    "section that is a list": (
        f"{BASE}[[warmup]]\nnum_rounds = 1\n",
        ["config warmup = [{'num_rounds': 1}]", "expected a section [warmup]", "my.toml"],
    ),
    "missing rounds": (
        edit(BASE, ("num_rounds = 6", "")),
        ["config run.num_rounds: missing", "rounds in all", "expected an integer >= 1", "my.toml"],
    ),
    "missing data set": (
        edit(BASE, ('dataset = "synthetic"', "")),
        ["config data.dataset: missing", 'expected one of "fashion-mnist", ', "my.toml"],
    ),
    "missing model": (
        edit(BASE, ("[model]", ""), ('name = "logistic"', "")),
        ["config model.name: missing", 'expected one of "cnn-fashion", ', "my.toml"],
    ),
    "missing learning rate": (
        edit(BASE, ("local_lr = 0.05", "")),
        ["config algorithm.local_lr: missing", "gamma", "expected a number > 0", "my.toml"],
    ),
    "missing local steps": (
        edit(BASE, ("local_steps = 2", "")),
        ["config algorithm.local_steps: missing", "expected an integer >= 1", "my.toml"],
    ),
    "warm-up without a rate": (
        f"{BASE}[warmup]\nnum_rounds = 1\n",
        ["config warmup.local_lr: missing", "gamma of the warm-up", "expected a number > 0", "my.toml"],
    ),
    "warm-up without a length": (
        f"{BASE}[warmup]\nlocal_lr = 0.1\n",
        ["config warmup.num_rounds: missing", "rounds of warm-up", "expected an integer >= 1", "my.toml"],
    ),
}


@pytest.mark.parametrize(("text", "parts"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_a_key_that_is_unknown_or_missing_is_named(text, parts):
    """An unknown key or section gives a hint, a missing one its meaning and what is expected."""
    [problem] = problems_of(text)
    for part in parts:
        assert part in problem


# Combinations that cannot work: text, parts of the one problem.
CONFLICTS = {
    "warm-up longer than the run": (
        f"{BASE}[warmup]\nnum_rounds = 7\nlocal_lr = 0.1\n",
        ["config warmup.num_rounds: 7 rounds", "run.num_rounds = 6", "my.toml:21"],
    ),
    "quadratic model, other data": (
        edit(BASE, ('name = "logistic"', 'name = "quadratic"')),
        ["config model.name", '"quadratic"', 'data.dataset = "synthetic"', "both", "my.toml:11"],
    ),
    "quadratic data, other model": (
        edit(QUADRATIC, ('name = "quadratic"', 'name = "mlp"')),
        ["config model.name", '"mlp"', 'data.dataset = "quadratic"', "both", "my.toml:9"],
    ),
    "number of clients missing": (
        edit(BASE, ("num_clients = 7", "")),
        ["config data.num_clients: missing", "expected an integer >= 1", "my.toml"],
    ),
    "centers do not stand for clients of other data": (
        edit(BASE, ("num_clients = 7", "centers = [[1.0], [2.0], [3.0]]")),
        ["config data.num_clients: missing", "expected an integer >= 1", "my.toml"],
    ),
    "natural partition without client ids": (
        edit(BASE, ('partition = "iid"', 'partition = "natural"')),
        ["config data.partition", '"natural"', '"synthetic" does not have', "prepared .h5", "my.toml:8"],
    ),
    "natural partition of images": (
        edit(
            BASE,
            ('partition = "iid"', 'partition = "natural"'),
            ('dataset = "synthetic"', 'dataset = "cifar-10"'),
        ),
        ["config data.partition", '"natural"', '"cifar-10" does not have', "my.toml:8"],
    ),
    "more labels a client than there are": (
        edit(BASE, ('partition = "iid"', 'partition = "classes-per-client"\nclasses_per_client = 11')),
        ["config data.classes_per_client: 11", "data.num_classes = 10", "my.toml:9"],
    ),
    "GPU buffers of a CPU": (
        edit(BASE, ("[run]", '[run]\ncuda_aware = true\ndevice = "cpu"')),
        ["config run.cuda_aware: true", '"auto" or "cuda"', '"cpu"', "my.toml:2"],
    ),
    "turns without groups": (
        edit(BASE, ("[participation]", '[participation]\navailability = "periodic"\nrounds_per_group = 2')),
        ["config participation.num_groups: missing", '"periodic"', "an integer >= 1", "my.toml"],
    ),
    "turns without a length": (
        edit(BASE, ("[participation]", '[participation]\navailability = "periodic"\nnum_groups = 2')),
        ["config participation.rounds_per_group: missing", '"periodic"', "an integer >= 1", "my.toml"],
    ),
    "more groups than clients": (
        edit(
            BASE,
            (
                "[participation]",
                '[participation]\nnum_groups = 8\nrounds_per_group = 1\navailability = "periodic"',
            ),
        ),
        ["config participation.num_groups: 8 groups", "7 clients", "my.toml:14"],
    ),
    "uniform without S": (
        edit(BASE, ("clients_per_round = 3", "")),
        ["config participation.clients_per_round: missing", '"uniform"', "an integer >= 1", "my.toml"],
    ),
    "permutation without S": (
        edit(BASE, ("clients_per_round = 3", ""), ('selection = "uniform"', 'selection = "permutation"')),
        ["config participation.clients_per_round: missing", '"permutation"', "an integer >= 1", "my.toml"],
    ),
    "S above N": (
        edit(BASE, ("clients_per_round = 3", "clients_per_round = 8")),
        ["config participation.clients_per_round: 8", "data.num_clients = 7", "my.toml:15"],
    ),
    "schedule without a file": (
        edit(BASE, ('selection = "uniform"', 'selection = "schedule"')),
        ["config participation.schedule: missing", '"schedule"', ".csv or .h5", "my.toml"],
    ),
    "schedule and availability": (
        edit(
            BASE,
            ('selection = "uniform"', 'selection = "schedule"\nschedule = "q.csv"\navailability = "a.b:c"'),
        ),
        ["config participation.availability", '"a.b:c"', '"schedule"', 'use "always"', "my.toml:16"],
    ),
    "quadratic data without centers": (
        edit(QUADRATIC, ("centers = [[1.0, 0.0], [0.0, 1.0]]", "")),
        ["config data.centers: missing", "one list of numbers per client", "my.toml"],
    ),
    "centers of different lengths": (
        edit(QUADRATIC, ("centers = [[1.0, 0.0], [0.0, 1.0]]", "centers = [[1, 0], [1, 2, 3]]")),
        ["config data.centers", "[2, 3]", "all the same", "my.toml:6"],
    ),
    "another number of clients than centers": (
        edit(QUADRATIC, ('dataset = "quadratic"', 'dataset = "quadratic"\nnum_clients = 3')),
        ["config data.num_clients: 3 clients", "data.centers has 2", "my.toml:6"],
    ),
    "initial point of another length": (
        edit(QUADRATIC, ("initial = [1.0, 2.0]", "initial = [1.0]")),
        ["config model.initial: 1 numbers", "centers have 2", "my.toml:10"],
    ),
}


@pytest.mark.parametrize(("text", "parts"), CONFLICTS.values(), ids=CONFLICTS)
def test_a_combination_that_cannot_work_is_named(text, parts):
    """Keys that contradict each other give one problem with the key, both values and the line."""
    [problem] = problems_of(text)
    for part in parts:
        assert part in problem


def test_the_bases_of_the_tables_are_valid():
    """Without the mistake the configs of these tests are accepted."""
    assert parse(BASE).data.num_clients == 7
    assert parse(QUADRATIC).data.num_clients == 2
    assert unused_keys(parse(BASE)) == unused_keys(parse(QUADRATIC)) == []


@pytest.mark.parametrize(
    "changes",
    [
        [('dataset = "synthetic"', 'dataset = "my/own.h5"')],
        [('dataset = "synthetic"', 'dataset = "own.hdf5"'), ('partition = "iid"', 'partition = "natural"')],
        [
            ('partition = "iid"', 'partition = "natural"'),
            ("num_clients = 7", ""),
            ('dataset = "synthetic"', 'dataset = "own.h5"'),
        ],
        [('name = "logistic"', 'name = "my.models:build"')],
        [("[participation]", '[participation]\navailability = "my.module:function"')],
        [("clients_per_round = 3", "clients_per_round = 7")],
        [("[run]", "[run]\nseed = 9223372036854775807")],
        [("[run]", "[run]\neval_every = 0"), ("eval_every = 3", "")],
        [("local_lr = 0.05", "local_lr = 1")],
        [("local_steps = 2", "local_steps = 2\n[warmup]\nnum_rounds = 6\nlocal_lr = 0.1")],
        [('selection = "uniform"', 'selection = "schedule"\nschedule = "q.csv"')],
    ],
    ids=lambda changes: changes[0][1].splitlines()[-1],
)
def test_values_at_the_edge_of_what_is_accepted_pass(changes):
    """The largest seed, S = N, a warm-up of all rounds, files and functions of the user's own are fine."""
    assert parse(edit(BASE, *changes)).algorithm.local_steps == 2


def test_all_problems_come_in_one_report():
    """Problems of different kinds and places are counted and listed together."""
    text = edit(
        BASE,
        ("num_rounds = 6", "num_rounds = 0"),
        ("num_clients = 7", "num_client = 7"),
        ("local_lr = 0.05", "local_lr = nan"),
        ("local_steps = 2", ""),
        ("[run]", "[runs]\n[run]"),
    )
    with pytest.raises(ConfigError) as caught:
        parse(text, "model.name=cnn", "seed=3")
    report = str(caught.value)
    assert report.splitlines()[0] == "7 problems in my.toml:"
    assert len(caught.value.problems) == len(report.splitlines()) - 1 == 7
    for part in (
        "--set seed=3: expected section.key=value",
        "config runs: unknown section; did you mean run? (my.toml)",
        "config run.num_rounds = 0: expected an integer >= 1 (my.toml:3)",
        "config data.num_client: unknown key; did you mean num_clients? (my.toml:8)",
        'config model.name = "cnn": expected one of',
        "config algorithm.local_lr = nan: expected a number > 0 (my.toml:19)",
        "config algorithm.local_steps: missing",
    ):
        assert part in report


def test_all_conflicts_come_in_one_report():
    """Several combinations that cannot work are listed together."""
    text = edit(
        BASE,
        ("clients_per_round = 3", 'clients_per_round = 9\navailability = "periodic"'),
        ("[run]", '[run]\ncuda_aware = true\ndevice = "cpu"'),
    )
    problems = problems_of(f"{text}[warmup]\nnum_rounds = 10\nlocal_lr = 1\n")
    assert [problem.split(":")[0] for problem in problems] == [
        "config warmup.num_rounds",
        "config run.cuda_aware",
        "config participation.num_groups",
        "config participation.rounds_per_group",
        "config participation.clients_per_round",
    ]


def test_one_problem_is_not_called_problems():
    """The heading of a report counts in good English."""
    with pytest.raises(ConfigError, match=r"^1 problem in my\.toml:\n  config run\.num_rounds = 0"):
        parse(edit(BASE, ("num_rounds = 6", "num_rounds = 0")))


def test_a_long_value_is_cut_in_the_message():
    """A message shows the beginning of a long value, not all of it."""
    [problem] = problems_of(edit(BASE, ("[run]", f'[run]\ndtype = "{"x" * 10_000}"')))
    assert "xxx...: expected" in problem
    assert len(problem) < 250


def test_a_list_over_several_lines_does_not_hide_the_place_of_later_keys():
    """A key below a list with one number to a line is still reported with its line."""
    text = edit(
        QUADRATIC,
        ("centers = [[1.0, 0.0], [0.0, 1.0]]", "centers = [\n  [1.0],\n  [2.0]\n]\nnum_clients = 0"),
        ("initial = [1.0, 2.0]", ""),
    )
    [problem] = problems_of(text)
    assert problem.endswith("(my.toml:10)")


# --- Text that is no config ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (edit(BASE, ("num_rounds = 6", "num_rounds = ")), ["not valid TOML", "line 2"]),
        (edit(BASE, ("num_rounds = 6", "num_rounds 6")), ["not valid TOML", "line 2"]),
        (edit(BASE, ('name = "logistic"', "name = logistic")), ["not valid TOML", "line 11"]),
        (f"{BASE}[run]\n", ["not valid TOML", "run", "twice", "line 20"]),
        (edit(BASE, ("eval_every = 3", "num_rounds = 3")), ["not valid TOML", "overwrite", "line 3"]),
        ("\x00\x01\x02", ["not valid TOML", "line 1"]),
        (
            edit(BASE, ("num_rounds = 6", f"num_rounds = {'[' * 5000}")),
            ["not valid TOML", "nested too deeply"],
        ),
        ("<html><body>404</body></html>", ["not valid TOML", "line 1"]),
    ],
    ids=["no value", "no equals", "no quotes", "section twice", "key twice", "binary", "deep", "html"],
)
def test_a_syntax_error_is_reported_with_its_line(text, parts):
    """Text that is not TOML gives one problem with the line, under a heading with the file."""
    [problem] = problems_of(text)
    for part in parts:
        assert part in problem
    with pytest.raises(ConfigError, match=r"1 problem in my\.toml"):
        parse(text)


@pytest.mark.parametrize(
    "number",
    ["1" + "0" * 400, "9" * 5000, "0x" + "f" * 5000],
    ids=["above float64", "5000 digits", "5000 hexadecimal digits"],
)
@pytest.mark.parametrize("line", ["num_rounds = 6", "local_lr = 0.05"])
def test_an_absurd_number_is_a_user_error(line, number):
    """A number beyond what a machine can hold is refused like any other wrong value."""
    key = line.split(" = ")[0]
    [problem] = problems_of(edit(BASE, (line, f"{key} = {number}")))
    assert key in problem or "not valid TOML" in problem
    assert len(problem) < 300


def test_an_empty_config_lists_every_required_key():
    """An empty file is told all that it needs."""
    assert [problem.split(":")[0] for problem in problems_of("")] == [
        "config run.num_rounds",
        "config data.dataset",
        "config model.name",
        "config algorithm.local_lr",
        "config algorithm.local_steps",
    ]


def _nothing(path: Path) -> None:
    """Leave the path without a file."""


# What stands at the path, and the parts of the message about it.
UNREADABLE = {
    "missing": (_nothing, ["no such file", "configs/"]),
    "directory": (Path.mkdir, ["is a directory", "name a .toml file"]),
    "not UTF-8": (lambda path: path.write_bytes(b'name = "caf\xe9"\n'), ["not a text file", "UTF-8"]),
    "10 MB": (lambda path: path.write_bytes(b"#" * 10_000_000), ["10.0 MB", "at most 8 MB"]),
}


@pytest.mark.parametrize(("make", "parts"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_named(tmp_path, make, parts):
    """A missing file, a directory, a binary file and a huge one are UserErrors that name the path."""
    path = tmp_path / "some.toml"
    make(path)
    with pytest.raises(UserError) as caught:
        validate.load(path)
    for part in [f"config {path}: ", *parts]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"), [("small.toml/x.toml", "Not a directory"), ("x" * 300, "File name too long")]
)
def test_a_path_that_cannot_exist_is_named(small_config, name, why):
    """What the operating system says about a path reaches the user."""
    path = small_config.parent / name
    with pytest.raises(UserError, match=f"cannot be read \\({why}\\)"):
        validate.load(path)


# --- Overrides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override", ["", "run", "run.seed", "seed=3", "=3", "run.=3", ".seed=3", "run.seed:3", "run seed=3"]
)
def test_a_malformed_override_is_shown_with_an_example(override):
    """--set without section, key or equals sign is quoted back with the form that is expected."""
    [problem] = problems_of(BASE, override)
    assert problem == f"--set {override}: expected section.key=value, for example run.seed=2"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("run.sede=3", ["config run.sede: unknown key", "did you mean seed?", "--set"]),
        ("runs.seed=3", ["config runs: unknown section", "did you mean run?"]),
        ("run.seed.x=3", ["config run.seed.x: unknown key", "--set"]),
    ],
)
def test_an_override_of_an_unknown_key_gives_a_hint(override, parts):
    """A misspelt key on the command line is refused like one in the file."""
    [problem] = problems_of(BASE, override)
    for part in parts:
        assert part in problem


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000], ids=["deep", "long"])
def test_an_absurd_override_is_a_user_error(value):
    """--set with a value that cannot be parsed at all is refused like any other wrong value."""
    [problem] = problems_of(BASE, f"run.seed={value}")
    assert "run.seed" in problem
    assert len(problem) < 300


def test_an_override_does_not_hide_a_broken_section():
    """A section that is a plain value stays a problem when --set names one of its keys."""
    text = "run = 5\n" + edit(BASE, ("[run]", ""), ("num_rounds = 6", ""), ("eval_every = 3", ""))
    assert any("config run = 5" in problem for problem in problems_of(text, "run.num_rounds=3"))


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("run.seed=2", "run", "seed", 2),
        ("run.num_rounds=300_000", "run", "num_rounds", 300_000),
        ("run.cuda_aware=true", "run", "cuda_aware", True),
        ("run.name=trial", "run", "name", "trial"),
        ("run.name=a b=c", "run", "name", "a b=c"),
        ('run.name="5"', "run", "name", "5"),
        ("model.name=my.models:build", "model", "name", "my.models:build"),
        ("algorithm.local_lr=1e-5", "algorithm", "local_lr", 1e-5),
        ("algorithm.local_lr=1", "algorithm", "local_lr", 1.0),
        (" algorithm.batch_size = 0 ", "algorithm", "batch_size", 0),
        ("data.shape=[3, 32, 32]", "data", "shape", [3, 32, 32]),
        ("model.initial=[1, 2.5]", "model", "initial", [1.0, 2.5]),
        ("model.options={width = 3}", "model", "options", {"width": 3}),
    ],
)
def test_an_override_is_read_as_toml_or_else_as_a_string(override, section, key, value):
    """--set takes numbers, booleans, strings, lists and tables; a bare word is a string."""
    found = getattr(getattr(parse(BASE, override), section), key)
    assert found == value
    assert type(found) is type(value)


def test_the_last_override_wins_over_the_file_and_earlier_ones():
    """An override replaces the file's value, and a later one an earlier one."""
    assert parse(BASE, "run.num_rounds=7", "run.num_rounds=8").run.num_rounds == 8


def test_overrides_can_make_a_section():
    """A warm-up that the file does not have can be given by --set alone."""
    config = parse(BASE, "warmup.num_rounds=2", "warmup.local_lr=0.1")
    assert [config.local_lr_at(t) for t in range(4)] == [0.1, 0.1, 0.05, 0.05]


# --- The resolved config ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        (BASE, {"run.name": "my", "data.augment": False, "data.noise_std": 0.25, "run.seed": 1}),
        (QUADRATIC, {"data.num_clients": 2, "data.noise_std": 0.0, "participation.selection": "all"}),
        (
            edit(BASE, ('dataset = "synthetic"', 'dataset = "cifar-10"')),
            {"data.augment": True, "data.noise_std": 0.0},
        ),
        (edit(BASE, ("[data]", "[data]\nnoise_std = 0")), {"data.noise_std": 0.0}),
        (edit(BASE, ("[run]", '[run]\nname = "x"')), {"run.name": "x", "algorithm.amplification": 1.0}),
    ],
)
def test_defaults_that_depend_on_other_keys_are_filled_in(text, resolved):
    """Name, augmentation, noise and number of clients are resolved from what is given."""
    config = parse(text)
    for place, value in resolved.items():
        section, key = place.split(".")
        assert getattr(getattr(config, section), key) == value


def test_warmup_has_its_own_rate_and_no_amplification():
    """gamma and eta of a round are the warm-up's before its end and the algorithm's from then on."""
    config = parse(f"{BASE}amplification = 10\n[warmup]\nnum_rounds = 2\nlocal_lr = 0.5\n")
    assert config.warmup_rounds == 2
    assert [config.local_lr_at(t) for t in range(4)] == [0.5, 0.5, 0.05, 0.05]
    assert [config.amplification_at(t) for t in range(4)] == [1.0, 1.0, 10.0, 10.0]
    assert parse(BASE).warmup_rounds == 0


_PLAIN = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=60, database=None, derandomize=True)
@given(
    name=st.text(min_size=1),
    root=st.text(),
    options=st.dictionaries(st.text(), _PLAIN, max_size=4),
    centers=st.lists(st.lists(_FLOATS, min_size=2, max_size=2), min_size=1, max_size=3),
    seed=st.integers(0, 2**63 - 1),
    rate=st.floats(min_value=5e-324, allow_infinity=False),
)
def test_the_resolved_text_gives_an_equal_config(name, root, options, centers, seed, rate):
    """Whatever strings, numbers, options and centers a Config has, reading its to_toml gives it again."""
    base = parse(QUADRATIC)
    config = replace(
        base,
        run=replace(base.run, name=name, seed=seed),
        data=replace(base.data, root=root, centers=centers, num_clients=len(centers)),
        model=replace(base.model, options=options),
        algorithm=replace(base.algorithm, local_lr=rate),
        warmup=names.WarmupConfig(num_rounds=3, local_lr=rate),
    )
    assert validate.parse(config.to_toml(), "other.toml") == config


@pytest.mark.parametrize(
    "text",
    [
        '"',
        '"""',
        "'",
        "\\",
        "\\n",
        "a\nb\r\n",
        "\t",
        "\0\x1f\x7f",
        "\u2028\x85",
        "# no comment",
        "[run]",
        "é 日本 🙂",
    ],
)
def test_a_strange_string_survives_the_resolved_text(text):
    """Quotes, backslashes, control characters and other scripts come back, as value and as option name."""
    base = parse(BASE)
    options = {text: [text, [text, 1.5e-300, -0.0, True, 2**70, []]], "": float("inf")}
    config = replace(base, run=replace(base.run, name=text), model=replace(base.model, options=options))
    assert validate.parse(config.to_toml(), "other.toml") == config


CONFIGS = sorted(p for p in (ROOT / "configs").glob("*.toml") if not p.stem.endswith("-sweep"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path):
    """Each example config loads, reads all keys that it sets, and survives its resolved text."""
    config = validate.load(path)
    assert unused_keys(config) == []
    assert validate.parse(config.to_toml(), "other.toml") == config


def test_the_examples_of_the_paper_have_its_numbers():
    """The FashionMNIST and CIFAR-10 configs state T, N, S, I, eta, P and the rates of the paper."""
    for data, rounds, rate, warmup_rounds, warmup_rate in [
        ("fashion", 300_000, 1e-5, 2_000, 0.1),
        ("cifar", 600_000, 5e-6, 4_000, 0.05),
    ]:
        config = validate.load(ROOT / "configs" / f"{data}-amplified.toml")
        who, how = config.participation, config.algorithm
        assert (config.run.num_rounds, config.data.num_clients, config.data.similarity) == (
            rounds,
            250,
            0.05,
        )
        assert (who.num_groups, who.rounds_per_group, who.clients_per_round) == (5, 100, 10)
        assert (how.local_steps, how.batch_size, how.amplification, how.amplify_every) == (5, 16, 10.0, 500)
        assert (how.local_lr, config.warmup.num_rounds) == (rate, warmup_rounds)
        assert config.warmup.local_lr == warmup_rate


# Examples in configs/ that are curves of the paper: recipe and case.
CURVES = {
    f"{data}-{name}": (f"paper-{data}", case)
    for data in ("fashion", "cifar")
    for name, case in (("amplified", "amplified"), ("fedavg", "no-amplification"))
}


@pytest.mark.parametrize("name", CURVES)
def test_examples_are_curves_of_the_paper(name):
    """An example has the settings of the experiment that it is taken from, whatever has no effect aside."""
    recipe, case = CURVES[name]
    (point,) = [p for p in load_sweep(path_of(recipe)) if (p.method, p.seed) == (case, 1)]
    ours, theirs = experiment(validate.load(ROOT / "configs" / f"{name}.toml")), experiment(point.config)
    if "algorithm.amplification" not in ours:  # then P does not matter
        theirs.pop("algorithm.amplify_every", None)
    assert ours == theirs


SWEEPS = {
    "fashion": (29 * 10, 300_000, ["1e-1", "1e-2", "1e-3", "1e-4", "1e-5"]),
    "cifar": (29 * 5, 600_000, ["5e-2", "5e-3", "5e-4", "5e-5", "5e-6"]),
}


@pytest.mark.parametrize("data", SWEEPS)
def test_the_sweep_of_the_paper_has_all_its_curves(data):
    """Each rate has eta 1 and 10 and both ways of waiting; all P and eta are there, each once."""
    num_runs, num_rounds, rates = SWEEPS[data]
    points = load_sweep(path_of(f"paper-{data}"))
    assert len(points) == num_runs
    assert {point.config.run.num_rounds for point in points} == {num_rounds}
    first = [point.config.algorithm for point in points if point.seed == 1]
    how = [a for a in first if a.name == "fedavg"]
    assert len({(a.local_lr, a.amplification, a.amplify_every) for a in how}) == len(how)
    tried = {(a.local_lr, a.amplification) for a in how if a.amplify_every == 500 or a.amplification == 1}
    assert {(float(rate), eta) for rate in rates for eta in (1.0, 10.0)} <= tried
    best = next(point for point in points if point.method == "amplified").config.algorithm.local_lr
    assert {eta for rate, eta in tried if rate == best} == {1.0, 2.0, 5.0, 10.0, 15.0, 20.0}
    intervals = {a.amplify_every for a in how if (a.local_lr, a.amplification) == (best, 10.0)}
    assert intervals == {1, 100, 300, 500, 700, 900}
    for waiting in ("wait-minibatch", "wait-full"):
        assert sorted(a.local_lr for a in first if a.name == waiting) == sorted(map(float, rates))


# Keys that a combination does not read: changes to BASE, keys named.
UNUSED = {
    "similarity": ([("[data]", "[data]\nsimilarity = 0.5")], ["data.similarity"]),
    "alpha": ([("[data]", "[data]\nalpha = 0.5")], ["data.alpha"]),
    "classes": ([("[data]", "[data]\nclasses_per_client = 3")], ["data.classes_per_client"]),
    "centers": ([("[data]", "[data]\ncenters = [[1]]")], ["data.centers"]),
    "synthetic keys": (
        [
            ('dataset = "synthetic"', 'dataset = "fashion-mini"\ntrain_samples = 5\ntest_samples = 5'),
            ('partition = "iid"', "shape = [1]\nnum_classes = 3"),
        ],
        ["data.train_samples", "data.test_samples", "data.num_classes", "data.shape"],
    ),
    "hidden": ([("[model]", "[model]\nhidden = [5]")], ["model.hidden"]),
    "initial": ([("[model]", "[model]\ninitial = [5]")], ["model.initial"]),
    "options": ([("[model]", "[model]\noptions = {a = 1}")], ["model.options"]),
    "turns": (
        [
            (
                "[participation]",
                "[participation]\nnum_groups = 2\nrounds_per_group = 3\nrandom_offset = true",
            )
        ],
        ["participation.num_groups", "participation.rounds_per_group", "participation.random_offset"],
    ),
    "S": ([('selection = "uniform"', 'selection = "all"')], ["participation.clients_per_round"]),
    "schedule": ([("[participation]", '[participation]\nschedule = "q.csv"')], ["participation.schedule"]),
    "weighting": (
        [('selection = "uniform"', 'selection = "schedule"\nschedule = "q.csv"\nweighting = "all"')],
        ["participation.clients_per_round", "participation.weighting"],
    ),
    "P without eta": ([("[algorithm]", "[algorithm]\namplify_every = 5")], ["algorithm.amplify_every"]),
    # The same keys where they are read.
    "similarity, read": ([('partition = "iid"', 'partition = "majority-label"\nsimilarity = 0.5')], []),
    "alpha, read": ([('partition = "iid"', 'partition = "dirichlet"\nalpha = 0.5')], []),
    "classes, read": (
        [('partition = "iid"', 'partition = "classes-per-client"\nclasses_per_client = 3')],
        [],
    ),
    "synthetic keys, read": ([("[data]", "[data]\ntrain_samples = 5\nshape = [1]")], []),
    "hidden, read": ([('name = "logistic"', 'name = "mlp"\nhidden = [5]')], []),
    "options, read": ([('name = "logistic"', 'name = "a.b:c"\noptions = {a = 1}')], []),
    "P with eta": ([("[algorithm]", "[algorithm]\namplify_every = 5\namplification = 0.5")], []),
    "a default spelt out": ([("[data]", "[data]\nsimilarity = 0.05\nalpha = 0.1")], []),
}


@pytest.mark.parametrize(("changes", "keys"), UNUSED.values(), ids=UNUSED)
def test_keys_without_effect_are_named(changes, keys):
    """A key set away from its default that the other settings do not read gives one note, else none."""
    notes = unused_keys(parse(edit(BASE, *changes)))
    assert sorted(notes) == sorted(f"{key} has no effect with the other settings" for key in keys)


def test_a_partition_of_quadratic_data_has_no_effect():
    """Quadratic data have no samples to deal."""
    notes = unused_keys(parse(QUADRATIC, "data.partition=dirichlet"))
    assert notes == ["data.partition has no effect with the other settings"]


def test_every_key_says_what_it_means():
    """Each config key has its own words, which are more than its name; errors show them."""
    from dataclasses import fields

    for section, kind in names.sections().items():
        assert kind.__doc__.startswith(f"[{section}] ")
        keys = fields(kind)
        for key in keys:
            meaning = key.metadata["doc"]
            assert len(re.findall("[a-zA-Z]{2,}", meaning)) >= 1, f"{section}.{key.name}"
            assert meaning.replace(" ", "_") != key.name
            assert [k.name for k in keys if k.metadata["doc"] == meaning] == [key.name]
    (problem,) = problems_of(edit(BASE, ("local_steps = 2", "")))
    doc = {key.name: key.metadata["doc"] for key in fields(names.sections()["algorithm"])}["local_steps"]
    assert f"algorithm.local_steps: missing; {doc}; expected" in problem


# --- The command line ---------------------------------------------------------------------------------

# Enough to see each kind of problem reach the user.
BROKEN = {
    **{f"{key} = {value}": (with_value(key, value), key) for key, value, *_ in WRONG_VALUES[::4]},
    **{name: (text, parts[0].removeprefix("config ")) for name, (text, parts) in CONFLICTS.items()},
}


@pytest.mark.parametrize(("text", "key"), BROKEN.values(), ids=BROKEN)
def test_check_ends_with_status_2_and_one_report(fedmpi_cli, tmp_path, text, key):
    """`fedmpi check` of a broken config exits with 2, names the key on stderr and prints nothing else."""
    (tmp_path / "broken.toml").write_text(text)
    done = fedmpi_cli("check", "broken.toml")
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedmpi: error: 1 problem in broken.toml:\n  config {key}")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("command", "changes", "overrides", "parts"),
    [
        (
            ["check"],
            [("local_lr = 0.05", "local_lr = nan"), ("num_rounds = 6", "num_round = 6")],
            [],
            [
                "3 problems",
                "algorithm.local_lr = nan",
                "run.num_round: unknown key; did you mean num_rounds?",
            ],
        ),
        (["run", "--out", "x.h5"], [("num_rounds = 6", "num_rounds =")], [], ["not valid TOML", "line 2"]),
        (
            ["run", "--out", "x.h5"],
            [],
            ["--set", "participation.clients_per_round=8"],
            ["participation.clients_per_round: 8 exceeds data.num_clients = 7", "(--set)"],
        ),
    ],
    ids=["check", "run", "run --set"],
)
def test_the_program_reports_a_broken_config_without_a_traceback(
    tmp_path, fedmpi_cli, command, changes, overrides, parts
):
    """The real program ends with status 2, one report on stderr, no traceback and no result file."""
    (tmp_path / "my.toml").write_text(edit(BASE, *changes))
    job = fedmpi_cli(*command, "my.toml", *overrides)
    assert job.returncode == 2
    for part in ["fedmpi: error: ", "my.toml", *parts]:
        assert part in job.stderr
    assert "Traceback" not in job.stdout + job.stderr
    assert not (tmp_path / "x.h5").exists()


def test_the_program_reports_a_missing_config_without_a_traceback(fedmpi_cli):
    """A config that does not exist is one line on stderr and status 2."""
    job = fedmpi_cli("run", "nowhere.toml", "--out", "x.h5")
    assert job.returncode == 2
    assert "fedmpi: error: config nowhere.toml: no such file" in job.stderr
    assert "Traceback" not in job.stdout + job.stderr
