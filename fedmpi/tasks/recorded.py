"""What a task records, as columns of the result file."""

from __future__ import annotations

from fedmpi.storage.columns import Column
from fedmpi.tasks.interface import PARTS, Task


def metric_columns(task: Task) -> tuple[Column, ...]:
    """The loss and the metrics over the training set, then those over the test set."""
    return tuple(
        Column(
            f"{part}_{metric.name}", "f8", metric.units, metric.about(part),
            better="higher" if metric.higher_is_better else "lower",
        )
        for part in PARTS
        for metric in task.recorded()
    )  # fmt: skip
