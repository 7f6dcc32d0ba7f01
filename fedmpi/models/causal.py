"""Models of sequences of tokens, from operations that `vmap` can stack and a GPU can record.

torch's own LSTM cannot: it is used on a CPU where a single model is computed, three times as fast.
Invariant: an output depends on the tokens up to its position only, so padding behind them changes nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Sequences(nn.Module):
    """What they share: embedded tokens, and outputs at each position or from the mean over them."""

    def __init__(
        self, num_tokens: int, size: int, width: int, num_outputs: int, *, each_position: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, size)
        self.head = nn.Linear(width, num_outputs)
        self._each_position = each_position

    def outputs(self, hidden: Tensor) -> Tensor:
        """(samples, positions, outputs), or (samples, outputs)."""
        return self.head(hidden if self._each_position else hidden.mean(dim=1))


class _LSTMLayer(nn.Module):
    """As nn.LSTM computes it, with one bias."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self._width, bound = width, 1 / math.sqrt(width)
        shapes = {"weight_ih": (4 * width, inputs), "weight_hh": (4 * width, width), "bias": (4 * width,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, positions, width) from (samples, positions, inputs)."""
        if inputs.device.type == "cpu" and torch._C._functorch.peek_interpreter_stack() is None:
            return self._fused(inputs)
        gates = functional.linear(inputs, self.weight_ih, self.bias)  # of all positions at once
        hidden = cell = torch.zeros_like(gates[:, 0, : self._width])
        found = []
        for own in gates.unbind(1):
            i, f, g, o = (own + functional.linear(hidden, self.weight_hh)).chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            found.append(hidden)
        return torch.stack(found, dim=1)

    def _fused(self, inputs: Tensor) -> Tensor:
        """The same by torch's own."""
        start = inputs.new_zeros(1, len(inputs), self._width)
        weights = [self.weight_ih, self.weight_hh, self.bias, torch.zeros_like(self.bias)]
        return torch.lstm(inputs, (start, start), weights, True, 1, 0.0, False, False, True)[0]


class CharLSTM(_Sequences):
    """Layers of LSTM above an embedding."""

    def __init__(
        self,
        num_tokens: int,
        size: int,
        width: int,
        num_layers: int,
        num_outputs: int,
        *,
        each_position: bool,
    ) -> None:
        super().__init__(num_tokens, size, width, num_outputs, each_position=each_position)
        sizes = [size, *[width] * (num_layers - 1)]
        self.layers = nn.ModuleList(_LSTMLayer(inputs, width) for inputs in sizes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.outputs(hidden)


class _Block(nn.Module):
    """Attention to what came before, then a dense layer at each position; LayerNorm before both."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self._heads = num_heads
        self.norm_attention, self.norm_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        """(samples, positions, width) to the same."""
        values = values + self.mix(self._attended(self.norm_attention(values)))
        return values + self.down(functional.gelu(self.up(self.norm_dense(values))))

    def _attended(self, values: Tensor) -> Tensor:
        samples, positions, width = values.shape
        parts = self.queries_keys_values(values).chunk(3, dim=2)
        queries, keys, values = (
            part.reshape(samples, positions, self._heads, -1).transpose(1, 2) for part in parts
        )
        scores = queries @ keys.transpose(2, 3) / math.sqrt(width // self._heads)
        at = torch.arange(positions, device=scores.device)
        scores = scores.masked_fill(at > at[:, None], -math.inf)
        return (scores.softmax(dim=3) @ values).transpose(1, 2).reshape(samples, positions, width)


class Transformer(_Sequences):
    """Causal self-attention with learnt positions."""

    def __init__(
        self, num_tokens: int, length: int, width: int, num_heads: int, num_layers: int, num_outputs: int,
        *, each_position: bool,
    ) -> None:  # fmt: skip
        super().__init__(num_tokens, width, width, num_outputs, each_position=each_position)
        self.positions = nn.Parameter(torch.empty(length, width).normal_(std=0.02))
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(_Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        values = self.embedding(tokens) + self.positions
        for block in self.blocks:
            values = block(values)
        return self.outputs(self.norm(values))
