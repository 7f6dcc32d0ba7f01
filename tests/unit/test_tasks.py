"""Tasks: losses and metrics by hand, what fits what, tasks of the user's own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedmpi
from fedmpi.config import validate
from fedmpi.data.evaluation import Normaliser
from fedmpi.data.prepared import read_dataset, write_dataset
from fedmpi.errors import UserError
from fedmpi.models.engines import Engine, make_gradients
from fedmpi.models.flat import FlatModel
from fedmpi.tasks import TASKS, Metric, Task
from fedmpi.tasks.classification import Classification
from tests.support.tasks import config_of, numbers, text

CPU = torch.device("cpu")
OF_NUMBERS = ("classification", "regression", "multi-label")


def evaluated(task: Task, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The metrics of one block, by their names."""
    sums = task.of_samples(outputs.movedim(0, -1)[None, None], labels[None])
    totals = [float(part.double().sum()) for part in sums]
    return dict(zip(["loss", *task.names], task.evaluated(totals, len(labels)), strict=True))


# What they compute.


def test_regression_by_hand():
    """Errors 1, -2 and 0, 3: means of squares and of magnitudes over samples and outputs."""
    outputs, labels = torch.tensor([[2.0, 0], [1, 4]]), torch.tensor([[1.0, 2], [1, 1]])
    found = evaluated(TASKS["regression"](), outputs, labels)
    assert found == {"loss": 3.5, "mean_squared_error": 3.5, "mean_absolute_error": 1.5}


def test_multi_label_by_hand():
    """One hit, one missed, one too many of four pairs: F1 is 2 / (2 + 1 + 1), half are right."""
    outputs, labels = torch.tensor([[3.0, -1], [2, -2]]), torch.tensor([[1, 1], [0, 0]], dtype=torch.uint8)
    found = evaluated(TASKS["multi-label"](), outputs, labels)
    each = [
        math.log1p(math.exp(-3)),
        math.log1p(math.exp(1)),
        math.log1p(math.exp(2)),
        math.log1p(math.exp(-2)),
    ]
    assert found["loss"] == pytest.approx(sum(each) / 4)
    assert (found["f1"], found["accuracy"]) == (0.5, 0.5)


def test_multi_label_without_any_label():
    """Nothing present and nothing predicted is no division by zero."""
    assert evaluated(TASKS["multi-label"](), torch.full((2, 3), -1.0), torch.zeros(2, 3))["f1"] == 0


def test_next_character_by_hand():
    """Two sequences, one padded: the loss is a mean over sequences, the perplexity over characters."""
    right, wrong = math.log(0.8), math.log(0.2)
    outputs = torch.tensor([[[right, wrong], [right, wrong]], [[wrong, right], [right, wrong]]])
    found = evaluated(TASKS["next-character"](), outputs, torch.tensor([[0, 1], [1, -1]]))
    assert found["loss"] == pytest.approx((-(right + wrong) / 2 - right) / 2)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["perplexity"] == pytest.approx(math.exp(-(2 * right + wrong) / 3))


def test_a_perplexity_beyond_numbers_is_infinite():
    """exp of a large mean does not end the run."""
    assert (
        TASKS["next-character"]().values({"nats": 1e6, "right": 0, "characters": 1}, 1)["perplexity"]
        == math.inf
    )


def test_padding_has_no_gradient():
    """Outputs at padded positions do not change."""
    outputs = torch.randn(2, 3, 4, requires_grad=True)
    TASKS["next-character"]().losses(outputs, torch.tensor([[1, 2, -1], [0, -1, -1]])).sum().backward()
    assert (outputs.grad.abs().sum(dim=2) == 0).tolist() == [[False, False, True], [False, True, True]]


@pytest.mark.parametrize("task", OF_NUMBERS)
def test_gradients_by_hand_are_those_of_autograd(task):
    """The batched engine's slope of each task agrees with the loop engine to rounding."""
    data, gradients = numbers(task), []
    inputs = torch.from_numpy(data.train_inputs).double()[:10]
    labels = torch.from_numpy(data.train_labels)[:10]
    for engine in ("loop", "batched"):
        torch.manual_seed(1)
        module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
        model = FlatModel(module, torch.float64, CPU, TASKS[task]())
        engine = make_gradients(Engine(engine, ""), model)
        engine.local_params(1).copy_(model.values.clone())
        target = torch.zeros(1, model.num_params, dtype=torch.float64)
        engine.adder(target)(inputs[None], labels[None], 1.0)
        gradients.append(target)
    assert gradients[0].norm() > 0.01
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_shortcuts_are_not_inherited_past_a_change():
    """A task derived from classification with another loss does not get the old gradient or metrics."""

    class Squared(Classification):
        def losses(self, outputs, labels):
            return outputs.square().sum(dim=1)

    class Renamed(Classification):
        metrics = (Metric(name="hits"),)

        def statistics(self, outputs, labels):
            return {"hits": outputs[:, 0] > 0}

    assert Squared.slope is None
    assert Renamed.slope is not None
    assert evaluated(Squared(), torch.tensor([[1.0, 2]]), torch.tensor([0])) == {
        "loss": 5.0,
        "accuracy": 0.0,
    }
    assert evaluated(Renamed(), torch.tensor([[1.0, 2]]), torch.tensor([0]))["hits"] == 1


# Data.


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">u2", "i2", "u4", "i4", "i8", "u8"])
def test_token_ids_of_any_integers(tmp_path, dtype):
    """They come back from a file as they are, and models get them unchanged."""
    write_dataset(tmp_path / "a.h5", text(dtype))
    seen = read_dataset(tmp_path / "a.h5")
    np.testing.assert_array_equal(seen.train_inputs, text().train_inputs)
    assert seen.num_tokens == 5
    header = replace(seen, train_inputs=seen.train_inputs)
    values = Normaliser.of(header, torch.float32, CPU)(torch.from_numpy(seen.train_inputs))
    assert (values.dtype, values.max()) == (torch.int64, 4)


def test_bytes_with_mean_and_std_are_numbers():
    """(n, L) of uint8 are token ids only without mean and std."""
    data = replace(text(), num_tokens=0, mean=(0.5,), std=(0.25,))
    assert data.num_tokens == 0


def test_the_digest_tells_token_ids_from_numbers():
    """The same bytes as other things are other data."""
    assert len({replace(text(), num_tokens=count).digest() for count in (5, 6, 7)}) == 3


MISFITS = {
    "text for classes": (
        "classification",
        text(),
        'int64 of shape (n, 7).*there is task.name = "next-character"',
    ),
    "numbers for classes": ("classification", numbers("regression"), 'there is task.name = "regression"'),
    "several for classes": ("classification", numbers("multi-label"), 'there is task.name = "multi-label"'),
    "classes for numbers": ("regression", numbers("classification"), "store them as float32"),
    "nan": (
        "regression",
        replace(numbers("regression"), test_labels=np.full((20, 3), np.nan)),
        "label of test sample 0 is not finite",
    ),
    "classes for several": ("multi-label", numbers("classification"), "expected (n, K) integers"),
    "two for one label": (
        "multi-label",
        replace(numbers("multi-label"), train_labels=np.full((48, 3), 2, np.uint8)),
        "train labels from 2 to 2; expected 0 or 1",
    ),
    "numbers for text": ("next-character", numbers("classification"), "no token ids"),
    "labels out of range": (
        "next-character",
        replace(text(), train_labels=np.full((48, 7), 5)),
        "train labels from 5 to 5; expected 0 to 4, and -1",
    ),
    "an empty sequence": (
        "next-character",
        replace(text(), test_labels=np.where(np.arange(20)[:, None] == 3, -1, text().test_labels)),
        "1 test sequences are empty, all padding (sample 3)",
    ),
    "other lengths": (
        "next-character",
        replace(text(), train_labels=text().train_labels[:, 1:], test_labels=text().test_labels[:, 1:]),
        "expected integers of the inputs' shape (48, 7)",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_data_that_do_not_fit_are_refused(tmp_path, case):
    """Before the first round, with what was found and what is wanted."""
    task, data, words = MISFITS[case]
    config = config_of(tmp_path, "classification").replace('"classification"', f'"{task}"')
    (tmp_path / "c.toml").write_text(config)
    with pytest.raises(UserError) as caught:
        fedmpi.run(tmp_path / "c.toml", dataset=data, progress=False)
    assert str(caught.value).startswith(f'config task.name = "{task}" does not fit')
    assert all(part in str(caught.value) for part in words.split(".*"))


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("next-character", {"model.name": "mlp"}, 'token ids .0 to 4.; use "char-lstm"'),
        ("classification", {"model.name": "char-lstm"}, "takes token ids, .* are numbers"),
        ("regression", {"data.partition": "dirichlet", "data.num_clients": 4}, "deals samples by their"),
        ("multi-label",
         {"participation.availability": "bernoulli", "participation.probability_from": "labels"},
         "labels of these data are no classes"),
        ("next-character", {"model.name": "transformer", "model.width": 9}, "4 does not divide"),
        ("regression", {"data.augment": True}, "crop and flip need"),
        ("next-character", {"data.augment": True}, "are token ids"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(tmp_path, task, settings, words):
    """Models, partitions and participation that need other data say so."""
    (tmp_path / "c.toml").write_text(
        config_of(tmp_path, task, "char-lstm" if task == "next-character" else "")
    )
    with pytest.raises(UserError, match=words):
        fedmpi.run(tmp_path / "c.toml", settings, progress=False)


# Runs.


@pytest.mark.parametrize("task", [*OF_NUMBERS, "next-character"])
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_each_task_learns_and_is_recorded(tmp_path, task, engine):
    """Each metric has its column, its description, and gets better; each client has it too."""
    (tmp_path / "c.toml").write_text(
        config_of(tmp_path, task, "char-lstm" if task == "next-character" else "")
    )
    settings = {"run.num_rounds": 60, "run.eval_clients_every": 60, "algorithm.engine": engine}
    settings |= {"algorithm.local_lr": 1.0} if task == "next-character" else {}
    run = fedmpi.run(tmp_path / "c.toml", settings, progress=False)
    names = ["loss", *TASKS[task]().names]
    assert list(run.eval.columns) == [
        "round",
        *(f"{p}_{n}" for p in ("train", "test") for n in names),
        "wall_time_s",
    ]
    for name, metric in run.metrics.items():
        first, last = run.eval[name].iloc[0], run.eval[name].iloc[-1]
        assert last > first if metric.better == "higher" else last < first, name
    assert list(run.clients_eval.columns) == ["round", "client", "part", "samples", *names]
    own = run.clients_eval[(run.clients_eval["round"] == 60) & (run.clients_eval.part == "train")]
    assert np.average(own.loss, weights=own.samples) == pytest.approx(
        run.eval.train_loss.iloc[-1], rel=1e-6
    )


class Pinball(Task):
    """The 0.9 quantile, of the user's own."""

    metrics = (
        Metric(name="coverage", description="share of labels below the output", higher_is_better=True),
    )

    def __init__(self, level=0.9):
        self.level = level

    def num_outputs(self, data):
        return 3

    def losses(self, outputs, labels):
        missing = labels - outputs
        return torch.maximum(self.level * missing, (self.level - 1) * missing).mean(dim=1)

    def statistics(self, outputs, labels):
        return {"coverage": (labels < outputs).double().mean(dim=1)}


@pytest.mark.parametrize("given", ["a class", "an instance", "a name"])
def test_a_task_of_the_users_own(tmp_path, monkeypatch, given):
    """Handed as an object or named in the config; dense models go by autograd; options reach it."""
    config = config_of(tmp_path, "regression")
    settings = {"run.num_rounds": 40}
    if given == "a name":
        settings |= {"task.name": "own_tasks:Pinball", "task.options": {"level": 0.9}}
        (tmp_path / "own_tasks.py").write_text("from tests.unit.test_tasks import Pinball\n")
        monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(config)
    objects = {"a class": {"task": Pinball}, "an instance": {"task": Pinball(0.9)}, "a name": {}}[given]
    run = fedmpi.run(tmp_path / "c.toml", settings, progress=False, **objects)
    assert list(run.metrics) == ["train_loss", "train_coverage", "test_loss", "test_coverage"]
    assert run.metrics["test_coverage"].description == "share of labels below the output, over the test set"
    assert 0.7 < run.eval.train_coverage.iloc[-1] <= 1


class Broken(Pinball):
    """Gives one loss for all."""

    def losses(self, outputs, labels):
        return (labels - outputs).square().mean()


class Misnamed(Pinball):
    """Gives another statistic than it names."""

    def statistics(self, outputs, labels):
        return {"cover": outputs[:, 0]}


class Spaced(Pinball):
    """Has a name that cannot be a column."""

    metrics = (Metric(name="Cover age"),)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Broken, r"losses returned shape \(\); expected one loss for each sample"),
        (Misnamed, r"statistics gave \['cover'\]; expected \['coverage'\]"),
        (Spaced, 'a metric is called "Cover age"'),
        (dict, "gave dict; expected a class derived from fedmpi.tasks.Task"),
    ],
)
def test_a_broken_task_is_refused_before_the_first_round(tmp_path, task, words):
    """With what it did and what is expected."""
    (tmp_path / "c.toml").write_text(config_of(tmp_path, "regression"))
    with pytest.raises(UserError, match=words):
        fedmpi.run(tmp_path / "c.toml", task=task, progress=False)


def test_check_and_help_know_tasks(tmp_path, fedmpi_cli):
    """`check` builds the model for the task; `help` lists tasks."""
    (tmp_path / "c.toml").write_text(config_of(tmp_path, "next-character", "transformer"))
    done = fedmpi_cli("check", "c.toml")
    assert done.returncode == 0, done.stderr
    assert "transformer:" in done.stdout
    assert "Any of K labels" in fedmpi_cli("help", "task.name").stdout


def test_the_schema_of_a_config_with_a_task_is_whole(tmp_path):
    """The resolved text gives the same config."""
    config = validate.parse(config_of(tmp_path, "multi-label"), "a.toml")
    assert validate.parse(config.to_toml(), "b.toml") == replace(config)
