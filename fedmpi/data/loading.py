"""How each rank gets its samples: one rank of a node reads the data set and hands out the parts.

Invariant: only what a rank needs is sent to it, and every rank derives the same partition by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.config import Config
from fedmpi.data.evaluation import EvalData, Normaliser, eval_block, eval_rows, stratified
from fedmpi.data.ownership import owned_by
from fedmpi.data.partition import ClientLabels, Partition, make_partition
from fedmpi.data.prepared import Dataset
from fedmpi.data.shard import ClientData, DataInfo
from fedmpi.data.sources import load_dataset
from fedmpi.errors import UserError
from fedmpi.mpi import Comm
from fedmpi.mpi.device import ranks_sharing
from fedmpi.mpi.node_memory import room_for_rank


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The small parts of a Dataset, which every rank needs."""

    name: str
    shape: tuple[int, ...]
    input_dtype: np.dtype
    train_labels: np.ndarray
    train_clients: np.ndarray | None
    test_labels: np.ndarray
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str

    @classmethod
    def of(cls, data: Dataset) -> _Header:
        return cls(
            name=data.name,
            shape=data.shape,
            input_dtype=data.train_inputs.dtype,
            train_labels=data.train_labels,
            train_clients=data.train_clients,
            test_labels=data.test_labels,
            num_classes=data.num_classes,
            mean=data.mean,
            std=data.std,
            digest=data.digest(),
        )


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
    sample = int(np.prod(header.shape)) * np.dtype(header.input_dtype).itemsize + 8
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
    train_set: EvalData
    test_set: EvalData
    info: DataInfo  # what all ranks know


def load_shards(comm: Comm, config: Config, device: torch.device) -> Shards:
    """Collective. The clients' data, and this rank's part of the evaluation sets.

    One rank of each node reads the data set and sends every rank of the node the rows that it needs.
    """
    # The first rank of a node reads all; every rank gets labels and sizes, and computes the partition.
    data = comm.try_on_nodes(lambda: load_dataset(config.data, on_node=True))
    header = comm.share_on_node(_Header.of(data) if data else None)
    partition = comm.try_on_all(
        lambda: make_partition(
            header.train_labels, header.train_clients, header.num_classes, config.data, config.run.seed
        ),
    )
    dtype = getattr(torch, config.run.dtype)
    normalise = Normaliser.of(header, dtype, device)
    block = min(comm.gather_on_all(eval_block(device)))  # the same on all ranks, whatever their devices

    # Collective: the inputs of the rows that each rank needs.
    def take(part: str, rows_of: object) -> np.ndarray:
        rows = rows_of(comm.rank)
        out = np.empty((len(rows), *header.shape), header.input_dtype)
        source = getattr(data, f"{part}_inputs") if data else None
        comm.scatter_on_node(lambda rank: source[rows_of(rank)], out)
        return out

    # Collective: this rank's blocks of an evaluation set, or of a chosen subset.
    def evaluation(part: str, labels: np.ndarray, chosen: np.ndarray | None = None) -> EvalData:
        chosen = np.arange(len(labels)) if chosen is None else chosen
        blocks, rows = eval_rows(len(chosen), comm.rank, comm.size, block)
        inputs = take(part, lambda rank: chosen[eval_rows(len(chosen), rank, comm.size, block)[1]])
        return EvalData(
            block_ids=blocks,
            num_blocks=math.ceil(len(chosen) / block),
            block=block,
            num_samples=len(chosen),
            inputs=torch.from_numpy(inputs).to(device),
            labels=torch.from_numpy(labels[chosen[rows]]).to(device),
            normalise=normalise,
        )

    # The training set may be evaluated on a subset.
    subset = None
    if config.run.eval_train_samples is not None:
        subset = stratified(header.train_labels, config.run.eval_train_samples, config.run.seed)

    # On a GPU all of this must fit.
    num_owned = len(_owned_rows(partition, comm.rank, comm.size))
    evaluated = len(header.train_labels if subset is None else subset), len(header.test_labels)
    num_evaluated = sum(len(eval_rows(n, comm.rank, comm.size, block)[1]) for n in evaluated)
    sharing = ranks_sharing(comm, device)
    comm.try_on_all(lambda: _check_gpu_room(header, num_owned, num_evaluated, device, sharing))

    # The samples of this rank's clients, and what all ranks know.
    clients = ClientData(
        config,
        partition,
        (comm.rank, comm.size),
        torch.from_numpy(take("train", lambda rank: _owned_rows(partition, rank, comm.size))).to(device),
        torch.from_numpy(header.train_labels[_owned_rows(partition, comm.rank, comm.size)]).to(device),
        normalise,
    )
    info = DataInfo(
        name=header.name,
        shape=header.shape,
        num_classes=header.num_classes,
        num_train=len(header.train_labels),
        num_test=len(header.test_labels),
        partition=partition,
        labels=ClientLabels(partition, header.train_labels, header.num_classes),
        majority_labels=partition.majority_labels(header.train_labels),
        digest=f"{header.digest}/{partition.digest()}",
    )

    return Shards(
        clients=clients,
        train_set=evaluation("train", header.train_labels, subset),
        test_set=evaluation("test", header.test_labels),
        info=info,
    )
