"""`fedmpi data convert`: data whose clients are real, from the files of others into one HDF5 file."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import numpy as np

from fedmpi.data.natural import CONVERTERS, Converted, Options, assembled
from fedmpi.data.prepared import Dataset, write_dataset
from fedmpi.errors import UserError, did_you_mean
from fedmpi.results.text import bytes_text

_MOST_NAMES = 5


def convert(args: argparse.Namespace) -> int:
    """Store what is in PATH as FILE.h5."""
    if args.kind not in CONVERTERS:
        raise UserError(f"data convert {args.kind}: unknown kind; {did_you_mean(args.kind, CONVERTERS)}")
    target = Path(args.out)
    if target.suffix not in (".h5", ".hdf5"):
        raise UserError(f"--out {target}: format {target.suffix or 'missing'}; accepted: .h5, .hdf5")
    if target.exists() and not args.force:
        raise UserError(f"--out {target}: exists; overwrite it with --force, or choose another name")
    options = Options(**{f.name: getattr(args, f.name) for f in fields(Options)})
    converted = assembled(CONVERTERS[args.kind](Path(args.path), options), options, target.stem)
    try:
        write_dataset(target, converted.dataset)
    except OSError as error:
        raise UserError(f"--out {target}: cannot write there ({error.strerror or error})") from None
    print("\n".join([f"{target} ({bytes_text(target.stat().st_size)})", *summary(converted)]))
    learned = _task(converted.dataset)
    told = f', task.name = "{learned}"' if learned else ""
    print(f'use it with data.dataset = "{target}", data.partition = "natural"{told}')
    return 0


def _task(data: Dataset) -> str | None:
    """What can be learned from labels of this kind; None for that which needs not be named."""
    if data.train_labels.dtype.kind == "f":
        return "regression"
    return "next-character" if data.train_labels.ndim == 2 else None


def summary(converted: Converted) -> list[str]:
    """Who has how much, and what was left out."""
    data = converted.dataset
    sizes = np.bincount(data.train_clients)
    lines = [
        f"clients        {len(sizes):,}, with {sizes.min():,} to {sizes.max():,} samples to train on, "
        f"median {np.median(sizes):,.0f}",
        f"samples        {len(data.train_labels):,} train, {len(data.test_labels):,} test, "
        f"of shape {data.shape}",
    ]
    if data.held_out_clients is not None:
        count = len(np.unique(data.held_out_clients))
        lines.append(
            f"held out       {count:,} clients that never train, with {len(data.held_out_labels):,} samples"
        )
    if data.vocabulary:
        lines.append(f"vocabulary     {len(data.vocabulary):,} tokens")
    if data.train_labels.ndim == 1 and data.train_labels.dtype.kind != "f":
        lines.append(f"labels         {data.num_classes:,}")
    if converted.left_out:
        names = ", ".join(converted.left_out[:_MOST_NAMES])
        more = ", ..." if len(converted.left_out) > _MOST_NAMES else ""
        lines.append(
            f"left out       {len(converted.left_out):,} clients with too few samples: {names}{more}"
        )
    return [*lines, f"digest         {data.digest()}"]
