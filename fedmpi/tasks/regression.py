"""Numbers for each sample: squared error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.tasks.interface import Metric, Samples, Task, parts_of, shape_text, task

if TYPE_CHECKING:
    from torch import Tensor


@task(
    "regression",
    start={"data.dataset": "mine.h5", "data.partition": "natural", "data.num_clients": None},
)
class Regression(Task):
    """One number or several for each sample; mean squared error."""

    metrics = (
        Metric(
            name="mean_squared_error",
            units="squared label units",
            description="mean over samples and outputs of (output - label)^2 over {}",
        ),
        Metric(
            name="mean_absolute_error",
            units="label units",
            description="mean over samples and outputs of |output - label| over {}",
        ),
    )
    loss_units = "squared label units"

    def problem(self, data: Samples) -> str | None:
        """Labels are finite numbers."""
        for part, _, labels in parts_of(data):
            if labels.dtype.kind != "f" or labels.ndim not in (1, 2):
                return (
                    f"{part} labels are {shape_text(labels)}, expected floating-point numbers, (n,) or "
                    '(n, K); integers are labels of task.name = "classification", or store them as float32'
                )
            if not np.isfinite(labels).all():
                where = np.flatnonzero(~np.isfinite(labels).reshape(len(labels), -1).all(axis=1))[0]
                return f"the label of {part} sample {where} is not finite"
        return None

    def num_outputs(self, data: Samples) -> int:
        """As many as labels."""
        return int(np.prod(data.train_labels.shape[1:], dtype=int))

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Squared error, the mean over the outputs of a sample."""
        return self._errors(outputs, labels).square().mean(dim=1)

    def slope(self, outputs: Tensor, labels: Tensor, classes: Tensor, minus_ones: Tensor) -> Tensor:
        """2 (output - label) / K in place, (clients, K, batch)."""
        wanted = labels.reshape(len(labels), labels.shape[1], -1).transpose(1, 2)
        return outputs.sub_(wanted).mul_(2 / outputs.shape[1])

    def statistics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """Squared and absolute errors."""
        errors = self._errors(outputs, labels)
        return {
            "mean_squared_error": errors.square().mean(dim=1),
            "mean_absolute_error": errors.abs().mean(dim=1),
        }

    def _errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels.reshape(outputs.shape)).reshape(len(outputs), -1)
