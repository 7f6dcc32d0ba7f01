"""The experiment as typed, documented records: every key, its default, its meaning, what it accepts.

Invariant: a `Config` that exists is valid and complete. `load` refuses anything else and reports all
problems at once; the resolved text (`to_toml`) is stored with the results and gives the same Config.
Reading and checking text is the work of validate.py; here stands what is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from fedmpi.config.toml import toml_value

# Names of built-in parts. Each list has its registry elsewhere; a test keeps the two the same.
DATASETS = ("fashion-mnist", "cifar-10", "fashion-mini", "synthetic", "quadratic")
PARTITIONS = ("iid", "majority-label", "dirichlet", "classes-per-client", "natural")
MODELS = ("cnn-fashion", "cnn-cifar", "cnn-small", "logistic", "mlp", "quadratic")
AVAILABILITIES = ("always", "periodic", "bernoulli", "markov", "sinusoidal", "trace")
SELECTIONS = ("all", "uniform", "permutation", "least-recent", "schedule")
WEIGHTINGS = ("equal", "all", "inverse-probability")
METHODS = (
    "fedavg", "wait-minibatch", "wait-full", "mifa", "fedlaavg", "fedau", "fedvarp", "scaffold",
    "amplified-scaffold", "fedprox", "fedadam", "fedyogi", "fedavgm", "focus",
)  # fmt: skip
LR_SCHEDULES = ("constant", "step", "inverse")

REQUIRED = object()


def option(
    default: Any,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    or_function: bool = False,
    or_file: bool = False,
) -> Any:
    """One config key: default (`REQUIRED`, or None for optional), what it means, what it accepts."""
    rule = {
        "doc": doc,
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "choices": choices,
        "or_function": or_function,
        "or_file": or_file,
        "required": default is REQUIRED,
    }
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=rule)
    return field(default=None if default is REQUIRED else default, metadata=rule)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """[run] How long, how often, on what."""

    name: str = option("", "name of the run; default: the config file's name")
    seed: int = option(1, "drives everything random", at_least=0, at_most=2**63 - 1)
    num_rounds: int = option(REQUIRED, "T, rounds in all, warm-up included", at_least=1)
    eval_every: int = option(50, "rounds between evaluations; 0 = only at the end", at_least=0)
    eval_train_every: int | None = option(
        None, "as eval_every, for the training set; default: eval_every", at_least=0
    )
    eval_train_samples: int | None = option(
        None, "evaluate training loss on a fixed stratified subset; default: all samples", at_least=1
    )
    checkpoint_every: int = option(
        0, "rounds between checkpoints; 0 = by time, on a signal and at the end only", at_least=0
    )
    checkpoint_minutes: float = option(10.0, "minutes between checkpoints; 0 = by rounds only", at_least=0)
    max_minutes: float | None = option(None, "stop with a checkpoint before this time is up", above=0)
    record_params_every: int = option(0, "rounds between stored x_t; 0 = never", at_least=0)
    record_theory_every: int = option(
        0, "rounds between records of |grad f|^2 and divergences, each a pass over the data", at_least=0
    )
    eval_at_amplification: bool = option(False, "evaluate just before and just after each amplification")
    tensorboard: bool = option(False, "TensorBoard events in a folder RUN.tb beside RUN.h5")
    device: str = option("auto", "where clients train", choices=("auto", "cpu", "cuda"))
    threads: int = option(
        1,
        "CPU threads of a rank; one rank a core is faster, and another number gives other bits",
        at_least=1,
    )
    cuda_aware: bool = option(False, "hand GPU buffers to MPI as they are")
    dtype: str = option("float32", "precision of local training", choices=("float32", "float64"))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """[data] Which samples, and who owns them."""

    dataset: str = option(REQUIRED, "data set", choices=DATASETS, or_file=True)
    root: str = option("data", "folder of downloaded or prepared data")
    stage: str | None = option(
        None, 'folder on each node for a copy of the prepared file, such as "$TMPDIR"; default: none'
    )
    num_clients: int | None = option(None, "N; quadratic and natural know it", at_least=1)
    partition: str = option("iid", "how samples are dealt to clients", choices=PARTITIONS)
    similarity: float = option(
        0.05, "majority-label: share of samples dealt at random", at_least=0, at_most=1
    )
    alpha: float = option(0.1, "dirichlet: concentration", above=0)
    classes_per_client: int = option(2, "classes-per-client: labels a client holds", at_least=1)
    allow_empty: bool = option(False, "accept clients without samples")
    augment: bool | None = option(None, "random crop and flip; default: true for cifar-10")
    # synthetic
    train_samples: int = option(6000, "synthetic: training samples", at_least=1)
    test_samples: int = option(1000, "synthetic: test samples", at_least=0)
    num_classes: int = option(10, "synthetic: labels", at_least=2, at_most=1000)
    shape: list[int] = option([1, 28, 28], "synthetic: shape of a sample", at_least=1)
    noise_std: float | None = option(
        None,
        "noise around a class prototype (synthetic, default 0.25), or in each gradient "
        "coordinate (quadratic, default 0)",
        at_least=0,
    )
    # quadratic
    centers: list[list[float]] | None = option(None, "quadratic: one z_n per client")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """[model] What is trained."""

    name: str = option(REQUIRED, "model", choices=MODELS, or_function=True)
    hidden: list[int] = option([200], "mlp: widths of the hidden layers", at_least=1)
    initial: list[float] | None = option(None, "quadratic: x_0; default: zeros")
    options: dict = option({}, "keyword arguments for a model function of your own")


@dataclass(frozen=True, kw_only=True)
class ParticipationConfig:
    """[participation] Who takes part in a round, and with what weight q."""

    availability: str = option("always", "who could take part", choices=AVAILABILITIES, or_function=True)
    num_groups: int | None = option(None, "periodic: groups that take turns", at_least=1)
    rounds_per_group: int | None = option(None, "periodic: rounds of a turn", at_least=1)
    random_offset: bool = option(False, "periodic: shorten the first turn at random")
    probability: float | list[float] | None = option(
        None,
        "chance that a client is there, one number or one per client: bernoulli; periodic, in its turn "
        "(default 1); sinusoidal, mean of the day; markov, in the long run",
        at_least=0,
        at_most=1,
    )
    probability_from: str | None = option(
        None, "draw each client's probability from its labels, as FedAU does", choices=("labels",)
    )
    mean_probability: float = option(0.1, "labels: mean over an even mix of labels", above=0, at_most=1)
    min_probability: float = option(0.02, "labels: lower limit of a probability", above=0, at_most=1)
    label_concentration: float = option(
        0.1, "labels: Dirichlet parameter of what labels contribute; small = uneven", above=0
    )
    to_active: float | list[float] | None = option(
        None,
        "markov: chance that an absent client comes back in a round; with probability the highest one",
        at_least=0,
        at_most=1,
    )
    to_inactive: float | list[float] | None = option(
        None, "markov: chance that a present client leaves in a round", at_least=0, at_most=1
    )
    rounds_per_day: float | None = option(None, "sinusoidal: rounds of a day", above=0)
    amplitude: float | None = option(
        None, "sinusoidal: how far the probability swings around its mean", at_least=0, at_most=1
    )
    phase_spread: float = option(
        1.0, "sinusoidal: share of the day over which clients' peaks are strewn", at_least=0, at_most=1
    )
    trace: str | None = option(None, "trace: file of client, start, end (.csv or .h5)")
    trace_period: int | None = option(
        None, "trace: rounds after which it repeats; default: never", at_least=1
    )
    selection: str = option("all", "who is taken of the available", choices=SELECTIONS)
    clients_per_round: int | None = option(None, "S, for uniform, permutation and least-recent", at_least=1)
    weighting: str = option("equal", "q: 1/participants, 1/N, or 1/(N * probability)", choices=WEIGHTINGS)
    schedule: str | None = option(None, "schedule: file of round, client, weight (.csv or .h5)")


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """[algorithm] How clients and server move."""

    name: str = option("fedavg", "method", choices=METHODS, or_function=True)
    local_lr: float = option(REQUIRED, "gamma, local step size", above=0)
    local_steps: int = option(REQUIRED, "I, local iterations", at_least=1)
    engine: str = option(
        "auto", "one client after another, or many as one computation", choices=("auto", "loop", "batched")
    )
    batch_size: int = option(16, "minibatch; 0 = the client's full data", at_least=0)
    amplification: float = option(1.0, "eta; 1 = off, below 1 damps", above=0)
    amplify_every: int = option(1, "P, rounds between amplifications", at_least=1)
    lr_schedule: str = option("constant", "gamma over rounds after the warm-up", choices=LR_SCHEDULES)
    lr_halve_every: int | None = option(None, "step: rounds after which gamma is halved", at_least=1)
    clip_norm: float | None = option(None, "gradients longer than this are cut to it", above=0)
    server_lr: float | None = option(
        None, "scales what a round adds to x; default: 1, fedadam and fedyogi 0.1", above=0
    )
    server_momentum: float | None = option(
        None, "beta of x's momentum; default: 0, fedavgm 0.9", at_least=0, at_most=1
    )
    wait_rounds: int | None = option(
        None, "wait-*: rounds of a cycle; default: that of periodic availability", at_least=1
    )
    warm_start: bool = option(True, "mifa: x waits until every client was seen once")
    cutoff: int | None = option(None, "fedau: K, longest interval recorded; default: none", at_least=1)
    mu: float = option(0.01, "fedprox: pull towards x", at_least=0)
    beta1: float = option(0.9, "fedadam, fedyogi: of the first moment", at_least=0, at_most=1)
    beta2: float = option(0.99, "fedadam, fedyogi: of the second moment", at_least=0, at_most=1)
    tau: float = option(1e-3, "fedadam, fedyogi: added to the root", above=0)


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
    warmup: WarmupConfig | None = None

    @property
    def warmup_rounds(self) -> int:
        """Rounds of warm-up, 0 without one."""
        return self.warmup.num_rounds if self.warmup else 0

    @property
    def wait_rounds(self) -> int | None:
        """Rounds of a cycle, for wait-*: given, or those of periodic availability."""
        who = self.participation
        if self.algorithm.wait_rounds is None and who.availability == "periodic":
            return (
                who.num_groups * who.rounds_per_group if who.num_groups and who.rounds_per_group else None
            )
        return self.algorithm.wait_rounds

    def local_lr(self, t: int) -> float:
        """gamma of round t."""
        if self.warmup and t < self.warmup.num_rounds:
            return self.warmup.local_lr
        since, options = t - self.warmup_rounds, self.algorithm
        if options.lr_schedule == "step":
            return options.local_lr * 0.5 ** (since // options.lr_halve_every)
        if options.lr_schedule == "inverse":
            return options.local_lr / (since + 1)
        return options.local_lr

    def amplification(self, t: int) -> float:
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


SECTIONS = {
    "run": RunConfig,
    "data": DataConfig,
    "model": ModelConfig,
    "participation": ParticipationConfig,
    "algorithm": AlgorithmConfig,
    "warmup": WarmupConfig,
}

# What may change when a run goes on; anything else would make the results dishonest.
MAY_CHANGE = (
    "run.name", "run.num_rounds", "run.eval_every", "run.eval_train_every", "run.checkpoint_every",
    "run.checkpoint_minutes", "run.max_minutes", "run.record_params_every", "run.record_theory_every",
    "run.eval_at_amplification", "run.tensorboard", "run.device", "run.cuda_aware", "data.root",
    "data.stage",
    "participation.schedule", "participation.trace",  # where they lie; their contents are checked
)  # fmt: skip
