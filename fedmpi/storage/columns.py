"""The layout of a result file: every table, its columns, types, units and meaning.

Invariant: what is written is listed here, so a file explains itself and the reader knows what to expect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedmpi.errors import UserError, did_you_mean
from fedmpi.errors.wording import option

FORMAT = "fedmpi-run"
FORMAT_VERSION = 1
SEGMENTED_VERSION = 2  # of a file that has rows in others (segments.py)

RUNNING, DONE, DIVERGED, STOPPED = "running", "done", "diverged", "stopped"

# Where the time of a rank goes: the attribute `phases` has seconds of each, for every rank.
LOCAL_SGD, LENDING, REDUCTION, IDLE = "local SGD", "lending", "reduction", "idle"
EVALUATION, THEORY, OUTPUT = "evaluation", "theory", "output"
PHASES = (LOCAL_SGD, LENDING, REDUCTION, IDLE, EVALUATION, THEORY, OUTPUT)
# Beside the phases: seconds of this leg, and the most memory of the process and of its tensors on a GPU.
IN_ALL, MEMORY, DEVICE_MEMORY = "in all", "memory_mb", "device_memory_mb"
BESIDE_PHASES = (IN_ALL, MEMORY, DEVICE_MEMORY)


@dataclass(frozen=True)
class Column:
    """One dataset along its table's first column."""

    name: str
    dtype: str
    units: str
    description: str
    better: str = ""  # of a metric: "lower" or "higher"


# Of classification, and of files from before there were other tasks, which name theirs in an attribute.
_METRICS = (
    Column("train_loss", "f8", "nats", "mean loss per sample over the training set", "lower"),
    Column("train_accuracy", "f8", "1", "share of the training set classified correctly", "higher"),
    Column("test_loss", "f8", "nats", "mean loss per sample over the test set", "lower"),
    Column("test_accuracy", "f8", "1", "share of the test set classified correctly", "higher"),
)
PARTS = ("train", "test", "held-out")  # sets of samples that are evaluated
METRICS_ATTRIBUTE = "metrics"

# Group -> columns. The first column is the table's dimension scale.
TABLES: dict[str, tuple[Column, ...]] = {
    "train": (
        Column("round", "i8", "rounds", "round t, from 0"),
        Column("participants", "i8", "clients", "clients with q_t^n > 0"),
        Column("weighted_sum_norm", "f8", "1", "Euclidean norm of sum_n q_t^n Delta_t^n"),
        Column("is_amplification", "?", "1", "the accumulated update was amplified after this round"),
        Column("wall_time_s", "f8", "s", "since the start of the run, at the round's end"),
        Column("compute_time_s", "f4", "s", "local SGD of the slowest rank"),
        Column("comm_time_s", "f4", "s", "reduction and broadcast on rank 0, waiting included"),
        Column("idle_time_s", "f4", "s", "waiting for the slowest rank, mean over ranks"),
    ),
    "eval": (
        Column("round", "i8", "rounds", "completed rounds: 0 is the initial model, t is x_t"),
        *_METRICS,
        Column("wall_time_s", "f8", "s", "since the start of the run, evaluation included"),
    ),
    "participation": (
        Column("round", "i8", "rounds", "round t, from 0"),
        Column("client", "i8", "1", "client id n, from 0"),
        Column("weight", "f8", "1", "participation weight q_t^n > 0"),
        Column("update_max", "f4", "1", "largest magnitude in the client's update Delta_t^n"),
    ),
    "clients": (
        Column("client", "i8", "1", "client id n, from 0"),
        Column("size", "i8", "samples", "training samples of the client"),
        Column("majority_label", "i8", "1", "most frequent label; -1 without samples"),
        Column("rank", "i8", "1", "MPI rank that owned the client"),
    ),
}

# Columns that the first files of this format did not have.
ADDED_LATER = ("idle_time_s",)
# Config keys that they did not have, with the values that these runs had in effect.
KEYS_ADDED_LATER = {"run": {"deterministic": True, "tf32": False, "stall_minutes": 10.0}}

# Only in files of runs that asked for them.
OPTIONAL_TABLES: dict[str, tuple[Column, ...]] = {
    "amplification": (
        Column("round", "i8", "rounds", "completed rounds t of the model that was amplified"),
        Column("is_after", "?", "1", "false: just before the amplification; true: after it, x_t itself"),
        *_METRICS,
    ),
    "clients_eval": (
        Column("round", "i8", "rounds", "completed rounds: 0 is the initial model, t is x_t"),
        Column("client", "i8", "1", "client id; those that are held out come after those that train"),
        Column("part", "i1", "1", "0: its training samples; 1: its test samples; 2: all, it is held out"),
        Column("samples", "i8", "samples", "of this client that were evaluated"),
        Column("loss", "f8", "nats", "mean loss per sample of the client"),
        Column("accuracy", "f8", "1", "share of the client's samples classified correctly"),
    ),
    "energy": (
        Column("round", "i8", "rounds", "completed rounds"),
        Column("joules", "f8", "J", "used by the nodes since the row before, or since this leg began"),
    ),
    "undelivered": (
        Column("round", "i8", "rounds", "round t, from 0"),
        Column("client", "i8", "1", "client that was chosen in it and whose update did not arrive in it"),
        Column("arrives", "i8", "rounds", "the round in which it does; -1: never"),
    ),
    "theory": (
        Column("round", "i8", "rounds", "completed rounds: the gradients are those at x_t"),
        Column("grad_norm2", "f8", "1", "|grad f(x_t)|^2, f the mean over clients of their mean losses"),
        Column("d2", "f8", "1", "largest |grad F_n - grad f|^2 over clients"),
        Column("mean_d2", "f8", "1", "mean of |grad F_n - grad f|^2 over clients"),
        Column("beta2", "f8", "1", "|sum_n q_t^n (grad F_n - grad f)|^2 of round t"),
        Column("nu2", "f8", "1", "sum_n q_t^n |grad F_n - sum_m q_t^m grad F_m|^2 of round t"),
    ),
}


def tables(metrics: Sequence[Column] = _METRICS) -> dict[str, tuple[Column, ...]]:
    """All tables of a file, with the metrics of its task in the place of those of classification."""

    def with_own(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        if _METRICS[0] not in columns:
            return columns
        at = columns.index(_METRICS[0])
        return (*columns[:at], *metrics, *columns[at + len(_METRICS) :])

    found = {name: with_own(columns) for name, columns in (TABLES | OPTIONAL_TABLES).items()}
    if tuple(metrics) != _METRICS:
        found["clients_eval"] = (
            *found["clients_eval"][: -len(_METRICS) // 2],
            *map(_of_client, _train(metrics)),
        )
    return found


def _train(metrics: Sequence[Column]) -> Sequence[Column]:
    return [column for column in metrics if column.name.startswith("train_")]


def _of_client(column: Column) -> Column:
    """The same metric in /clients_eval."""
    name, text = column.name.removeprefix("train_"), column.description
    return replace(column, name=name, description=text.replace("the training set", "the client's samples"))


def stored_metrics(attributes: Mapping[str, Any]) -> tuple[Column, ...]:
    """The metrics that a file records, by its attributes, in the order of its columns."""
    text = attributes.get(METRICS_ATTRIBUTE)
    if text is None:
        return _METRICS
    return tuple(Column(dtype="f8", **metric) for metric in json.loads(text))


def metrics_text(metrics: Sequence[Column]) -> str:
    """As an attribute, for `stored_metrics`."""
    names = ("name", "units", "description", "better")
    return json.dumps([{name: getattr(metric, name) for name in names} for metric in metrics])


def headline(names: Iterable[str]) -> str:
    """The metric that is told beside the training loss where there is little room: the test set's first."""
    return next((n for n in names if n.startswith("test_") and n != "test_loss"), "test_loss")


def short_name(metric: str) -> str:
    """
    >>> short_name("test_accuracy"), short_name("test_mean_squared_error")
    ('acc', 'mean squared error')
    """
    return metric.partition("_")[2].replace("accuracy", "acc").replace("_", " ")


def metric_of(attributes: Mapping[str, Any], name: str) -> Column:
    """A metric that a file records; an unknown one is a UserError that names those there are."""
    known = {column.name: column for column in stored_metrics(attributes)}
    if name not in known:
        raise UserError(f"{option('metric', name)}: unknown; {did_you_mean(name, known)}")
    return known[name]
