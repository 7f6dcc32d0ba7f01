"""Small problems of each task, shared by tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmpi.data.prepared import Dataset, write_dataset

BASE = """
[run]
num_rounds = 8
eval_every = 4
[data]
dataset = "{data}"
partition = "natural"
[model]
{model}
[participation]
selection = "uniform"
clients_per_round = 3
[algorithm]
local_lr = 0.1
local_steps = 2
batch_size = 4
[task]
name = "{task}"
"""
MLP = 'name = "mlp"\nhidden = [5]'
MODELS = {"char-lstm": "width = 8", "transformer": "width = 8\nnum_heads = 2"}


def numbers(task: str) -> Dataset:
    """48 + 20 samples of four numbers, whose labels depend on them; six clients."""
    draws = np.random.default_rng(1)
    inputs = draws.standard_normal((68, 4)).astype("f4")
    values = inputs @ draws.standard_normal((4, 3))
    labels = {"regression": values, "multi-label": values > 0, "classification": values.argmax(axis=1)}[
        task
    ]
    clients = np.arange(48) // 8
    return Dataset("numbers", inputs[:48], labels[:48], inputs[48:], labels[48:], 3, train_clients=clients)


def text(dtype: str = "u1") -> Dataset:
    """48 + 20 sequences of 7 of 5 tokens, each token followed by one of two; some are padded."""
    draws = np.random.default_rng(2)
    walk = np.zeros((68, 8), int)
    for place in range(7):
        walk[:, place + 1] = (walk[:, place] * 2 + draws.integers(2, size=68) + 1) % 5
    inputs, labels = walk[:, :-1].astype(dtype), walk[:, 1:].copy()
    lengths = draws.integers(2, 8, size=68)
    labels[np.arange(7) >= lengths[:, None]] = -1
    clients = np.arange(48) // 8
    return Dataset("text", inputs[:48], labels[:48], inputs[48:], labels[48:], 5, train_clients=clients)


def config_of(folder: Path, task: str, model: str = "") -> str:
    """A config and its data in a folder: of a sequence model for next-character, of an MLP for others."""
    path = folder / f"{task}.h5"
    write_dataset(path, text() if task == "next-character" else numbers(task))
    chosen = f'name = "{model}"\n{MODELS[model]}' if model else MLP
    return BASE.format(data=path, task=task, model=chosen)
