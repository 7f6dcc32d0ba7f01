"""Evaluation: each model of a pack gets what it gets alone, from samples as they are stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.data.evaluation import EvalData, Normaliser
from fedmpi.models.engines.forward import make_forward
from fedmpi.models.flat import FlatModel
from fedmpi.models.losses import Quadratic

CPU = torch.device("cpu")
torch.set_num_threads(1)

MODELS = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 10)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 33), nn.ReLU(), nn.Linear(33, 10)),
    "cnn": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10)),
    "losses": lambda: nn.Sequential(nn.Flatten(), Quadratic([0.5] * 48)),
}


def eval_data(samples: int, dtype: torch.dtype, block: int = 16) -> EvalData:
    """Random images of three channels, each with a mean and a scale of its own."""
    numbers = np.random.default_rng(1)
    scale, shift = (
        torch.tensor(v, dtype=dtype).reshape(1, 3, 1, 1) for v in ([0.01, 0.02, 0.03], [-1, 0, 2])
    )
    return EvalData(
        block_ids=np.arange(-(-samples // block)),
        num_blocks=-(-samples // block),
        block=block,
        num_samples=samples,
        inputs=torch.from_numpy(numbers.integers(0, 256, (samples, 3, 4, 4), np.uint8)),
        labels=torch.from_numpy(numbers.integers(0, 10, samples)),
        normalise=Normaliser(scale, shift, dtype),
    )


def models_of(name: str, count: int, dtype: torch.dtype) -> list[FlatModel]:
    """Models of one kind with different parameters."""
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(FlatModel(MODELS[name](), dtype, CPU))
    return made


@torch.inference_mode()
def outputs_of(models: list[FlatModel], data: EvalData, at_once: int) -> torch.Tensor:
    """(models, classes, samples), or (models, samples) of losses."""
    forward = make_forward(models, data)
    forward.load()
    parts = [part for inputs, _ in data.blocks(at_once) for part in forward(inputs).clone()]
    return torch.cat(parts, dim=-1)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_module(name):
    """On normalised samples, for blocks of all sizes, the last one shorter."""
    data, models = eval_data(70, torch.float64), models_of(name, 3, torch.float64)
    found = outputs_of(models, data, at_once=3)
    for outputs, model in zip(found, models, strict=True):
        expected = model.module(data.normalise(data.inputs)).detach()
        torch.testing.assert_close(
            outputs.T if expected.dim() == 2 else outputs, expected, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_pack(name, dtype):
    """A model's outputs are the same alone and beside others, block by block and many blocks at once."""
    data, models = eval_data(70, dtype), models_of(name, 5, dtype)
    together = outputs_of(models, data, at_once=4)
    for outputs, model in zip(together, models, strict=True):
        for at_once in (1, 16):
            assert torch.equal(outputs_of([model], data, at_once)[0], outputs)
