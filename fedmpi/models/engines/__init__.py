"""How gradients of local training are computed: client by client, or many clients as one computation.

Invariant: all engines give the same update up to rounding, and each gives a client the same bits
regardless of which clients are computed with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedmpi.models.engines.autograd import Adder, OneByOne
from fedmpi.models.engines.compiled import Compiled, may_compile
from fedmpi.models.engines.dense import Dense
from fedmpi.models.engines.quadratic import ByHand, is_quadratic
from fedmpi.models.engines.vmap import Vectorised
from fedmpi.models.flat import FlatModel


class Gradients(Protocol):
    """Gradients of up to `group_size` clients at once, each at its own parameters."""

    group_size: int
    by_inference: bool  # whether torch's inference mode makes it quicker
    takes_rates: bool  # whether clients of one group may have different scales
    sets_first: bool  # whether adders know `is_first`: to set instead of adding

    def local_params(self, count: int) -> Tensor:
        """(count, num_params): write y of each client here."""

    def adder(self, target: Tensor) -> Adder:
        """A function that adds scale * gradient of the mean loss at `local_params` to `target`, by row.

        It takes inputs (clients, batch, ...), labels (clients, batch) and the scale, a number for all or a
        tensor (clients, 1).
        """

    def memory(self) -> object:
        """What a step works on besides its arguments; a recorded step must keep it."""


@dataclass(frozen=True)
class Engine:
    """The engine chosen for `algorithm.engine`, and why."""

    name: str  # "loop" or "batched"
    reason: str


def choose_engine(wanted: str, model: FlatModel, *, on_cuda: bool, is_random: bool) -> Engine:
    """The engine for a model: `algorithm.engine`, or for "auto" the one that was measured to be faster.

    `is_random`: the model may draw random numbers while it trains, as dropout does; each client
    must then start from its own seed, which needs the loop.
    """
    # The config's choice.
    is_dense = by_hand(model)
    if wanted == "loop":
        return Engine("loop", "as the config says")
    if wanted == "batched":
        return Engine("batched", "as the config says")

    # "auto": what was measured to be faster.
    if is_dense:
        return Engine("batched", "dense layers: stacked matrix products without autograd")
    if is_random:
        return Engine("loop", "the model may draw random numbers")
    if on_cuda:
        return Engine("loop", "recorded steps, several clients side by side, without grouped convolutions")
    return Engine("loop", "vmap is slower on a CPU core")


def make_gradients(engine: Engine, model: FlatModel) -> Gradients:
    """The computation behind an engine. "batched" is by hand for dense layers, by vmap for all others."""
    if is_quadratic(model):
        return ByHand(model)
    if engine.name == "loop":
        return OneByOne(model)
    if not by_hand(model):
        return Vectorised(model)
    return (Compiled if may_compile(model) else Dense)(model, model.dense_layers)


def by_hand(model: FlatModel) -> bool:
    """Whether there are gradients without autograd: of dense layers, for tasks that know their slope."""
    return model.dense_layers is not None and model.task.slope is not None
