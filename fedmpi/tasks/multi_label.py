"""Any number of labels for each sample, of K that there are: binary cross-entropy of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.tasks.interface import Metric, Number, Samples, Task, parts_of, shape_text, task

if TYPE_CHECKING:
    from torch import Tensor


@task(
    "multi-label",
    start={"data.dataset": "mine.h5", "data.partition": "natural", "data.num_clients": None},
)
class MultiLabel(Task):
    """Any of K labels for each sample; F1 over all of them (micro) and accuracy."""

    loss_units = "nats"
    metrics = (
        Metric(
            name="f1",
            description="2 TP / (2 TP + FP + FN) over all samples and labels of {} (micro); 0 without any",
            higher_is_better=True,
        ),
        Metric(
            name="accuracy",
            description="share of all pairs (sample, label) of {} that are right",
            higher_is_better=True,
        ),
    )
    sums = ("hits", "predicted", "present", "accuracy")

    def problem(self, data: Samples) -> str | None:
        """Labels are 0 or 1, K for each sample."""
        for part, _, labels in parts_of(data):
            if labels.ndim != 2 or labels.dtype.kind not in "iu":
                return f"{part} labels are {shape_text(labels)}, expected (n, K) integers, each 0 or 1"
            if labels.size and not 0 <= labels.min() <= labels.max() <= 1:
                return f"{part} labels from {labels.min()} to {labels.max()}; expected 0 or 1"
        if not data.train_labels.shape[1]:
            return "there are no labels: K is 0"
        return None

    def num_outputs(self, data: Samples) -> int:
        """K."""
        return data.train_labels.shape[1]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Binary cross-entropy of logits, the mean over the labels of a sample."""
        from torch import nn

        each = nn.functional.binary_cross_entropy_with_logits(
            outputs, labels.to(outputs.dtype), reduction="none"
        )
        return each.mean(dim=1)

    def slope(self, outputs: Tensor, labels: Tensor, classes: Tensor, minus_ones: Tensor) -> Tensor:
        """(sigmoid - label) / K in place, (clients, K, batch)."""
        wanted = labels.transpose(1, 2).to(outputs.dtype)
        return outputs.sigmoid_().sub_(wanted).div_(outputs.shape[1])

    def statistics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """True positives, positives of the model and of the data, and the share that is right."""
        predicted, present = outputs > 0, labels > 0
        return {
            "hits": (predicted & present).sum(dim=1),
            "predicted": predicted.sum(dim=1),
            "present": present.sum(dim=1),
            "accuracy": (predicted == present).double().mean(dim=1),
        }

    def values(self, totals: Mapping[str, Number], count: Number) -> Mapping[str, Number]:
        """F1 from the sums over all samples and labels."""
        positives = totals["predicted"] + totals["present"]
        f1 = 2 * totals["hits"] / np.maximum(positives, 1)  # without any, hits are 0 too
        return {"f1": f1, "accuracy": totals["accuracy"] / count}
