"""The root of the repository, and config texts that several test files start from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# A small experiment that trains in a second; tests change what they are about.
SMALL = """
[run]
num_rounds = 6
eval_every = 3

[data]
dataset = "synthetic"
num_clients = 7
train_samples = 420
test_samples = 100
shape = [1, 6, 6]
partition = "majority-label"

[model]
name = "logistic"

[participation]
selection = "uniform"
clients_per_round = 3

[algorithm]
local_lr = 0.05
local_steps = 2
batch_size = 8
"""

# Methods that can do with one selection only.
SELECTION_OF = {"fedlaavg": "least-recent", "f3ast": "by-method", "ca-fed": "all"}

# 30 rounds that FEDMPI_TEST_SLEEP slows down, so that a test can stop or kill the run in the middle.
SLOW = (
    SMALL.replace('"logistic"', '"tests.support.user_code:slow_model"')
    .replace("num_rounds = 6", "num_rounds = 30\ncheckpoint_every = 5")
    .replace('"uniform"', '"permutation"')
)

# Six runs of the base config c.toml.
SWEEP = 'base = "c.toml"\nseeds = [1, 2]\n[grid]\n"algorithm.local_lr" = [0.01, 0.05, 0.1]\n'
