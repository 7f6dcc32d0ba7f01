"""The keys of [algorithm] that every experiment has.

Invariant: as in keys.py, whose records they join; keys of one method stand where it is defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmpi.config.options import REQUIRED, option
from fedmpi.config.registry import METHODS

if TYPE_CHECKING:
    from fedmpi.config.keys import Config

LR_SCHEDULES = ("constant", "step", "inverse", "inverse-root")


def _halves(config: Config) -> bool:
    return config.algorithm.lr_schedule == "step"


def _reads_interval(config: Config) -> bool:
    name = config.algorithm.name
    return config.algorithm.amplification != 1 or bool(METHODS.fact(name, "reads_interval"))


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """[algorithm] How clients and server move."""

    name: str = option("fedavg", "method", choices=METHODS, or_function=True)
    local_lr: float = option(REQUIRED, "gamma, local step size", above=0)
    local_steps: int | list[int] = option(
        REQUIRED, "I, local iterations; a list has one number for each client", at_least=1
    )
    local_steps_law: str = option(
        "given",
        "how a list of local_steps is read; uniform: [least, most], drawn for each client in each round",
        choices=("given", "uniform"),
        has_effect=lambda config: isinstance(config.algorithm.local_steps, list),
    )
    engine: str = option(
        "auto", "one client after another, or many as one computation", choices=("auto", "loop", "batched")
    )
    batch_size: int = option(
        16,
        "minibatch; 0 = the client's full data",
        at_least=0,
        has_effect=lambda config: (
            config.warmup is not None or not METHODS.fact(config.algorithm.name, "ignores_batch_size")
        ),
    )
    amplification: float = option(1.0, "eta; 1 = off, below 1 damps", above=0)
    amplify_every: int = option(
        1,
        "P, rounds between amplifications",
        at_least=1,
        has_effect=_reads_interval,
    )
    amplify_law: str = option(
        "fixed",
        "observed: amplify_every at first, then P from how long clients take to come back",
        choices=("fixed", "observed"),
        has_effect=_reads_interval,
    )
    lr_schedule: str = option("constant", "gamma over rounds after the warm-up", choices=LR_SCHEDULES)
    lr_halve_every: int | None = option(
        None,
        "step: rounds after which gamma is halved",
        at_least=1,
        has_effect=_halves,
    )
    lr_halve_from: int | None = option(
        None, "step: round of the first halving; default: lr_halve_every", at_least=0, has_effect=_halves
    )
    lr_halve_times: int | None = option(
        None, "step: most halvings; default: no limit", at_least=0, has_effect=_halves
    )
    lr_root_rounds: float = option(
        10.0,
        "inverse-root: k, gamma / sqrt(t / k + 1); FedAWE has 10",
        above=0,
        has_effect=lambda config: config.algorithm.lr_schedule == "inverse-root",
    )
    clip_norm: float | None = option(None, "gradients longer than this are cut to it", above=0)
    server_lr: float | None = option(
        None, "scales what a round adds to x; default: 1, fedadam and fedyogi 0.1", above=0
    )
    server_momentum: float | None = option(
        None, "beta of x's momentum; default: 0, fedavgm 0.9", at_least=0, at_most=1
    )

    @property
    def mean_local_steps(self) -> float:
        """I, or the mean over clients or draws."""
        steps = self.local_steps
        return steps if isinstance(steps, int) else sum(steps) / len(steps)

    def halvings(self, since: int) -> int:
        """Of gamma, with lr_schedule = "step", this many rounds after the warm-up."""
        first = self.lr_halve_every if self.lr_halve_from is None else self.lr_halve_from
        times = max(0, (since - first) // self.lr_halve_every + 1)
        return times if self.lr_halve_times is None else min(times, self.lr_halve_times)
