"""What the golden files pin: every shipped protocol and every method, each made small enough for seconds.

A case is a valid config. Small versions keep what a protocol is about (partition, participation, method,
warm-up, amplification, its own rates) and shrink what only costs time (samples, clients, rounds, model).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedmpi.config import AVAILABILITIES, METHODS, Config, validate
from fedmpi.config.starting import starting_config
from fedmpi.experiments.reproduce import RECIPES, path_of
from fedmpi.experiments.sweep.points import load_sweep
from tests.support.configs import SELECTION_OF

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 20


@dataclass(frozen=True)
class Case:
    """One golden file: a config, and the engines and precisions that it is run with."""

    name: str  # path below tests/golden, without .txt
    source: str  # for people
    config: Config
    variants: tuple[tuple[str, str], ...] = (("batched", "float64"),)  # engine, dtype


def cases() -> list[Case]:
    """All of them, by name."""
    found = [*_protocols(), *_recipes(), *_methods(), *_models(), *_tasks()]
    found += [*_participations(), *_deliveries()]
    return sorted(found, key=lambda case: case.name)


def _protocols() -> Iterator[Case]:
    """Every example config, but for sweeps."""
    for path in sorted((ROOT / "configs").glob("*.toml")):
        if not path.stem.endswith("-sweep"):
            yield Case(f"protocols/{path.stem}", f"configs/{path.name}", small(validate.load(path)))


def _recipes() -> Iterator[Case]:
    """Every method of every sweep of `fedmpi reproduce`, at its first setting and seed."""
    for recipe in RECIPES:
        first = {point.method: point for point in reversed(load_sweep(path_of(recipe)))}
        for method, point in first.items():
            source = f"reproduce {recipe}, {method}"
            yield Case(f"recipes/{recipe}-{method}", source, small(point.config))


def small(config: Config) -> Config:
    """20 rounds of a protocol in a fraction of a second."""
    data, who, algorithm, warmup = config.data, config.participation, config.algorithm, config.warmup
    settings = {
        "run.num_rounds": ROUNDS, "run.eval_every": 4, "run.checkpoint_every": 0,
        "run.record_params_every": 0, "run.record_theory_every": 0, "run.name": "golden",
    }  # fmt: skip
    if data.dataset != "quadratic":
        # Crop and flip, which CIFAR-10 has, work on images of any size.
        settings |= {
            "data.dataset": "synthetic", "data.train_samples": 500, "data.test_samples": 100,
            "data.num_clients": 20, "data.shape": [2, 4, 4], "data.noise_std": 0.25,
            "data.allow_empty": True,
        }  # fmt: skip
        settings |= {"model.name": "logistic"} if config.model.name == "logistic" else {
            "model.name": "mlp", "model.hidden": [6],
        }  # fmt: skip
        settings["algorithm.local_steps"] = min(algorithm.local_steps, 5)
        settings["algorithm.batch_size"] = min(algorithm.batch_size, 5)
    if who.rounds_per_group:
        settings["participation.rounds_per_group"] = 2
    if who.cycle_rounds:
        settings["participation.cycle_rounds"] = 10
    if who.clients_per_round and data.dataset != "quadratic":
        settings["participation.clients_per_round"] = 3
    if algorithm.amplify_every > 1:
        # One cycle of five groups is 10 rounds here; shorter and longer intervals stay so.
        cycle = (who.num_groups or 1) * (who.rounds_per_group or 100)
        settings["algorithm.amplify_every"] = max(2, min(round(10 * algorithm.amplify_every / cycle), 16))
    if algorithm.lr_halve_every:
        settings["algorithm.lr_halve_every"] = 6
    if algorithm.cutoff:
        settings["algorithm.cutoff"] = 4
    if warmup:
        settings["warmup.num_rounds"] = 4
    return changed(config, settings)


def changed(config: Config, settings: dict[str, object]) -> Config:
    """A config with some keys set, checked again."""
    from fedmpi.config.toml import toml_value

    overrides = [f"{key}={toml_value(value)}" for key, value in settings.items()]
    return validate.parse(config.to_toml(), "golden.toml", overrides)


_ALL_VARIANTS = tuple((engine, dtype) for engine in ("loop", "batched") for dtype in ("float32", "float64"))

_CLASSIFIER = """
[run]
num_rounds = 20
eval_every = 4
[data]
dataset = "synthetic"
num_clients = 12
train_samples = 480
test_samples = 96
shape = [1, 4, 4]
partition = "dirichlet"
alpha = 0.5
allow_empty = true
[model]
name = "mlp"
hidden = [6]
[participation]
availability = "markov"
to_active = 0.5
to_inactive = 0.3
selection = "{selection}"
clients_per_round = 4
[algorithm]
name = "{method}"
local_lr = 0.05
local_steps = {steps}
batch_size = 8
amplification = 1.5
amplify_every = 5
{options}
[warmup]
num_rounds = 3
local_lr = 0.1
"""

# Elementwise arithmetic only: its bits are the same on every CPU.
_QUADRATIC = """
[run]
num_rounds = 20
eval_every = 4
dtype = "float64"
[data]
dataset = "quadratic"
centers = [[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25], [2.0, 2.0], [-3.0, -1.0]]
noise_std = 0.1
[model]
name = "quadratic"
initial = [0.3, -0.7]
[participation]
availability = "bernoulli"
probability = [0.9, 0.6, 0.5, 0.7, 0.4]
selection = "{selection}"
clients_per_round = 3
[algorithm]
name = "{method}"
local_lr = 0.05
local_steps = {steps}
amplification = 1.5
amplify_every = 5
{options}
[warmup]
num_rounds = 3
local_lr = 0.1
"""

_QUADRATIC_OF_MANY = """
[run]
num_rounds = 20
eval_every = 4
dtype = "float64"
[data]
dataset = "quadratic"
centers = [[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25], [2.0, 2.0], [-3.0, -1.0], [0.0, 1.0], [1.5, 1.5],
           [-0.5, -2.5], [2.5, 0.5], [-1.0, 2.0], [0.25, -0.75], [3.0, -3.0]]
[model]
name = "quadratic"
[algorithm]
local_lr = 0.05
local_steps = 3
amplification = 1.5
amplify_every = 5
"""

_OPTIONS = {
    "wait-minibatch": "wait_rounds = 4",
    "wait-full": "wait_rounds = 4",
    "fedau": "cutoff = 3",
    "fedprox": "mu = 0.3",
    "fedavg": "clip_norm = 0.5",
    "fednova": 'local_steps_law = "uniform"',
    "f3ast": "rate_step = 0.1",
}
_STEPS = {"fednova": "[1, 5]"}


def _methods() -> Iterator[Case]:
    """Every method on a classifier, by both engines in both precisions; and on a quadratic problem."""
    for method in METHODS:
        selection = SELECTION_OF.get(method, "permutation")
        words = {
            "method": method, "selection": selection, "options": _OPTIONS.get(method, ""),
            "steps": _STEPS.get(method, "3"),
        }  # fmt: skip
        classifier = validate.parse(_CLASSIFIER.format(**words), "golden.toml")
        yield Case(f"methods/{method}", f"{method} on a small classifier", classifier, _ALL_VARIANTS)
        quadratic = validate.parse(_QUADRATIC.format(**words), "golden.toml")
        variants = (("loop", "float64"),)
        yield Case(f"methods/{method}-quadratic", f"{method} on a quadratic problem", quadratic, variants)
    words = {"method": "scaffold", "selection": "permutation", "steps": "3"}
    observed = _CLASSIFIER.format(options='amplify_law = "observed"', **words)
    source = "scaffold, amplified after intervals that are observed"
    yield Case("methods/observed-interval", source, validate.parse(observed, "golden.toml"))


_COMPOSITION = "sinusoidal,markov,outages"


def _participations() -> Iterator[Case]:
    """Every availability with the values that `fedmpi new` gives it, and three at once."""
    for name in [*AVAILABILITIES, _COMPOSITION]:
        if name != "trace":  # a file of one's own
            who = validate.parse(starting_config("fedavg", name), "golden.toml").participation
            config = validate.parse(_QUADRATIC_OF_MANY, "golden.toml")
            variants = (("loop", "float64"),)
            yield Case(
                f"participation/{name.replace(',', '-')}", f"{name} on a quadratic problem",
                replace(config, participation=replace(who, clients_per_round=3)), variants,
            )  # fmt: skip


def _deliveries() -> Iterator[Case]:
    """Updates that are lost, and that are late."""
    laws = {"lost": "dropout = 0.3", "late": "late_probability = 0.5\nlate_rounds = [1, 3]"}
    for name, law in laws.items():
        who = f'\n[participation]\nselection = "permutation"\nclients_per_round = 5\n{law}\n'
        config = validate.parse(_QUADRATIC_OF_MANY + who, "golden.toml")
        variants = (("loop", "float64"), ("batched", "float32"))
        source = f"updates that are {name} on a quadratic problem"
        yield Case(f"participation/{name}", source, config, variants)


def _models() -> Iterator[Case]:
    """The convolutional models, by both engines, for few rounds of two clients."""
    shapes = {"cnn-fashion": [1, 28, 28]} | dict.fromkeys(
        ("cnn-cifar", "cnn-small", "cnn-fedau"), (3, 32, 32)
    )
    for model, shape in shapes.items():
        settings = {
            "model.name": model, "data.shape": list(shape), "data.num_clients": 6,
            "data.train_samples": 120, "data.test_samples": 24, "data.partition": "iid",
            "run.num_rounds": 4, "run.eval_every": 2,
            "participation.clients_per_round": 2, "algorithm.local_steps": 2,
            "algorithm.amplify_every": 2, "warmup.num_rounds": 1,
        }  # fmt: skip
        words = {"method": "fedavg", "selection": "uniform", "options": "", "steps": "3"}
        config = validate.parse(_CLASSIFIER.format(**words), "golden.toml")
        variants = (("loop", "float32"), ("batched", "float32"))
        yield Case(f"models/{model}", f"fedavg with {model}", changed(config, settings), variants)


_TASK = """
[run]
num_rounds = 6
eval_every = 2
[data]
dataset = "{data}"
num_clients = 6
partition = "iid"
train_samples = 60
test_samples = 24
{own}
[model]
name = "{model}"
{options}
[participation]
selection = "uniform"
clients_per_round = 2
[task]
name = "{task}"
[algorithm]
local_lr = 0.1
local_steps = 2
batch_size = 4
amplification = 1.5
amplify_every = 2
"""


def _tasks() -> Iterator[Case]:
    """Sequence models on a small text by both engines, and a deep one on few images."""
    text = {"data": "synthetic-text", "own": "sequence_length = 6", "task": "next-character"}
    sizes = {"char-lstm": "width = 8\nembedding_size = 4", "transformer": "width = 8\nnum_heads = 2"}
    for model, options in sizes.items():
        config = validate.parse(_TASK.format(**text, model=model, options=options), "golden.toml")
        variants = (("loop", "float32"), ("batched", "float64"))
        yield Case(f"tasks/next-character-{model}", f"{model} on a small text", config, variants)
    images = {"data": "synthetic", "own": "shape = [1, 16, 16]", "task": "classification"}
    config = validate.parse(_TASK.format(**images, model="resnet18-gn", options=""), "golden.toml")
    few = changed(config, {"run.num_rounds": 2, "data.train_samples": 24, "algorithm.local_lr": 0.01})
    yield Case("tasks/classification-resnet18-gn", "resnet18-gn on few images", few, (("loop", "float32"),))
