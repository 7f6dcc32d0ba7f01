"""What a config would do and cost, determined without training: for `fedmpi check` and `fedmpi.check`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmpi.config import Config
from fedmpi.data.evaluation import EVAL_BLOCK
from fedmpi.data.loading import clients_of, subset_of
from fedmpi.data.ownership import owner_of
from fedmpi.data.partition import ClientLabels, Partition, client_labels, make_partition
from fedmpi.data.prepared import Dataset
from fedmpi.data.sources import load_fitting
from fedmpi.experiments.notes import notes_on
from fedmpi.methods import Method, make_method
from fedmpi.models import build_model
from fedmpi.models.flat import together
from fedmpi.mpi.node_memory import available_bytes
from fedmpi.participation import make_participation
from fedmpi.participation.survey import Survey, rounds_to_see, survey, survey_lines
from fedmpi.results.text import bytes_text
from fedmpi.simulation.by_client import CELL_BYTES, SAMPLE_BYTES, num_cells
from fedmpi.simulation.client_tables import table_bytes
from fedmpi.simulation.late import with_late
from fedmpi.simulation.running_total import rows_held
from fedmpi.tasks import make_task


@dataclass(frozen=True, kw_only=True, repr=False)
class Preview:
    """A valid config, and what is known before the first round; as text what `fedmpi check` prints."""

    config: Config
    notes: list[str]  # keys without effect, and phases that evaluations do not see
    num_params: int
    num_clients: int
    client_sizes: np.ndarray  # samples of each client
    survey: Survey  # who takes part in the first rounds
    lines: list[str]

    def __str__(self) -> str:
        return "\n".join([*(f"note: {note}" for note in self.notes), *self.lines])

    __repr__ = __str__  # so that a notebook shows it


def preview(config: Config, num_ranks: int = 1) -> Preview:
    """Load the data, partition them, build the model, survey the first rounds."""
    task = make_task(config)
    data = load_fitting(config, task)
    partition = make_partition(
        data.train_labels, data.train_clients, data.num_classes, config.data, config.run.seed
    )
    model = build_model(config, data.shape, task.num_outputs(data), data.num_tokens, data.train_labels[0])
    num_params = sum(p.numel() for p in model.parameters())
    labels = client_labels(partition, data.train_labels, data.num_classes)
    looked_at = participation_survey(config, partition.num_clients, labels)
    most = int(looked_at.participants.max())
    method = make_method(config, partition.num_clients)
    return Preview(
        config=config,
        notes=notes_on(config),
        num_params=num_params,
        num_clients=partition.num_clients,
        client_sizes=partition.sizes,
        survey=looked_at,
        lines=[
            f"data           {data.name}: {len(data.train_labels):,} train, {len(data.test_labels):,} test "
            f"samples of shape {data.shape}",
            f"model          {config.model.name}: {num_params:,} parameters",
            *ownership_summary(config, data, partition, num_params, most, num_ranks),
            *table_lines(config, method, num_params, num_ranks),
            *by_client_lines(config, data, partition, num_ranks),
            *survey_lines(looked_at, weights_count=config.weights_count),
        ],
    )


def participation_survey(config: Config, num_clients: int, labels: ClientLabels) -> Survey:
    """Who takes part in the first rounds."""
    window = config.algorithm.amplify_every
    rounds = rounds_to_see(config.run.num_rounds, num_clients, window)
    return survey(make_participation(config, num_clients, labels), num_clients, rounds, window)


def ownership_summary(
    config: Config, data: Dataset, partition: Partition, num_params: int, most: int, num_ranks: int
) -> list[str]:
    """Lines on what each rank owns, holds in memory and sends."""
    ranks = owner_of(np.arange(partition.num_clients), num_ranks)
    clients = np.bincount(ranks, minlength=num_ranks)
    samples = np.bincount(ranks, weights=partition.sizes, minlength=num_ranks).astype(int)
    lines = [f"ownership      by stride: rank r of {num_ranks} owns clients r, r + {num_ranks}, ..."]
    for rank in range(min(num_ranks, 4)):
        lines.append(f"               rank {rank}: {clients[rank]:,} clients, {samples[rank]:,} samples")
    if num_ranks > 4:
        lines.append(f"               ... up to {samples.max():,} samples on a rank")
    # Samples: the clients' own, and the rank's share of the evaluation sets.
    evaluated = [data.train_labels, data.test_labels]
    if config.run.eval_clients_every and data.held_out_labels is not None:
        evaluated.append(data.held_out_labels)
    share = math.ceil(sum(map(len, evaluated)) / num_ranks)
    sample_bytes = data.train_inputs[:1].nbytes + data.train_labels[:1].nbytes
    held = (int(samples.max()) + share) * sample_bytes
    # Vectors: x, u and sums in float64 and int64; y, x and one update a client in working precision.
    width = 8 if config.run.dtype == "float64" else 4
    updates = rows_held(most, num_params, together(16, num_params), num_ranks)
    vectors = num_params * (5 * 8 + (2 + updates) * width)
    amplified = config.algorithm.amplification != 1
    broadcast = 8 * num_params / config.algorithm.amplify_every if amplified else 0
    return [
        *lines,
        f"memory         a rank: {bytes_text(held)} of samples, {bytes_text(vectors)} of vectors, besides "
        "Python and torch (about 300 MB)",
        f"               each further run of a pack of a sweep: {bytes_text(vectors)} more",
        f"communication  a round: {bytes_text(8 * num_params)} summed over ranks"
        + (f", {bytes_text(broadcast)} broadcast on average" if amplified else ""),
    ]


def table_lines(config: Config, method: Method, num_params: int, num_ranks: int) -> list[str]:
    """Lines on what the clients of a rank remember, with the arithmetic; none for most methods."""
    tables = with_late(config, method.tables)
    if not tables:
        return []
    owned, width = math.ceil(method.num_clients / num_ranks), 8 if config.run.dtype == "float64" else 4
    needed, room = table_bytes(len(tables), owned, num_params, width), available_bytes()
    lines = [
        f"tables         a rank, once all clients took part: {len(tables)} x {owned:,} clients x "
        f"{num_params:,} parameters x {width} bytes = {bytes_text(needed)} ({', '.join(tables)})"
    ]
    if room is not None and needed > room:
        lines.append(
            f"               more than the {bytes_text(room)} available on this machine: use more ranks "
            "on several nodes, fewer clients or a smaller model"
        )
    return lines


def by_client_lines(config: Config, data: Dataset, partition: Partition, num_ranks: int) -> list[str]:
    """A line on what looking at each client costs; none if no client is looked at."""
    if not config.run.eval_clients_every:
        return []
    subset = subset_of(data.train_labels, config)
    found = clients_of(data, partition, subset, config).values()
    samples = math.ceil(sum(map(len, found)) / num_ranks)
    cells = sum(num_cells(owners, EVAL_BLOCK) for owners in found)
    rows = sum(len(np.unique(owners)) for owners in found)
    return [
        f"each client    evaluated every {config.run.eval_clients_every:,} rounds, in the same passes: "
        f"{rows:,} rows each time",
        f"               memory of a rank: {bytes_text(samples * SAMPLE_BYTES + cells * CELL_BYTES)} for "
        f"{samples:,} samples and {cells:,} sums, one for each client in each block",
    ]
