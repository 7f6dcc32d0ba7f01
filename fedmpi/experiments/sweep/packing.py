"""Which runs of a sweep go on in lockstep, and how many: those that share a data set and a kind of model.

A pack reads and holds the samples once, trains the clients of all its runs in the same groups, and looks at
every x in one pass over the data. Invariant: each run has the bits that it has alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields

from fedmpi.config import METHODS, PARTITIONS, Config
from fedmpi.config.user_code import import_function
from fedmpi.errors import UserError
from fedmpi.mpi import Comm

AUTO = "auto"
_MOST_ON_CPU, _MOST_ON_GPU = 16, 64  # more clients in a round do not make it quicker
_SHARE_OF_MEMORY = 0.8


def pack_size(text: str) -> int | str:
    """`--pack`: "auto" or a number of runs.

    >>> pack_size("auto"), pack_size("4")
    ('auto', 4)
    """
    if text == AUTO:
        return AUTO
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UserError(f'--pack {text}: expected "auto", 1 for runs by themselves, or a number of runs')
    return int(text)


def pack_key(config: Config) -> Hashable:
    """Equal for runs that may share a pack: what their samples, models and devices depend on."""
    run, data = config.run, config.data
    # How samples are dealt to clients may differ.
    dealing = {"partition", "allow_empty", "num_clients"}.union(
        *(part.key_names for part in PARTITIONS.parts())
    )
    return (
        tuple(
            (key.name, _plain(getattr(data, key.name))) for key in fields(data) if key.name not in dealing
        ),
        tuple((key.name, _plain(getattr(config.model, key.name))) for key in fields(config.model)),
        (config.task.name, _plain(config.task.options)),
        (run.device, run.threads, run.dtype, run.cuda_aware, run.deterministic, run.tf32),
        config.algorithm.engine,
    )


def _plain(value: object) -> Hashable:
    return value if isinstance(value, Hashable) else repr(value)


def why_alone(config: Config, *, on_gpu: bool) -> str:
    """Why a run goes on by itself; empty if it may be packed."""
    name = config.algorithm.name
    if name in METHODS:
        return ""
    method = import_function(name, "algorithm.name")
    if not getattr(method, "in_packs", True):
        return f'algorithm.name = "{name}" has in_packs = False'
    if on_gpu:
        return f'algorithm.name = "{name}" is code of your own, whose vectors do not stay on a GPU'
    return ""


def may_join(config: Config, key: Hashable) -> bool:
    """Whether a run could share a pack of this kind."""
    return pack_key(config) == key and not why_alone(config, on_gpu=uses_gpu(config))


def notes_on_packs(configs: Sequence[Config], *, on_gpu: bool) -> list[str]:
    """A sentence for each reason why some runs go on by themselves."""
    reasons = [why_alone(config, on_gpu=on_gpu) for config in configs]
    return [
        f"{reasons.count(reason)} runs are not packed with others: {reason}"
        for reason in dict.fromkeys(reasons) if reason
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory of the runs of a pack on a rank, in bytes."""

    shared: int  # samples, once for all
    each: int  # of every run: x, u and sums, updates of its clients, tables

    def most(self, room: int | None) -> int:
        """How many runs fit; at least one, which then fails by itself if it must."""
        if room is None:
            return _MOST_ON_GPU
        return max(int((_SHARE_OF_MEMORY * room - self.shared) // max(self.each, 1)), 1)


def footprint(config: Config, num_ranks: int) -> Footprint:
    """What a config would take; loads the data and builds the model to know."""
    from fedmpi.data.sources import load_fitting
    from fedmpi.methods import make_method
    from fedmpi.models import build_model
    from fedmpi.simulation.late import with_late
    from fedmpi.tasks import make_task

    task = make_task(config)
    data = load_fitting(config, task)
    model = build_model(config, data.shape, task.num_outputs(data), data.num_tokens)
    num_params = sum(p.numel() for p in model.parameters())
    num_clients = config.data.num_clients
    if num_clients is None:
        num_clients = 1 + int(data.train_clients.max()) if data.train_clients is not None else 1
    num_train, num_test = len(data.train_labels), len(data.test_labels)
    names = with_late(config, make_method(config, num_clients).tables)
    tables = len(names) * math.ceil(num_clients / num_ranks)
    return footprint_of(
        config,
        num_params=num_params,
        most=config.participation.clients_per_round or num_clients,
        num_rows=tables,
        num_ranks=num_ranks,
        sample_bytes=data.train_inputs[:1].nbytes + data.train_labels[:1].nbytes,
        num_samples=num_train + math.ceil((num_train + num_test) / num_ranks),
    )


def footprint_of(
    config: Config,
    *,
    num_params: int,
    most: int,
    num_rows: int,
    num_ranks: int,
    sample_bytes: int,
    num_samples: int,
) -> Footprint:
    """The arithmetic: `most` participants in a round, `num_rows` of tables and `num_samples` on a rank."""
    from fedmpi.models.flat import together
    from fedmpi.simulation.running_total import rows_held

    width = 8 if config.run.dtype == "float64" else 4
    updates = rows_held(most, num_params, together(16, num_params), num_ranks)
    vectors = num_params * (6 * 8 + (3 + updates) * width)  # x, u, sums and what a method adds; y, start
    return Footprint(shared=num_samples * sample_bytes, each=vectors + num_rows * num_params * width)


def how_many(wanted: int | str, free: int, num_groups: int, fits: int, *, on_gpu: bool) -> int:
    """Runs of a pack: as many as wanted or, with "auto", an even share of those that are free."""
    if wanted != AUTO:
        return min(int(wanted), fits)
    even = math.ceil(free / num_groups)
    return max(min(even, fits, _MOST_ON_GPU if on_gpu else _MOST_ON_CPU), 1)


class Packer:
    """How many runs of a kind a group takes at once; on the root of a group."""

    def __init__(self, wanted: int | str, num_groups: int, group: Comm) -> None:
        self._wanted, self._num_groups, self._group = wanted, num_groups, group
        self._fits: dict[Hashable, int] = {}

    def size(self, config: Config, free: int) -> int:
        """For a pack that begins with this run, of `free` runs that may be in it."""
        on_gpu = uses_gpu(config)
        if self._wanted == 1 or free == 1 or why_alone(config, on_gpu=on_gpu):
            return 1
        key = pack_key(config)
        if key not in self._fits:
            self._fits[key] = self._most(config, on_gpu=on_gpu)
        return how_many(self._wanted, free, self._num_groups, self._fits[key], on_gpu=on_gpu)

    def _most(self, config: Config, *, on_gpu: bool) -> int:
        """How many fit into this rank's part of the memory."""
        from fedmpi.mpi.device import place, visible_gpus
        from fedmpi.mpi.node_memory import room_for_rank

        group = self._group
        try:
            needed = footprint(config, group.size)
        except UserError:  # the run itself will say what is wrong
            return 1
        if not on_gpu:
            return needed.most(room_for_rank(None, group.node_ranks))
        import torch

        gpus = visible_gpus()
        device = torch.device(place(config.run.device, group.device_rank, gpus))
        return needed.most(room_for_rank(device, math.ceil(group.node_ranks / gpus)))


def uses_gpu(config: Config) -> bool:
    """Whether a run would train on a GPU here."""
    from fedmpi.mpi.device import visible_gpus

    return config.run.device != "cpu" and visible_gpus() > 0
