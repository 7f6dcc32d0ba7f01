"""One part of each kind, as somebody would add them: all in one file, found everywhere by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config.keys import Config, DataConfig, ParticipationConfig
from fedmpi.config.options import option
from fedmpi.config.registry import Finding
from fedmpi.data.partition import partition
from fedmpi.data.prepared import Dataset
from fedmpi.data.sources import dataset
from fedmpi.methods import Method, method
from fedmpi.models import model
from fedmpi.participation.availability import Availability, availability
from fedmpi.participation.selection import Memoryless, selection
from fedmpi.participation.weighting import weighting
from fedmpi.tasks import Metric, task
from fedmpi.tasks.classification import Classification

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class StripesKeys:
    """Of stripes."""

    stripe_width: int | None = option(None, "stripes: pixels", at_least=1, needed="an integer >= 1")


@dataset("stripes", StripesKeys, has_no_file=True)
def stripes(config: DataConfig) -> Dataset:
    """Numbers that tell their label."""
    labels = np.arange(60) % 3
    inputs = np.repeat(labels[:, None], config.stripe_width, axis=1).astype(np.float32)
    return Dataset("stripes", inputs, labels, inputs[:6], labels[:6], 3)


@dataclass(frozen=True, kw_only=True)
class BlocksKeys:
    """Of blocks."""

    block_size: int = option(5, "blocks: samples dealt at a time", at_least=1)


@partition("blocks", BlocksKeys)
def blocks(
    labels: np.ndarray, num_classes: int, num_clients: int, config: DataConfig, seed: int
) -> np.ndarray:
    """Samples in blocks, one client after another."""
    return np.arange(len(labels)) // config.block_size % num_clients


@dataclass(frozen=True, kw_only=True)
class ScaledKeys:
    """Of scaled."""

    scale: float = option(2.0, "scaled: factor of the inputs", above=0)


@model("scaled", ScaledKeys)
def scaled(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A linear layer on scaled inputs."""
    from torch import nn

    layer = nn.Linear(int(np.prod(shape)), num_classes)
    nn.init.constant_(layer.weight, config.model.scale)
    return nn.Sequential(nn.Flatten(), layer)


@dataclass(frozen=True, kw_only=True)
class EveryOtherKeys:
    """Of every-other."""

    begin_with: int = option(0, "every-other: 0 for even clients, 1 for odd ones", at_least=0, at_most=1)


def _two_clients(config: Config) -> Iterator[Finding]:
    if config.data.num_clients == 1:
        yield "participation.availability", '"every-other" needs two clients, there is 1'


@availability("every-other", EveryOtherKeys, conflicts=_two_clients)
class EveryOther(Availability):
    """Even and odd clients take turns."""

    def __init__(
        self, config: ParticipationConfig, num_clients: int, seed: int, labels: object = None
    ) -> None:
        self._sets = [np.arange(first, num_clients, 2) for first in (0, 1)]
        self._first = config.begin_with

    def available(self, t: int) -> np.ndarray:
        """Those whose turn it is."""
        return self._sets[(t + self._first) % 2]


@selection("first-two")
class FirstTwo(Memoryless):
    """The two lowest ids."""

    def __init__(self, clients_per_round: int | None, num_clients: int, seed: int) -> None:
        pass

    def select(self, t: int, available: np.ndarray, turn: int) -> np.ndarray:
        """Two at most."""
        return available[:2]


@weighting("half")
def half(clients: np.ndarray, num_clients: int, chances: object) -> np.ndarray:
    """1/2 for everybody."""
    return np.full(len(clients), 0.5)


@task("top-two")
class TopTwo(Classification):
    """Right is a label among the two most probable."""

    metrics = (Metric(name="top_two", higher_is_better=True),)

    def statistics(self, outputs: object, labels: object) -> dict:
        """Whether it is among them."""
        return {"top_two": (outputs.topk(2, dim=1).indices == labels[:, None]).any(dim=1)}


@dataclass(frozen=True, kw_only=True)
class LazyKeys:
    """Of lazy."""

    laziness: float = option(0.5, "lazy: share of a step that is left out", at_least=0, at_most=1)


@method("lazy", LazyKeys)
class Lazy(Method):
    """Moves by a part of what the clients found."""

    def direction(self, state: object, current: object) -> tuple[np.ndarray, dict]:
        """Less than FedAvg."""
        return (1 - self.config.algorithm.laziness) * current.sums["weighted_sum"], {}
