"""The memory of measured constants: what is counted beforehand is what is used."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fedmpi.errors import UserError
from fedmpi.simulation import probe
from fedmpi.simulation.probe import _check_room
from tests.support.configs import ROOT
from tests.support.simulations import single_rank

# 8 million values: 128 MB at 16 bytes; with three temporaries in float64 they took 28 bytes, 224 MB.
MEASURE = """
import numpy as np, torch
from types import SimpleNamespace
from fedmpi.models.flat import FlatModel
from fedmpi.simulation.probe import Probe
from tests.support.simulations import single_rank

CLIENTS, WIDTH = 40, 20_000
sizes = SimpleNamespace(
    size=lambda client: 1,
    all_samples=lambda client: [(torch.full((1, WIDTH), 0.01 * client), torch.tensor([client % 10]))],
)
torch.manual_seed(1)
model = FlatModel(torch.nn.Linear(WIDTH, 10, bias=False), torch.float32, torch.device("cpu"))
made, everybody = Probe(single_rank(), model, sizes, CLIENTS), np.arange(CLIENTS)


def line(name):
    with open("/proc/self/status") as file:
        return 1024 * int(dict(entry.split(":", 1) for entry in file)[name].split()[0])


made.observe(model.initial, everybody[:1], np.ones(1))  # what is loaded and allocated once
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = line("VmRSS")
seen = made.observe(model.initial, everybody, np.full(CLIENTS, 1 / CLIENTS))
assert all(np.isfinite(list(seen.values()))), seen
print((line("VmHWM") - before) / (CLIENTS * model.num_params))
"""


def test_the_bytes_a_value_are_those_that_are_used():
    """With all clients taking part: neither more than counted, nor much less."""
    # Freed arrays go back to the system at once.
    at_once = {"MALLOC_MMAP_THRESHOLD_": "1000000", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=ROOT, env=os.environ | at_once, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    if "clear_refs" in done.stderr:
        pytest.skip("the peak of a process cannot be reset here")
    assert done.returncode == 0, done.stderr
    assert 0.8 * probe._BYTES < float(done.stdout) < 1.1 * probe._BYTES


def test_gradients_that_cannot_fit_are_refused_with_the_arithmetic():
    """Every factor, the product, what is there, and what would help; nothing where nobody knows."""
    with pytest.raises(UserError) as refused:
        _check_room(1_000, 2_218_314, 8 * 10**9)
    assert str(refused.value) == (
        "the gradients of a rank's clients take 1,000 clients x 2,218,314 parameters x 16 bytes = 35.5 GB, "
        "8.0 GB are available to it; use more nodes, or do without run.record_theory_every and measured "
        "constants"
    )
    _check_room(1_000, 2_218_314, 36 * 10**9)
    _check_room(1_000, 2_218_314, None)


def test_room_is_asked_for_once(monkeypatch):
    """After the first time the system keeps the memory: a second question would refuse what fits."""
    asked = []
    monkeypatch.setattr(
        probe, "room_for_rank", lambda device, sharing: asked.append((device, sharing)) or 0
    )
    model = SimpleNamespace(values=torch.zeros(3), num_params=3)
    made = probe.Probe(single_rank(), model, None, 5)
    with pytest.raises(UserError, match="5 clients x 3 parameters"):
        made._require_room()
    monkeypatch.setattr(probe, "room_for_rank", lambda device, sharing: asked.append((device, sharing)))
    made._require_room()
    made._require_room()
    assert asked == [(torch.device("cpu"), 1)] * 2
