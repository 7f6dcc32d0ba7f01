"""A task: from a model's outputs and the labels to losses, and to the metrics of an evaluation.

A task of one's own derives from `Task`, names its metrics and gives what is summed over samples for them.
Invariant: what is recorded is a function of sums over samples, so it does not depend on how the samples
are spread over ranks. Tasks do not import torch until they compute.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedmpi.config.registry import TASKS

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Number = Any  # a float, or an array of them

task = TASKS  # `task(name)` registers a class

PARTS = {"train": "the training set", "test": "the test set"}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Something that is recorded of a model, as `train_NAME` and `test_NAME`."""

    name: str
    units: str = "1"
    description: str = ""  # of what is recorded, such as "share of samples classified correctly"
    higher_is_better: bool = False

    def about(self, part: str) -> str:
        """The description of a column: "{}" stands for the set, which else comes last."""
        text = self.description or f"mean {self.name} per sample"
        return text.format(PARTS[part]) if "{}" in text else f"{text}, over {PARTS[part]}"


class Samples(Protocol):
    """What a task is told of a data set: a `fedmpi.data.prepared.Dataset`."""

    name: str
    train_inputs: np.ndarray
    train_labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    num_tokens: int


class Task:
    """What clients learn. Labels come as the data set has them, numbers in training precision."""

    loss_units = "1"
    metrics: Sequence[Metric] = ()  # besides the loss
    sums: Sequence[str] = ()  # what `statistics` gives; default: a number for each metric
    each_position = False  # whether a model gives outputs for each position of a sequence
    slope: Any = None  # for models of dense layers, see classification.py; None: by autograd

    def __init_subclass__(cls) -> None:
        """What only saves time is not inherited past a change of what it computes."""
        if "losses" in cls.__dict__ and "slope" not in cls.__dict__:
            cls.slope = None
        changed = {"losses", "statistics", "sums", "metrics"} & set(cls.__dict__)
        if changed and "of_samples" not in cls.__dict__:
            cls.of_samples = Task.of_samples

    def problem(self, data: Samples) -> str | None:
        """Why this data set does not fit, with what would; None if it does."""

    def num_outputs(self, data: Samples) -> int:
        """How many numbers a model gives for a sample, or for each position of one."""
        return data.num_classes

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(samples,) losses, of which the mean is minimised."""
        raise NotImplementedError(f"{type(self).__name__}.losses(outputs, labels)")

    def statistics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """(samples,) numbers that are summed over a whole set, by their names in `sums`."""
        return {}

    def values(self, totals: Mapping[str, Number], count: Number) -> Mapping[str, Number]:
        """The metrics of a set of `count` samples from the totals; by default means per sample.

        Numbers, or arrays with one for each client.
        """
        return {name: totals[name] / count for name in self.names}

    @property
    def names(self) -> list[str]:
        """Of its metrics, without the loss."""
        return [metric.name for metric in self.metrics]

    @property
    def summed(self) -> list[str]:
        """What is summed over a set, the loss first."""
        return ["loss", *(self.sums or self.names)]

    def recorded(self) -> list[Metric]:
        """All metrics in the order of the result file, the loss first."""
        loss = Metric(name="loss", units=self.loss_units, description="mean loss per sample over {}")
        return [loss, *self.metrics]

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """(blocks, models, samples) of each of `summed`: the loss, then the statistics.

        Takes outputs (blocks, models, ..., samples) and labels (blocks, samples, ...). Each block and each
        model by itself, so that the bits do not depend on the others.
        """
        import torch

        by_sample = outputs.movedim(-1, 2)
        found = [
            torch.stack([self._of_block(own, wanted) for own in block])
            for block, wanted in zip(by_sample.unbind(), labels.unbind(), strict=True)
        ]
        return torch.stack(found).unbind(2)

    def _of_block(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(sums, samples)."""
        import torch

        own = self.statistics(outputs, labels)
        if set(own) != set(self.summed[1:]):
            raise ValueError(f"statistics gave {sorted(own)}; expected {sorted(self.summed[1:])}")
        values = [self.losses(outputs, labels), *(own[name] for name in self.summed[1:])]
        return torch.stack([value.double() for value in values])

    def evaluated(self, totals: Sequence[Number], count: Number) -> tuple[Number, ...]:
        """Mean loss and metrics, in the order of `recorded`; nan for an empty set.

        Of a whole set, or of many clients at once.
        """
        if isinstance(count, int) and count == 0:
            return (math.nan,) * (1 + len(self.metrics))
        loss = totals[0] / count
        found = self.values(dict(zip(self.summed[1:], totals[1:], strict=True)), count)
        return loss, *(found[name] for name in self.names)


def problem_of(made: Task) -> str | None:
    """Why a task of the user's own cannot be used."""
    for metric in made.metrics:
        if not isinstance(metric, Metric):
            return f"metrics holds {type(metric).__name__}; expected fedmpi.tasks.Metric"
        if not re.fullmatch(r"[a-z][a-z0-9_]*", metric.name):
            return f'a metric is called "{metric.name}"; expected lower-case letters, digits and _'
    names = [metric.name for metric in made.recorded()]
    if len(set(names)) < len(names):
        return f"two metrics have one name: {', '.join(names)} (loss is always there)"
    return None


def parts_of(data: Samples) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name, inputs and labels of its sets; clients that are held out are a set too."""
    for part in ("train", "test", "held_out"):
        if getattr(data, f"{part}_labels", None) is not None:
            yield part.replace("_", "-"), getattr(data, f"{part}_inputs"), getattr(data, f"{part}_labels")


def shape_text(labels: np.ndarray) -> str:
    """Labels in words: `int64 of shape (n, 80)`."""
    inner = "".join(f", {length}" for length in labels.shape[1:])
    return f"{labels.dtype} of shape (n{inner or ','})"
