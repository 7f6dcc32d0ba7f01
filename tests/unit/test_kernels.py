"""The kernels of dense layers compute what numpy and torch compute, for any shape, and hide no infinity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedmpi.data.evaluation import EvalData, Normaliser
from fedmpi.data.shard import Work
from fedmpi.errors import ClientError
from fedmpi.models.engines import forward, kernels
from fedmpi.models.engines.compiled import CompiledOutputs
from fedmpi.models.flat import FlatModel
from tests.unit.test_engines import dense, trainer, updates_of

SIZES = st.integers(1, 37)


def numbers(*shape: int) -> np.ndarray:
    """Some float32."""
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@settings(deadline=None)
@given(outputs=SIZES, length=SIZES, batch=SIZES)
def test_products(outputs, length, batch):
    """Every product of a shape is computed, and none of another."""
    weights, inputs, out = (
        numbers(outputs, length),
        numbers(batch, length),
        np.full((batch, outputs), np.nan, "f4"),
    )
    kernels.products(weights, inputs, out)
    np.testing.assert_allclose(out, inputs @ weights.T, atol=1e-4)


@settings(deadline=None)
@given(outputs=SIZES, length=SIZES, batch=SIZES)
def test_add_products(outputs, length, batch):
    """Every sample's part is added once."""
    slope, inputs, target = numbers(batch, outputs), numbers(batch, length), numbers(outputs, length)
    expected = target + slope.T @ inputs
    kernels.add_products(target, slope, inputs)
    np.testing.assert_allclose(target, expected, atol=1e-4)


def samples_of(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Images as they are stored."""
    return torch.randint(0, 256, (count, 3, 4, 5), generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("widths", [(60, 10), (60, 33, 7), (60, 20, 17, 3)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_outputs(widths, dtype):
    """Those of the module itself, for each model of a pack, for blocks that 16 does not divide."""
    inputs, labels = samples_of(77, dtype), torch.zeros(77, dtype=torch.int64)
    factors = (torch.full((1, 3, 1, 1), v) for v in (0.01, -0.5))
    normalise = Normaliser(*(factors if dtype == torch.uint8 else (None, None)), torch.float32)
    data = EvalData(block_ids=np.arange(1), num_blocks=1, block=77, num_samples=77, inputs=inputs,
                    labels=labels, normalise=normalise)  # fmt: skip
    models = [FlatModel(dense(*widths), torch.float32, torch.device("cpu")) for _ in range(3)]
    for scale, model in enumerate(models):
        model.values.mul_(1 + scale)
    quick = forward.make_forward(models, data)
    quick.load()
    assert isinstance(quick, CompiledOutputs)
    with torch.no_grad():
        for found, model in zip(quick(inputs[None])[0], models, strict=True):
            np.testing.assert_allclose(found.t(), model.module(normalise(inputs)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("widths", [(12, 4), (12, 9, 4)])
def test_what_is_not_finite_stays_so(bad, widths):
    """Divergence is seen in the update, also through ReLU."""
    made = trainer(dense(*widths), "batched", (3, 4), [20], 16)
    made.start[0] = bad
    assert not torch.isfinite(updates_of(made, [0])[0]).all()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_label_beyond_the_outputs_is_an_error(at_once):
    """Kernels do not check the bounds of arrays by themselves: all steps at once, and step by step."""
    made = trainer(dense(12, 4), "batched", (3, 4), [20], 16)
    made.data.is_changed = not at_once  # as with augmentation: step by step
    made.data.noise_std = 0.0
    assert made._gradients.takes([Work(made.data, 0, 0)]) is at_once
    made.data.labels[:] = 4
    with pytest.raises(ClientError, match="label is not among the model's outputs"):
        updates_of(made, [0])


@pytest.mark.parametrize("at_once", [True, False])
def test_samples_of_another_size_are_an_error(at_once):
    """The same for samples."""
    made = trainer(dense(12, 4), "batched", (3, 5), [20], 16)
    made.data.is_changed = not at_once
    with pytest.raises(ClientError, match="as many numbers as the model takes"):
        updates_of(made, [0])


def test_without_a_place_for_compiled_code(monkeypatch):
    """A read-only container compiles anew in each process instead of failing."""
    asked = []

    def njit(*, cache: bool = False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(kernels, "njit", njit)
    assert kernels._compiled(nn.Identity) is nn.Identity
    assert asked == [True, False]
