"""The sequence models and the deep one: against torch's own, causal, and the same by both engines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedmpi
from fedmpi.config import validate
from fedmpi.errors import UserError
from fedmpi.models import build_model
from fedmpi.models.causal import CharLSTM, Transformer
from fedmpi.models.engines import Engine, make_gradients
from fedmpi.models.flat import FlatModel
from fedmpi.tasks import TASKS
from tests.support.tasks import MODELS, config_of

CPU = torch.device("cpu")


def built(model: str) -> nn.Module:
    """A small one for 5 tokens in sequences of 7."""
    torch.manual_seed(1)
    if model == "char-lstm":
        return CharLSTM(5, 3, 6, 2, 5, each_position=True)
    return Transformer(5, 7, 6, 2, 2, 5, each_position=True)


def test_the_lstm_is_torchs():
    """Outputs of two layers agree with nn.LSTM of the same weights, fused and step by step."""
    model, theirs = built("char-lstm"), nn.LSTM(3, 6, 2, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            getattr(theirs, f"weight_ih_l{number}").copy_(layer.weight_ih)
            getattr(theirs, f"weight_hh_l{number}").copy_(layer.weight_hh)
            getattr(theirs, f"bias_ih_l{number}").copy_(layer.bias)
            getattr(theirs, f"bias_hh_l{number}").zero_()
    tokens = torch.randint(0, 5, (4, 7))
    expected = model.head(theirs(model.embedding(tokens))[0])
    torch.testing.assert_close(model(tokens), expected)
    stepwise = torch.func.vmap(model)(tokens[None])[0]
    torch.testing.assert_close(stepwise, expected)


def test_the_shakespeare_model_has_its_size():
    """Embedding of 8, two layers of 256: 4 gates of inputs, state and bias each, and the outputs."""
    config = validate.parse(SHAKESPEARE, "a.toml")
    num_params = sum(p.numel() for p in build_model(config, (80,), 90, 90).parameters())
    lstm = 4 * 256 * (8 + 256 + 1) + 4 * 256 * (256 + 256 + 1)
    assert num_params == 90 * 8 + lstm + 257 * 90


SHAKESPEARE = """
[run]
num_rounds = 1
[data]
dataset = "shakespeare.h5"
partition = "natural"
[model]
name = "char-lstm"
[algorithm]
local_lr = 1.0
local_steps = 1
[task]
name = "next-character"
"""


@pytest.mark.parametrize("model", MODELS)
def test_no_output_depends_on_later_tokens(model):
    """Other tokens behind a position change nothing at it and before it; so padding may be any token."""
    module, tokens = built(model), torch.randint(0, 5, (3, 7))
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 5
    first, second = module(tokens), module(other)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert (first[:, 4:] - second[:, 4:]).abs().min() > 0


@pytest.mark.parametrize("model", MODELS)
def test_one_label_for_a_sequence(model):
    """Where the task wants one output a sample, it is made from the mean over positions."""
    module, tokens = built(model), torch.randint(0, 5, (3, 7))
    each = module(tokens)
    module._each_position = False
    torch.testing.assert_close(module(tokens), each.mean(dim=1))


@pytest.mark.parametrize("model", MODELS)
def test_both_engines_have_the_same_gradients(model):
    """Three clients at once, each at its own parameters, agree with one after another."""
    found = []
    for name in ("loop", "batched"):
        flat = FlatModel(built(model), torch.float64, CPU, TASKS["next-character"]())
        engine = make_gradients(Engine(name, ""), flat)
        draws = torch.Generator().manual_seed(3)
        tokens = torch.randint(0, 5, (3, 2, 7), generator=draws)
        labels = torch.randint(-1, 5, (3, 2, 7), generator=draws).clamp(min=-1)
        labels[:, :, 0] = 1  # no empty sequence
        starts = flat.values + 0.1 * torch.randn(3, flat.num_params, generator=draws, dtype=torch.float64)
        target = torch.zeros(3, flat.num_params, dtype=torch.float64)
        rows = [slice(0, 3)] if engine.group_size > 1 else [slice(k, k + 1) for k in range(3)]
        for some in rows:
            engine.local_params(len(starts[some])).copy_(starts[some])
            engine.adder(target[some])(tokens[some], labels[some], 1.0)
        found.append(target)
    assert found[0].norm() > 0.1
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_a_client_has_the_same_bits_beside_any_others(tmp_path, model):
    """The batched engine gives a client among six the bits that it has by itself."""
    (tmp_path / "c.toml").write_text(config_of(tmp_path, "next-character", model))
    settings = {"algorithm.engine": "batched", "run.num_rounds": 1}
    for number in (1, 6):
        settings["participation.clients_per_round"] = number
        fedmpi.run(tmp_path / "c.toml", settings, tmp_path / f"{number}.h5", progress=False)
    one, all_six = (fedmpi.load_run(tmp_path / f"{n}.h5").participation for n in (1, 6))
    client = one.client.iloc[0]
    assert one.update_max.iloc[0] == all_six[all_six.client == client].update_max.iloc[0]


RESNET = """
[run]
num_rounds = 1
eval_every = 0
[data]
dataset = "synthetic"
train_samples = 12
test_samples = 4
shape = [1, 16, 16]
num_clients = 3
[model]
name = "resnet18-gn"
[participation]
selection = "uniform"
clients_per_round = 2
[algorithm]
local_lr = 0.01
local_steps = 1
batch_size = 2
"""


def test_the_resnet_is_torchvisions_with_group_norm():
    """All parameters of torchvision's by name; no running statistics; other channels are taken."""
    from fedmpi.data.vision import import_torchvision

    theirs = import_torchvision("a test").models.resnet18(num_classes=10)
    config = validate.parse(RESNET, "a.toml")
    ours = build_model(config, (3, 32, 32), 10)
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [
        (n, p.shape) for n, p in theirs.named_parameters()
    ]
    assert sum(p.numel() for p in ours.parameters()) == 11_181_642
    assert not list(ours.named_buffers())
    assert {type(m) for m in ours.modules() if "Norm" in type(m).__name__} == {nn.GroupNorm}
    assert build_model(config, (1, 16, 16), 10).conv1.weight.shape == (64, 1, 7, 7)
    with pytest.raises(UserError, match="norm_groups = 3: does not divide 64 channels"):
        build_model(replace(config, model=replace(config.model, norm_groups=3)), (3, 32, 32), 10)
    with pytest.raises(UserError, match=r"takes samples of shape \(channels, height, width\)"):
        build_model(config, (16,), 10)


def test_the_resnet_by_both_engines(tmp_path):
    """One round gives the same model to rounding."""
    (tmp_path / "c.toml").write_text(RESNET)
    runs = [
        fedmpi.run(tmp_path / "c.toml", {"algorithm.engine": engine}, progress=False)
        for engine in ("loop", "batched")
    ]
    first, second = (run.global_params for run in runs)
    assert np.abs(first - second).max() < 1e-4
    assert math.isfinite(runs[0].eval.train_loss.iloc[-1])
