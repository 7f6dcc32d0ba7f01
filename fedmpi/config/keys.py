"""The experiment as typed, documented records: the keys that every experiment has.

Keys that only some parts read stand where these parts are defined (registry.py); `sections()` gives the
complete records. Invariant: a `Config` that exists is valid and complete. `validate.load` refuses anything
else and reports all problems at once; the resolved text (`to_toml`) is stored with the results and gives
the same Config.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from fedmpi.config.algorithm_keys import LR_SCHEDULES as LR_SCHEDULES
from fedmpi.config.algorithm_keys import AlgorithmConfig
from fedmpi.config.model_keys import ModelConfig, TaskConfig
from fedmpi.config.options import REQUIRED, option
from fedmpi.config.registry import (
    AVAILABILITIES,
    DATASETS,
    METHODS,
    PARTITIONS,
    REGISTRIES,
    SELECTIONS,
    WEIGHTINGS,
)
from fedmpi.config.toml import toml_value

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """[run] How long, how often, on what."""

    name: str = option("", "name of the run; default: the config file's name", may_change=True)
    seed: int = option(1, "drives everything random", at_least=0, at_most=2**63 - 1)
    num_rounds: int = option(REQUIRED, "T, rounds in all, warm-up included", at_least=1, may_change=True)
    eval_every: int = option(
        50, "rounds between evaluations; 0 = only at the end", at_least=0, may_change=True
    )
    eval_train_every: int | None = option(
        None, "as eval_every, for the training set; default: eval_every", at_least=0, may_change=True
    )
    eval_train_samples: int | None = option(
        None, "evaluate training loss on a fixed stratified subset; default: all samples", at_least=1
    )
    eval_clients_every: int = option(
        0,
        "rounds between evaluations of each client, and of those held out; 0 = never",
        at_least=0,
        may_change=True,
    )
    checkpoint_every: int = option(
        0,
        "rounds between checkpoints; 0 = by time, on a signal and at the end only",
        at_least=0,
        may_change=True,
    )
    checkpoint_minutes: float = option(
        10.0, "minutes between checkpoints; 0 = by rounds only", at_least=0, may_change=True
    )
    max_minutes: float | None = option(
        None, "stop with a checkpoint before this time is up", above=0, may_change=True
    )
    stall_minutes: float = option(
        10.0,
        "without progress on some rank for so long, the job ends with status 75; 0 = never",
        at_least=0,
        at_most=60 * 24 * 30,
        may_change=True,
    )
    record_params_every: int = option(
        0, "rounds between stored x_t; 0 = never", at_least=0, may_change=True
    )
    record_theory_every: int = option(
        0,
        "rounds between records of |grad f|^2 and divergences, each a pass over the data",
        at_least=0,
        may_change=True,
    )
    eval_at_amplification: bool = option(
        False, "evaluate just before and just after each amplification", may_change=True
    )
    tensorboard: bool = option(
        False, "TensorBoard events in a folder RUN.tb beside RUN.h5", may_change=True
    )
    device: str = option("auto", "where clients train", choices=("auto", "cpu", "cuda"), may_change=True)
    threads: int = option(
        1,
        "CPU threads of a rank; one rank a core is faster, and another number gives other bits",
        at_least=1,
    )
    cuda_aware: bool = option(False, "hand GPU buffers to MPI as they are", may_change=True)
    deterministic: bool = option(
        True,
        "GPU: only kernels that give the same bits again; false allows others, and bits may differ",
        has_effect=lambda config: config.run.device != "cpu",
    )
    tf32: bool = option(
        False,
        "GPU: allow TF32, faster matrix products and convolutions with 10 bits of mantissa",
        has_effect=lambda config: config.run.device != "cpu",
    )
    dtype: str = option("float32", "precision of local training", choices=("float32", "float64"))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """[data] Which samples, and who owns them."""

    dataset: str = option(REQUIRED, "data set", choices=DATASETS, or_file=True, or_function=True)
    root: str = option("data", "folder of downloaded or prepared data", may_change=True)
    stage: str | None = option(
        None,
        'folder on each node for a copy of the prepared file, such as "$TMPDIR"; default: none',
        has_effect=lambda config: not DATASETS.fact(config.data.dataset, "has_no_file"),
        may_change=True,
    )
    num_clients: int | None = option(None, "N; quadratic and natural know it", at_least=1)
    partition: str = option(
        "iid",
        "how samples are dealt to clients",
        choices=PARTITIONS,
        or_function=True,
        has_effect=lambda config: not DATASETS.fact(config.data.dataset, "names_clients"),
    )
    allow_empty: bool = option(False, "accept clients without samples")
    augment: bool | None = option(None, "random crop and flip; default: true for cifar-10", otherwise=False)


@dataclass(frozen=True, kw_only=True)
class ParticipationConfig:
    """[participation] Who takes part in a round, and with what weight q."""

    availability: str | list[str | dict] = option(
        "always",
        "who could take part; of several, those whom all of them let",
        choices=AVAILABILITIES,
        or_function=True,
        several=True,
    )
    selection: str = option("all", "who is taken of the available", choices=SELECTIONS)
    weighting: str = option(
        "equal",
        "q: 1/participants, 1/N, or 1/(N * probability)",
        choices=WEIGHTINGS,
        has_effect=lambda config: (
            not SELECTIONS.fact(config.participation.selection, "gives_weights") and config.weights_count
        ),
    )


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """[warmup] Plain FedAvg first; the amplification interval restarts when it ends."""

    num_rounds: int = option(REQUIRED, "rounds of warm-up", at_least=1)
    local_lr: float = option(REQUIRED, "gamma of the warm-up", above=0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole experiment."""

    run: RunConfig
    data: DataConfig
    model: ModelConfig
    participation: ParticipationConfig
    algorithm: AlgorithmConfig
    task: TaskConfig = field(default_factory=TaskConfig)
    warmup: WarmupConfig | None = None

    @property
    def warmup_rounds(self) -> int:
        """Rounds of warm-up, 0 without one."""
        return self.warmup.num_rounds if self.warmup else 0

    @property
    def weights_count(self) -> bool:
        """Whether q has an effect: some methods weigh participants themselves, but not in the warm-up."""
        return self.warmup is not None or not METHODS.fact(self.algorithm.name, "ignores_weights")

    def local_lr_at(self, t: int) -> float:
        """gamma of round t."""
        if self.warmup and t < self.warmup.num_rounds:
            return self.warmup.local_lr
        since, options = t - self.warmup_rounds, self.algorithm
        if options.lr_schedule == "step":
            return options.local_lr * 0.5 ** options.halvings(since)
        if options.lr_schedule == "inverse":
            return options.local_lr / (since + 1)
        if options.lr_schedule == "inverse-root":
            return options.local_lr / math.sqrt(since / options.lr_root_rounds + 1)
        return options.local_lr

    def amplification_at(self, t: int) -> float:
        """eta of round t."""
        return 1.0 if t < self.warmup_rounds else self.algorithm.amplification

    def plain(self) -> Config:
        """The same experiment with plain FedAvg, as in the warm-up."""
        options = replace(self.algorithm, name="fedavg", server_lr=None, server_momentum=None)
        return replace(self, algorithm=options)

    def with_engine(self, engine: str) -> Config:
        """The same experiment with `algorithm.engine` decided."""
        return replace(self, algorithm=replace(self.algorithm, engine=engine))

    def to_toml(self) -> str:
        """The resolved config; reading it gives this Config again."""
        lines = []
        for section in fields(self):
            record = getattr(self, section.name)
            if record is None:
                continue
            lines.append(f"[{section.name}]")
            for key in fields(record):
                value = getattr(record, key.name)
                if value is not None:
                    lines.append(f"{key.name} = {toml_value(value)}")
            lines.append("")
        return "\n".join(lines)


_COMMON = {
    "run": RunConfig,
    "data": DataConfig,
    "model": ModelConfig,
    "participation": ParticipationConfig,
    "algorithm": AlgorithmConfig,
    "task": TaskConfig,
    "warmup": WarmupConfig,
}
_complete: dict[tuple[type, ...], type] = {}


def sections() -> dict[str, type]:
    """The record of each section with all its keys: those of every experiment, then those of the parts."""
    return {name: _completed(name, common) for name, common in _COMMON.items()}


def _completed(section: str, common: type) -> type:
    own = tuple(dict.fromkeys(_records_of_parts(section)))
    if not own:
        return common
    if own not in _complete:
        # Fields come in the order of the bases from last to first.
        bases = (*reversed(own), common)
        record = type(common.__name__, bases, {"__doc__": common.__doc__, "__reduce__": _reduce})
        record.section = section
        _complete[own] = dataclass(frozen=True, kw_only=True)(record)
    return _complete[own]


def _records_of_parts(section: str) -> Iterator[type]:
    for registry in REGISTRIES.values():
        if registry.section == section:
            for part in registry.parts():
                yield from part.keys


def _reduce(record: Any) -> tuple:
    """Complete records are made on the fly, so pickles name their section instead of their class."""
    return _rebuild, (record.section, {f.name: getattr(record, f.name) for f in fields(record)})


def _rebuild(section: str, values: dict[str, Any]) -> Any:
    return sections()[section](**values)


def may_change() -> tuple[str, ...]:
    """What may change when a run goes on; anything else would make the results dishonest."""
    return tuple(
        f"{section}.{key.name}"
        for section, record in sections().items()
        for key in fields(record)
        if key.metadata["may_change"]
    )
