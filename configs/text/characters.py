"""A model of one's own for text: the next character from the last ones (Bengio et al. 2003, of words)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Window(nn.Module):
    """Embeddings of the last `span` characters side by side, a hidden layer, scores of what is next."""

    def __init__(self, num_tokens: int, num_classes: int, width: int, span: int, hidden: int) -> None:
        super().__init__()
        self.span = span
        self.embedding = nn.Embedding(num_tokens + 1, width)  # the last one: before the text begins
        self.hidden = nn.Linear(span * width, hidden)
        self.scores = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, positions, classes) from (samples, positions)."""
        before = self.embedding.num_embeddings - 1
        padded = nn.functional.pad(tokens, (self.span - 1, 0), value=before)
        windows = self.embedding(padded.unfold(1, self.span, 1)).flatten(2)
        return self.scores(torch.relu(self.hidden(windows)))


def window(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_tokens: int,
    width: int = 16,
    span: int = 8,
    hidden: int = 64,
) -> nn.Module:
    """`model.name = "configs.text.characters:window"`, its sizes in `[model.options]`."""
    return Window(num_tokens, num_classes, width, span, hidden)
