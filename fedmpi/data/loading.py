"""How each rank gets its samples: one rank of a node reads the data set and hands out the parts.

Invariant: only what a rank needs is sent to it; labels and partition, which all need, are in memory once a
node, and every node derives the same by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.config import Config
from fedmpi.data.evaluation import EvalData, Normaliser, eval_block, eval_rows, stratified
from fedmpi.data.ownership import owned_by
from fedmpi.data.partition import Partition, are_classes, client_labels, make_partition
from fedmpi.data.prepared import Dataset
from fedmpi.data.room import Room
from fedmpi.data.shard import ClientData, DataInfo
from fedmpi.data.sources import load_fitting
from fedmpi.errors import UserError
from fedmpi.mpi import Comm
from fedmpi.mpi.device import ranks_sharing
from fedmpi.mpi.node_memory import room_for_rank
from fedmpi.tasks import Task, make_task

RowsOf = Callable[[int], np.ndarray]  # rank -> samples


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The small parts of a Dataset, which every rank needs."""

    name: str
    shape: tuple[int, ...]
    input_dtype: np.dtype
    train_labels: np.ndarray
    train_clients: np.ndarray | None
    test_labels: np.ndarray
    test_clients: np.ndarray | None
    held_out_labels: np.ndarray | None
    held_out_clients: np.ndarray | None
    num_classes: int
    num_tokens: int
    num_outputs: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str

    @classmethod
    def of(cls, data: Dataset, task: Task) -> _Header:
        return cls(
            name=data.name,
            shape=data.shape,
            input_dtype=data.train_inputs.dtype,
            train_labels=data.train_labels,
            train_clients=data.train_clients,
            test_labels=data.test_labels,
            test_clients=data.test_clients,
            held_out_labels=data.held_out_labels,
            held_out_clients=data.held_out_clients,
            num_classes=data.num_classes,
            num_tokens=data.num_tokens,
            num_outputs=task.num_outputs(data),
            mean=data.mean,
            std=data.std,
            digest=data.digest(),
        )


@dataclass(frozen=True, kw_only=True)
class _Dealt:
    """The partition of one run, and what follows from it; in memory once for all ranks of a node."""

    partition: Partition
    majority_labels: np.ndarray
    digest: str

    @classmethod
    def of(cls, header: _Header, config: Config) -> _Dealt:
        labels, clients = header.train_labels, header.train_clients
        partition = make_partition(labels, clients, header.num_classes, config.data, config.run.seed)
        majority = partition.majority_labels(labels)
        return cls(partition=partition, majority_labels=majority, digest=partition.digest())


def _owned_rows(partition: Partition, rank: int, size: int) -> np.ndarray:
    """Samples of a rank's clients, client by client."""
    owned = owned_by(rank, size, partition.num_clients)
    sizes, first = partition.sizes[owned], partition.offsets[owned]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return partition.order[np.repeat(first, sizes) + within]


def _check_gpu_room(
    header: _Header, num_owned: int, num_evaluated: int, device: torch.device, sharing: int
) -> None:
    """Refuse data that do not fit into this rank's part of its GPU, and show the arithmetic."""
    room = room_for_rank(device, sharing) if device.type == "cuda" else None
    sample = int(np.prod(header.shape)) * np.dtype(header.input_dtype).itemsize
    sample += header.train_labels[:1].nbytes
    needed = sample * (num_owned + num_evaluated)
    if room is not None and needed > room:
        shared = f" to each of its {sharing} ranks" if sharing > 1 else ""
        raise UserError(
            f"data on the GPU of a rank: {num_owned:,} samples of its clients to train on + "
            f"{num_evaluated:,} for evaluation, x {sample:,} bytes = {needed / 1e6:,.1f} MB; "
            f"{room / 1e6:,.1f} MB are available{shared}; use more GPUs, run.eval_train_samples, or "
            'run.device = "cpu"'
        )


@dataclass(frozen=True, kw_only=True)
class Shards:
    """What a rank has of the data of a run."""

    clients: ClientData
    eval_sets: dict[str, EvalData]  # "train", "test", "held-out"
    clients_of: dict[str, np.ndarray]  # of each sample of these sets, if each client is evaluated
    info: DataInfo  # what all ranks know

    @property
    def train_set(self) -> EvalData:
        """The training samples, or the chosen ones."""
        return self.eval_sets["train"]

    @property
    def test_set(self) -> EvalData:
        """The test samples."""
        return self.eval_sets["test"]


def load_shards(comm: Comm, config: Config, device: torch.device) -> Shards:
    """Collective. The clients' data of one run, and this rank's part of the evaluation sets."""
    return load_pack(comm, [config], device)[0]


def load_pack(comm: Comm, configs: Sequence[Config], device: torch.device) -> list[Shards]:
    """Collective. The data of runs that share a data set; each sample is in memory once for all of them.

    One rank of each node reads the data set and sends every rank of the node the rows that it needs.
    """
    # The first rank of a node reads all and computes the partitions; all its ranks look at the same memory.
    task = comm.try_on_all(lambda: make_task(configs[0]))
    data = comm.try_on_nodes(lambda: load_fitting(configs[0], task, on_node=True))
    header = comm.share_on_node(_Header.of(data, task) if data else None)
    dealt = comm.share_on_node(comm.try_on_nodes(lambda: [_Dealt.of(header, c) for c in configs]))
    partitions = [own.partition for own in dealt]
    sets = _Sets(comm, configs[0], device, data, header)

    # On a GPU all of this must fit. The training set may be evaluated on a subset.
    subsets = [subset_of(header.train_labels, config) for config in configs]
    owned, orders = _rows_and_orders(partitions, comm.rank, comm.size)
    sets.check_gpu_room(len(owned), subsets, with_held_out=_has_held_out(header, configs))

    # The samples of this rank's clients, and the evaluation sets.
    inputs, labels, normalise = sets.training(lambda rank: _rows_and_orders(partitions, rank, comm.size)[0])
    others, train_sets, room = {"test": sets.evaluation("test", header.test_labels, None)}, {}, Room()
    if _has_held_out(header, configs):
        others["held-out"] = sets.evaluation("held_out", header.held_out_labels, None)
    for subset in subsets:
        key = None if subset is None else subset.tobytes()
        if key not in train_sets:
            train_sets[key] = sets.evaluation("train", header.train_labels, subset)
    return [
        Shards(
            clients=ClientData(
                config, partition, (comm.rank, comm.size), inputs, labels, normalise, order=order, room=room
            ),
            eval_sets={"train": train_sets[None if subset is None else subset.tobytes()], **others},
            clients_of=clients_of(header, partition, subset, config),
            info=DataInfo(
                name=header.name,
                shape=header.shape,
                num_classes=header.num_classes,
                num_tokens=header.num_tokens,
                num_outputs=header.num_outputs,
                label=header.train_labels[0],
                num_train=len(header.train_labels),
                num_test=len(header.test_labels),
                partition=partition,
                labels=client_labels(partition, header.train_labels, header.num_classes),
                majority_labels=own.majority_labels,
                digest=f"{header.digest}/{own.digest}",
            ),
        )
        for config, partition, own, order, subset in zip(
            configs, partitions, dealt, orders, subsets, strict=True
        )
    ]


def _has_held_out(header: _Header, configs: Sequence[Config]) -> bool:
    """Whether there are held-out clients to evaluate."""
    return header.held_out_labels is not None and any(config.run.eval_clients_every for config in configs)


def clients_of(
    header: _Header | Dataset, partition: Partition, subset: np.ndarray | None, config: Config
) -> dict[str, np.ndarray]:
    """The client of each evaluated sample; of test samples only where clients are those of the data."""
    if not config.run.eval_clients_every:
        return {}
    found = {"train": partition.client_of() if subset is None else partition.client_of()[subset]}
    if header.test_clients is not None and config.data.partition == "natural":
        found["test"] = header.test_clients
    if header.held_out_clients is not None:
        found["held-out"] = header.held_out_clients
    return found


def subset_of(labels: np.ndarray, config: Config) -> np.ndarray | None:
    """The samples on which the training set is evaluated; None for all."""
    count = config.run.eval_train_samples
    labels = labels if are_classes(labels) else np.zeros(len(labels), np.int64)
    return None if count is None else stratified(labels, count, config.run.seed)


def _rows_and_orders(
    partitions: Sequence[Partition], rank: int, size: int
) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """The samples of a rank's clients in all runs; and where they are, client by client, for each run.

    Runs with one partition, one run above all, have them client by client: None.
    """
    first, *others = [_owned_rows(partition, rank, size) for partition in partitions]
    if all(np.array_equal(own, first) for own in others):
        return first, [None] * len(partitions)
    rows = np.unique(np.concatenate([first, *others]))
    return rows, [np.searchsorted(rows, own) for own in (first, *others)]


class _Sets:
    """What a rank takes of a data set."""

    def __init__(
        self, comm: Comm, config: Config, device: torch.device, data: Dataset | None, header: _Header
    ) -> None:
        """Collective. `data` on the first rank of each node."""
        self._comm, self._device, self._data, self._header = comm, device, data, header
        self._dtype = getattr(torch, config.run.dtype)
        self._normalise = Normaliser.of(header, self._dtype, device)
        self._block = min(comm.gather_on_all(eval_block(device)))  # whatever the devices of the ranks

    def training(self, rows_of: RowsOf) -> tuple[torch.Tensor, torch.Tensor, Normaliser]:
        """Collective. Inputs and labels of the rows that each rank needs, as they are stored."""
        labels = self._labels(self._header.train_labels[rows_of(self._comm.rank)])
        return self._inputs("train", rows_of), labels, self._normalise

    def evaluation(self, part: str, labels: np.ndarray, subset: np.ndarray | None) -> EvalData:
        """Collective. This rank's blocks of an evaluation set, or of a chosen subset."""
        rank, size, block = self._comm.rank, self._comm.size, self._block
        chosen = np.arange(len(labels)) if subset is None else subset
        blocks, rows = eval_rows(len(chosen), rank, size, block)
        inputs = self._inputs(part, lambda r: chosen[eval_rows(len(chosen), r, size, block)[1]])
        return EvalData(
            block_ids=blocks,
            num_blocks=math.ceil(len(chosen) / block),
            block=block,
            num_samples=len(chosen),
            inputs=inputs,
            labels=self._labels(labels[chosen[rows]]),
            normalise=self._normalise,
        )

    def check_gpu_room(
        self, num_owned: int, subsets: Sequence[np.ndarray | None], *, with_held_out: bool
    ) -> None:
        """Collective. Refuse data that do not fit on a GPU."""
        header, comm, device = self._header, self._comm, self._device
        different = {None if subset is None else subset.tobytes(): subset for subset in subsets}
        counts = [len(header.train_labels if s is None else s) for s in different.values()]
        num_evaluated = sum(
            len(eval_rows(count, comm.rank, comm.size, self._block)[1])
            for count in (
                *counts,
                len(header.test_labels),
                len(header.held_out_labels) if with_held_out else 0,
            )
        )
        sharing = ranks_sharing(comm, device)
        comm.try_on_all(lambda: _check_gpu_room(header, num_owned, num_evaluated, device, sharing))

    def _labels(self, labels: np.ndarray) -> torch.Tensor:
        """On the device; numbers in training precision."""
        found = torch.from_numpy(labels)
        return found.to(self._device, self._dtype if found.is_floating_point() else found.dtype)

    def _inputs(self, part: str, rows_of: RowsOf) -> torch.Tensor:
        """Collective. The inputs of the rows that each rank needs; numbers in training precision."""
        out = np.empty((len(rows_of(self._comm.rank)), *self._header.shape), self._header.input_dtype)
        source = getattr(self._data, f"{part}_inputs") if self._data else None
        self._comm.scatter_on_node(lambda rank: source[rows_of(rank)], out)
        inputs = torch.from_numpy(out)
        return inputs.to(self._device, self._dtype if inputs.is_floating_point() else inputs.dtype)
