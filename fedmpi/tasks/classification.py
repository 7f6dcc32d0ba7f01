"""One label of several for each sample: cross-entropy, and how many are classified correctly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedmpi.tasks.interface import Metric, Samples, Task, shape_text, task

if TYPE_CHECKING:
    from torch import Tensor


@task("classification")
class Classification(Task):
    """One label for each sample; cross-entropy and accuracy."""

    loss_units = "nats"
    metrics = (
        Metric(
            name="accuracy", description="share of {} classified correctly", higher_is_better=True
        ),
    )  # fmt: skip

    def problem(self, data: Samples) -> str | None:
        """Labels are numbers of classes."""
        labels = data.train_labels
        if labels.ndim == 1 and labels.dtype.kind in "iu":
            return None
        others = {
            "f": '"regression"',
            "u": '"multi-label"',
            "i": '"next-character"' if data.num_tokens else '"multi-label"',
        }
        return (
            f"labels are {shape_text(labels)}, expected one integer for each sample; "
            f"for such labels there is task.name = {others.get(labels.dtype.kind, 'one of your own')}"
        )

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of logits; the outputs themselves if the model returns losses."""
        from torch import nn

        if outputs.dim() == 1:
            return outputs
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def slope(self, outputs: Tensor, labels: Tensor, classes: Tensor, minus_ones: Tensor) -> Tensor:
        """(clients, outputs, batch) in place: from outputs to d(loss of each sample)/d(outputs).

        Softmax - onehot. `classes` is 0, 1, ... in a column; `minus_ones` (clients, 1, batch).
        """
        import torch

        slope = torch.softmax(outputs, dim=1, out=outputs)
        if slope.is_cuda:  # one-hot by comparison: a deterministic scatter is a sort there
            return slope.add_((labels.unsqueeze(1) == classes).to(slope.dtype), alpha=-1)
        return slope.scatter_add_(1, labels.unsqueeze(1), minus_ones)

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """All blocks and models at once. Losses of a model that returns them have no accuracy."""
        import torch

        if outputs.dim() == 3:
            return outputs, torch.full_like(outputs, torch.nan)

        # Classes come before samples: ten times as fast as the other way round.
        wanted = labels[:, None, None].expand(-1, outputs.shape[1], 1, -1)
        losses = torch.log_softmax(outputs, dim=2).gather(2, wanted).neg_()
        right = outputs.max(dim=2, keepdim=True).indices == wanted  # of equal ones the first
        return losses.squeeze(2), right.squeeze(2)

    def statistics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """Which samples are classified correctly."""
        return {"accuracy": outputs.argmax(dim=1) == labels}
