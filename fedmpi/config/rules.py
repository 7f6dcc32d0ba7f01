"""What must hold between config keys: combinations that cannot work, and keys that have no effect.

Invariant: each finding names one key and says what it clashes with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from fedmpi.config import SECTIONS, Config
from fedmpi.config.participation_rules import BY_PROBABILITY, participation_conflicts


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Combinations that cannot work, as (key, problem)."""
    run, data, model = config.run, config.data, config.model
    warmup = config.warmup
    if warmup and warmup.num_rounds > run.num_rounds:
        yield (
            "warmup.num_rounds",
            (f"{warmup.num_rounds} rounds of warm-up exceed run.num_rounds = {run.num_rounds}"),
        )

    # Data and model.
    if (data.dataset == "quadratic") != (model.name == "quadratic"):
        yield (
            "model.name",
            (
                f'"{model.name}" does not fit data.dataset = "{data.dataset}"; '
                'data and model are both "quadratic" or neither is'
            ),
        )
    if data.dataset == "quadratic":
        yield from _quadratic_conflicts(config)
    elif data.num_clients is None and data.partition != "natural":
        yield "data.num_clients", "missing; N, the number of clients; expected an integer >= 1"
    if data.partition == "natural" and data.dataset in (
        "fashion-mnist",
        "cifar-10",
        "fashion-mini",
        "synthetic",
    ):
        yield (
            "data.partition",
            (
                f'"natural" needs a client column, which "{data.dataset}" has not; '
                "use a prepared .h5 file with one, or another partition"
            ),
        )
    if (
        data.dataset == "synthetic"
        and data.partition == "classes-per-client"
        and (data.classes_per_client > data.num_classes)
    ):
        yield (
            "data.classes_per_client",
            (f"{data.classes_per_client} exceeds data.num_classes = {data.num_classes}"),
        )
    if run.cuda_aware and run.device == "cpu":
        yield "run.cuda_aware", 'true needs run.device = "auto" or "cuda", it is "cpu"'

    yield from participation_conflicts(config)
    yield from _method_conflicts(config)


def _method_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    options, who = config.algorithm, config.participation
    if options.name.startswith("wait-") and config.wait_rounds is None:
        yield (
            "algorithm.wait_rounds",
            f'missing; "{options.name}" needs the rounds of a cycle; expected an integer >= 1, '
            'or participation.availability = "periodic"',
        )
    if options.name == "fedlaavg" and who.selection != "least-recent":
        yield (
            "participation.selection",
            f'"{who.selection}": algorithm.name = "fedlaavg" takes the clients absent for longest; '
            'expected "least-recent"',
        )
    if options.lr_schedule == "step" and options.lr_halve_every is None:
        yield (
            "algorithm.lr_halve_every",
            'missing; lr_schedule = "step" needs it; expected an integer >= 1',
        )


def _quadratic_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    data, model = config.data, config.model
    if data.centers is None:
        yield "data.centers", "missing; quadratic data needs one list of numbers per client"
        return
    lengths = sorted({len(center) for center in data.centers})
    if len(lengths) > 1:
        yield "data.centers", f"centers have different lengths {lengths}; expected all the same"
    if data.num_clients != len(data.centers):
        yield (
            "data.num_clients",
            f"{data.num_clients} clients, but data.centers has {len(data.centers)}",
        )
    if model.initial is not None and len(model.initial) != lengths[0]:
        yield "model.initial", f"{len(model.initial)} numbers, but centers have {lengths[0]}"


def unused_keys(config: Config) -> list[str]:
    """Keys set away from their default that this combination does not read, one sentence each."""
    data, who = config.data, config.participation
    method = config.algorithm.name
    amplifies = config.algorithm.amplification != 1
    needs = [
        ("data", "similarity", data.partition == "majority-label"),
        ("data", "alpha", data.partition == "dirichlet"),
        ("data", "classes_per_client", data.partition == "classes-per-client"),
        ("data", "partition", data.dataset != "quadratic"),
        ("data", "centers", data.dataset == "quadratic"),
        *(
            ("data", key, data.dataset == "synthetic")
            for key in ("train_samples", "test_samples", "num_classes", "shape")
        ),
        ("data", "stage", data.dataset not in ("fashion-mini", "synthetic", "quadratic")),
        ("model", "hidden", config.model.name == "mlp"),
        ("model", "initial", config.model.name == "quadratic"),
        ("model", "options", ":" in config.model.name),
        *(
            ("participation", key, who.availability == "periodic")
            for key in ("num_groups", "rounds_per_group", "random_offset")
        ),
        *(
            ("participation", key, who.availability in BY_PROBABILITY)
            for key in ("probability", "probability_from")
        ),
        *(
            ("participation", key, who.availability in BY_PROBABILITY and who.probability_from == "labels")
            for key in ("mean_probability", "min_probability", "label_concentration")
        ),
        *(("participation", key, who.availability == "markov") for key in ("to_active", "to_inactive")),
        *(
            ("participation", key, who.availability == "sinusoidal")
            for key in ("rounds_per_day", "amplitude", "phase_spread")
        ),
        ("participation", "trace", who.availability == "trace"),
        ("participation", "trace_period", who.availability == "trace"),
        ("participation", "clients_per_round", who.selection in ("uniform", "permutation", "least-recent")),
        ("participation", "schedule", who.selection == "schedule"),
        ("participation", "weighting", who.selection != "schedule"),
        ("algorithm", "amplify_every", amplifies or method == "amplified-scaffold"),
        ("algorithm", "lr_halve_every", config.algorithm.lr_schedule == "step"),
        ("algorithm", "wait_rounds", method.startswith("wait-")),
        ("algorithm", "warm_start", method == "mifa"),
        ("algorithm", "cutoff", method == "fedau"),
        ("algorithm", "mu", method == "fedprox"),
        *(("algorithm", key, method in ("fedadam", "fedyogi")) for key in ("beta1", "beta2", "tau")),
    ]
    notes = []
    for section, key, used in needs:
        if section == "algorithm" and ":" in method:
            continue  # a user's own method may read any key
        default = next(f for f in fields(SECTIONS[section]) if f.name == key)
        unset = default.default_factory() if callable(default.default_factory) else default.default
        if not used and getattr(getattr(config, section), key) != unset:
            notes.append(f"{section}.{key} has no effect with the other settings")
    return notes
