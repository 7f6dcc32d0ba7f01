"""Result file and checkpoint, each dataset and attribute, as a page (analysis/FORMAT.md).

Invariant: tables are read from columns.py; of the rest, real files hold nothing that does not stand here.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedmpi.config.registry import TASKS
from fedmpi.storage.columns import (
    BESIDE_PHASES,
    FORMAT,
    FORMAT_VERSION,
    OPTIONAL_TABLES,
    PHASES,
    SEGMENTED_VERSION,
    TABLES,
)

RUN_ATTRIBUTES = {
    "format": f'"{FORMAT}"',
    "format_version": f"{FORMAT_VERSION}; {SEGMENTED_VERSION} while rows are in other files",
    "status": '"running", "done", "diverged" or "stopped"',
    "config": "the resolved config, TOML text",
    "creator": "fedmpi and its version",
    "run_id": "drawn for each run; checkpoints and other files of the run name it",
    "created_utc": "when the run began",
    "seed": "`run.seed`",
    "num_ranks": "ranks of the newest leg",
    "mpi_library": "of the newest leg, as it names itself",
    "host_names": "one for each rank",
    "device_names": "one for each rank",
    "placement": "JSON: rank, host, device, cores, threads, visible GPUs of each rank",
    "versions": "JSON: Python and packages",
    "legs": "JSON: each start and resumption, with its first round, time and number of ranks",
    "data_digest": "SHA-256 of the samples, and of who owns which",
    "model_digest": "SHA-256 of the parameters' names and shapes and of x_0",
    "participation_digest": "of a schedule or trace file; otherwise empty",
    "metrics": "JSON: name, units, description and what is better, of each metric of the task",
    "signature": "by the user's key, so that code that a config names is theirs; empty where it names none",
    "user_code": "JSON, only with functions of your own: name, SHA-256 and source of each",
    "traffic": "JSON: bytes of a vector, how many a participant sends and gets, whether the absent train",
    "phases": f"JSON, one entry for each rank: seconds of {', '.join(PHASES)}; {', '.join(BESIDE_PHASES)}",
    "recorded": "on a GPU: how local training was recorded for replay",
    "segments": "JSON, only while rows are in `RUN.h5.rows-1`, ...: rows of each table in each of them",
}
COLUMN_ATTRIBUTES = {
    "units": "as listed here",
    "description": "as listed here",
    "long_name": "the same, where plotting tools look for it",
}
OTHER_DATASETS = {
    "model/global_params": ("f8", "(d,)", "x_t after the last round written"),
    "model/parameter": ("i1", "(d,)", "the dimension of parameters, without values"),
    "params/round": ("i8", "(M,)", "only with `run.record_params_every`: completed rounds"),
    "params/global_params": ("f8", "(M, d)", "x_t of these rounds"),
    "params/parameter": ("i1", "(d,)", "the dimension of parameters, without values"),
}
MODEL_ATTRIBUTES = {"parameters": "JSON: name and shape of each parameter, in the order of the vector"}
CHECKPOINT_ATTRIBUTES = {
    "format": '"fedmpi-checkpoint"',
    "format_version": "1",
    "header": "JSON, see below",
}
HEADER = {
    "run_id": "of the result file",
    "completed": "rounds done",
    "anchor_round": "t_0, the round after the last amplification",
    "rows": "rows of each table of the result file at that time: a resumed run cuts it back to them",
    "wall_time_s": "so far",
    "digests": "of data, model and participation: what must not change",
    "parts": "files `.part-R` with what clients remember",
}
CHECKPOINT_DATASETS = {
    "global_params": "x, float64",
    "accumulated": "u, the updates since the last amplification",
    "minibatches_drawn": "of each client",
    "participation/*": "state of the selection",
    "method/*": "state of the method's server, by its own names",
}
PART_ATTRIBUTES = {
    "format": '"fedmpi-checkpoint-part"',
    "run_id": "of the result file",
    "parts": "files of this checkpoint, one of each rank that wrote it",
}
PART_DATASETS = {
    "clients": "ids of the rank's clients",
    "*": "a row for each of them, by the method's own names",
}

PREPARED_ATTRIBUTES = {
    "format": '"fedmpi-data"',
    "format_version": "1, or 2 where something is in it that the first version had no place for",
    "name": "of the data set, for people",
    "num_classes": "labels are 0 to num_classes - 1; for regression any number",
    "mean": "of each channel of uint8 inputs scaled to [0, 1]; empty for other inputs",
    "std": "the same",
    "num_tokens": "only where inputs are token ids: they are 0 to num_tokens - 1",
    "digest": "SHA-256 of all that the file holds; `write_dataset` makes it",
}
PREPARED_DATASETS = {
    "train/inputs": ("(n, ...)", "uint8, floating point, or integer token ids"),
    "train/labels": ("(n, ...)", "as the task has them, see below"),
    "train/client": ("(n,)", "the client of each sample, optional: for the partition `natural`"),
    "test/inputs, test/labels": ("", "the same; there may be none: (0, ...)"),
    "test/client": ("", "optional: whose the test samples are"),
    "held_out/inputs, held_out/labels, held_out/client": ("", "optional: clients that never train"),
    "names": ("()", "optional, JSON: client_names, class_names, and vocabulary, the text of each token"),
}
LABELS = {
    "classification": "(n,) integers, 0 to num_classes - 1",
    "regression": "(n,) or (n, K) floating-point numbers",
    "next-character": "(n, L) integers: the token after each of the (n, L) inputs, -1 where it is padding",
    "multi-label": "(n, K) integers, each 0 or 1",
}

_HEAD = """\
# The result file and the checkpoint

Written by `fedmpi schema --page format`. Both are HDF5; `fedmpi.load_run` reads the first, xarray and
any other HDF5 tool too. `t` is a round, `n` a client, `q` a weight, `d` the number of parameters.

## Result file: `RUN.h5`

It is always whole: each flush writes a copy under a temporary name and renames it. It ends with a seal, a
SHA-256 of its bytes, which HDF5 ignores. Attributes of the file:
"""
_PREPARED = """
## Prepared data: `PATH.h5` for `data.dataset`

Written by `fedmpi data prepare`, `fedmpi data convert`, or `fedmpi.data.prepared.write_dataset`; checked
when it is read. uint8 inputs are images, (n, channels, height, width), or vectors; models get
(v / 255 - mean) / std. Floating-point inputs are taken as they are. Integers are token ids if `num_tokens`
is there, and models get them as they are. `Dataset` sets it by itself for (n, L) integers other than uint8,
and for uint8 without mean and std: to the size of the vocabulary, or else to `num_classes`. Any id may be
padding in inputs. Attributes:
"""
_CHECKPOINT = """
## Checkpoint: `RUN.h5.checkpoint-ROUNDS`

Enough to go on with the same bits on any number of ranks: everything goes by client, nothing by rank. The
two newest are kept. Attributes:
"""
_PART = """
What clients remember (mifa, scaffold, ...) is in one file for each rank that wrote,
`RUN.h5.checkpoint-ROUNDS.part-R`, with these attributes and datasets:
"""


def format_page() -> str:
    """Markdown."""
    lines = [_HEAD, *_table(("attribute", "holds"), RUN_ATTRIBUTES)]
    for name, columns in (TABLES | OPTIONAL_TABLES).items():
        lines += ["", f"### /{name}", ""]
        lines += ["| dataset | type | units | description |", "|---|---|---|---|"]
        lines += [_row(f"`{c.name}`", f"`{c.dtype}`", c.units, c.description) for c in columns]
    lines += [
        "",
        "`/eval` and `/amplification` have the metrics of the task, `train_` and `test_` before each:",
        "",
    ]
    lines += ["| `task.name` | metric | units | better | of the training set |", "|---|---|---|---|---|"]
    for part in TASKS.parts():
        for metric in part.make().recorded():
            better = "higher" if metric.higher_is_better else "lower"
            lines.append(_row(part.name, f"`{metric.name}`", metric.units, better, metric.about("train")))
    lines += ["", "The first column of a table is the dimension scale of the others. `/amplification`,"]
    lines += ["`/clients_eval` and `/theory` are there only with `run.eval_at_amplification`,"]
    lines += ["`run.eval_clients_every` and `run.record_theory_every`,"]
    lines += ["`/undelivered` only where updates were lost or late (`participation.dropout`, ...),"]
    lines += ["`/energy` only where the nodes tell what they use (RAPL, NVML)."]
    lines += ["Attributes of each dataset:", "", *_table(("attribute", "holds"), COLUMN_ATTRIBUTES)]

    # What is no table of rows.
    lines += [
        "",
        "### /model and /params",
        "",
        "| dataset | type | shape | description |",
        "|---|---|---|---|",
    ]
    lines += [_row(f"`{name}`", f"`{kind}`", *rest) for name, (kind, *rest) in OTHER_DATASETS.items()]
    lines += ["", "Attribute of `/model`:", "", *_table(("attribute", "holds"), MODEL_ATTRIBUTES)]
    lines += [_PREPARED, *_table(("attribute", "holds"), PREPARED_ATTRIBUTES), ""]
    lines += ["| dataset | shape | holds |", "|---|---|---|"]
    lines += [_row(f"`{name}`", *rest) for name, rest in PREPARED_DATASETS.items()]
    lines += ["", "| `task.name` | labels |", "|---|---|", *(_row(*pair) for pair in LABELS.items())]
    lines += [_CHECKPOINT, *_table(("attribute", "holds"), CHECKPOINT_ATTRIBUTES), ""]
    lines += [*_table(("in the header", "is"), HEADER), "", *_table(("dataset", "is"), CHECKPOINT_DATASETS)]
    lines += [_PART, *_table(("attribute", "holds"), PART_ATTRIBUTES), ""]
    lines += [*_table(("dataset", "is"), PART_DATASETS), ""]
    return "\n".join(lines)


def _table(head: tuple[str, str], rows: dict[str, str]) -> Iterator[str]:
    yield _row(*head)
    yield "|---|---|"
    for name, meaning in rows.items():
        yield _row(f"`{name}`", meaning)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
