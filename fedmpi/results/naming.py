"""What metrics are called in figures and tables, which of them are shown first, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable

from fedmpi.storage.columns import Column, headline
from fedmpi.storage.reader import Run

_PARTS = {"train": "Training", "test": "Test"}
_COSTS = {
    "rounds": "Rounds", "local_steps": "Local steps", "bytes_sent": "Sent", "seconds": "Time",
    "energy_j": "Energy",
}  # fmt: skip


def metrics_of(runs: Iterable[Run]) -> dict[str, Column]:
    """All that some run records, by name; runs may have different tasks."""
    return {name: column for run in runs for name, column in run.metrics.items()}


def title(name: str) -> str:
    """
    >>> title("train_loss"), title("test_mean_squared_error")
    ('Training loss', 'Test mean squared error')
    """
    part, _, metric = name.partition("_")
    return f"{_PARTS.get(part, part)} {metric.replace('_', ' ')}"


def title_with_units(column: Column) -> str:
    """`Training loss (nats per sample)`, `Test accuracy (%)`."""
    if is_percentage(column.name):
        return f"{title(column.name)} (%)"
    per_sample = " per sample" if column.name.endswith("loss") else ""
    return title(column.name) + (f" ({column.units}{per_sample})" if column.units != "1" else "")


def is_percentage(name: str) -> bool:
    """Whether it is shown in percent."""
    return name.endswith("accuracy")


def is_lower_better(column: Column) -> bool:
    """As its task declares it."""
    return column.better != "higher"


def shown_first(metrics: dict[str, Column]) -> list[str]:
    """The panels of a figure: the training loss, then each metric of the test set.

    The first metric is there for the training set too, if it says something else than the loss.
    """
    tests = [name for name in metrics if name.startswith("test_") and name != "test_loss"]
    first = tests[0].replace("test_", "train_") if tests else ""
    both = [first] if first and not is_lower_better(metrics[first]) else []
    return ["train_loss", *both, *tests]


def table_figures(metrics: Iterable[str]) -> list[tuple[str, str]]:
    """What the table has of each run, and its headings: the task's first metric, losses, others, costs."""
    first, known = headline(metrics), list(metrics)
    others = [name for name in known if name.startswith("test_") and name not in (first, "test_loss")]
    wanted = [f"{which} {first}" for which in ("last", "tail", "best")] if first != "test_loss" else []
    wanted += ["last train_loss", "tail train_loss", "last test_loss"]
    wanted += [f"last {first.replace('test_', 'train_')}"] if first != "test_loss" else []
    wanted += [f"last {name}" for name in others]
    return [*((name, _heading(name)) for name in wanted), *_COSTS.items()]


def _heading(figure: str) -> str:
    """
    >>> _heading("tail test_accuracy"), _heading("last train_loss")
    ('Test acc. %, last 3 %', 'Train loss, last')
    """
    which, _, metric = figure.partition(" ")
    part, _, name = metric.partition("_")
    name = "acc. %" if name == "accuracy" else name.replace("_", " ")
    return f"{part.capitalize()} {name}, {'last 3 %' if which == 'tail' else which}"
