"""The other side of the comparison: a plain per-client PyTorch loop, like the code of papers.

One model; each client loads the server's state dict, stacks its samples, and steps an optimizer; the server
averages state dicts. NCHW, one process, as many threads as fedmpi has ranks. Run as a program, it reads a
description of the job, then takes commands as lines on standard input: "train ROUNDS" or "evaluate", and
answers with seconds. It waits between commands, so that each side has the machine to itself.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def make_model(name: str) -> nn.Module:
    """The models of the comparison, written out."""
    if name == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    channels, second, dense = (1, 32, (1568, 128)) if name == "cnn-fashion" else (3, 64, (4096, 512, 128))
    layers = [
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    ]  # fmt: skip
    for width, next_width in itertools.pairwise(dense):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(dense[-1], 10))


class PlainLoop:
    """Federated averaging without anything that makes fedmpi fast."""

    def __init__(self, job: dict) -> None:
        torch.manual_seed(1)
        data = np.load(job["data"])
        self.images = torch.from_numpy(data["images"]).float().div_(255).sub_(0.2860).div_(0.3530)
        self.labels = torch.from_numpy(data["labels"])
        self.model = make_model(job["model"])
        self.server = copy.deepcopy(self.model.state_dict())
        self.clients = np.array_split(np.random.default_rng(1).permutation(len(self.labels)), 250)
        self.numbers = np.random.default_rng(2)
        self.local_steps, self.local_lr = job["local_steps"], job["local_lr"]

    def train(self, rounds: int) -> float:
        """Seconds for `rounds` rounds of 10 clients."""
        begin = time.perf_counter()
        for _ in range(rounds):
            states = [self._train_client(n) for n in self.numbers.choice(250, 10, replace=False)]
            self.server = {k: sum(state[k] for state in states) / 10 for k in self.server}
        return time.perf_counter() - begin

    def _train_client(self, client: int) -> dict[str, Tensor]:
        self.model.load_state_dict(self.server)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.local_lr)
        order = self.numbers.permutation(self.clients[client])
        for step in range(self.local_steps):
            rows = np.take(order, range(16 * step, 16 * (step + 1)), mode="wrap")
            images = torch.stack([self.images[i] for i in rows])
            labels = torch.stack([self.labels[i] for i in rows])
            loss = nn.functional.cross_entropy(self.model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return copy.deepcopy(self.model.state_dict())

    @torch.no_grad()
    def evaluate(self) -> float:
        """Seconds for loss and accuracy of all samples."""
        begin = time.perf_counter()
        self.model.load_state_dict(self.server)
        self.model.eval()
        loss = correct = 0.0
        for images, labels in zip(self.images.split(256), self.labels.split(256), strict=True):
            outputs = self.model(images)
            loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
        return time.perf_counter() - begin


def main() -> None:
    """Take commands until the input ends."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    loop = PlainLoop(job)
    loop.train(1)
    print("ready", flush=True)
    for line in sys.stdin:
        order, *rounds = line.split()
        print(loop.train(int(rounds[0])) if order == "train" else loop.evaluate(), flush=True)


if __name__ == "__main__":
    main()
