"""The next token at each position of a sequence; a label of -1 is padding and does not count.

The loss of a sample is the mean over its own characters, so short and long sequences weigh alike in
training, and a perplexity over all characters is not the exponential of the mean loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.tasks.interface import Metric, Number, Samples, Task, parts_of, shape_text, task

if TYPE_CHECKING:
    from torch import Tensor

PADDING = -1


@task(
    "next-character",
    start={
        "data.dataset": "synthetic-text", "data.partition": "iid", "model.name": "char-lstm",
        "model.hidden": None, "model.width": 32, "model.num_layers": 1, "algorithm.local_lr": 1.0,
    },
)  # fmt: skip
class NextCharacter(Task):
    """The next character at each position; accuracy and perplexity over all that are not padding."""

    loss_units = "nats"
    metrics = (
        Metric(
            name="accuracy",
            description="share of the characters of {} that are predicted, without padding",
            higher_is_better=True,
        ),
        Metric(
            name="perplexity",
            description="exponential of the mean cross-entropy of a character of {}, without padding",
        ),
    )
    sums = ("nats", "right", "characters")
    each_position = True

    def problem(self, data: Samples) -> str | None:
        """Token ids, and for each of them a label or -1; no sequence without any."""
        if not data.num_tokens or data.train_inputs.ndim != 2:
            return (
                f"inputs are {shape_text(data.train_inputs)}"
                f"{'' if data.num_tokens else ', and no token ids'}; expected (n, L) token ids and the "
                "attribute num_tokens (analysis/FORMAT.md)"
            )
        for part, inputs, labels in parts_of(data):
            if labels.shape != inputs.shape or labels.dtype.kind not in "iu":
                return (
                    f"{part} labels are {shape_text(labels)}, expected integers of the inputs' shape "
                    f"{inputs.shape}: the next character at each position, {PADDING} where it is padding"
                )
            if not inputs.shape[1]:
                return f"{part} sequences have length 0"
            if labels.size and not PADDING <= labels.min() <= labels.max() < data.num_classes:
                return (
                    f"{part} labels from {labels.min()} to {labels.max()}; expected 0 to "
                    f"{data.num_classes - 1}, and {PADDING} for padding"
                )
            empty = np.flatnonzero((labels == PADDING).all(axis=1))
            if len(empty):
                return (
                    f"{len(empty)} {part} sequences are empty, all padding (sample {empty[0]}); leave "
                    "them out"
                )
        return None

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the characters of each sample."""
        nats, counts = self._nats(outputs, labels), labels.ne(PADDING)
        return nats.sum(dim=1) / counts.sum(dim=1)

    def statistics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """Cross-entropy, right ones and all of the characters of each sample."""
        right = (outputs.argmax(dim=2) == labels).sum(dim=1)  # padding is never predicted
        nats = self._nats(outputs, labels).double().sum(dim=1)
        return {"nats": nats, "right": right, "characters": labels.ne(PADDING).sum(dim=1)}

    def values(self, totals: Mapping[str, Number], count: Number) -> Mapping[str, Number]:
        """Over all characters of the set."""
        characters = totals["characters"]
        with np.errstate(over="ignore"):
            perplexity = np.exp(totals["nats"] / characters)
        return {"accuracy": totals["right"] / characters, "perplexity": perplexity}

    def _nats(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(samples, positions): cross-entropy of each character, 0 for padding."""
        from torch import nn

        # All positions in a row: the kernel for several dimensions is not deterministic on a GPU.
        flat, wanted = outputs.flatten(0, 1), labels.flatten().long()
        each = nn.functional.cross_entropy(flat, wanted, ignore_index=PADDING, reduction="none")
        return each.view(labels.shape)
