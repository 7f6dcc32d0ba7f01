"""Why a data set cannot be used, whatever is to be learnt from it; the rest is for its task to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedmpi.data.prepared import Dataset


def problem_of(dataset: Dataset) -> str | None:
    """Why a data set cannot be used, or None; whether its labels fit a task is for the task to say."""
    held_out = (dataset.held_out_inputs, dataset.held_out_labels, dataset.held_out_clients)
    has_held_out = [part is not None for part in held_out]
    if any(has_held_out) and not all(has_held_out):
        return "held-out clients need inputs, labels and client ids, all three"
    for part in ("train", "test", *["held_out"] * all(has_held_out)):
        problem = _of_set(dataset, part)
        if problem:
            return problem
    if not len(dataset.train_inputs):
        return "no training samples"
    if dataset.train_inputs.dtype == np.uint8 and not dataset.num_tokens:
        channels = dataset.shape[0] if len(dataset.shape) == 3 else 1
        if not len(dataset.mean) == len(dataset.std) == channels or min(dataset.std) <= 0:
            return f"mean and std need {channels} numbers each, std above 0"
    return _of_clients(dataset)


def _of_set(dataset: Dataset, part: str) -> str | None:
    """Why one of its sets cannot be used, or None."""
    inputs, labels = getattr(dataset, f"{part}_inputs"), getattr(dataset, f"{part}_labels")
    problem = _of_inputs(dataset, part, inputs) or _of_labels(dataset, part, labels)
    if not problem and len(inputs) != len(labels):
        return f"{len(inputs)} {part} inputs but {len(labels)} labels"
    return problem


def _of_clients(dataset: Dataset) -> str | None:
    """Why its client ids cannot be used, or None."""
    for part in ("train", "test", "held_out"):
        clients, inputs = getattr(dataset, f"{part}_clients"), getattr(dataset, f"{part}_inputs")
        if clients is None:
            continue
        if clients.ndim != 1 or clients.dtype.kind not in "iu":
            return f"client ids of type {clients.dtype}, shape {clients.shape}; expected a list of integers"
        if len(clients) != len(inputs):
            return f"{len(clients)} client ids for {len(inputs)} samples"
        if part != "train" and len(clients) and clients.min() < 0:
            return f"client id {clients.min()} of {part} samples; expected ids from 0"
    if dataset.held_out_clients is not None and dataset.train_clients is not None:
        both = np.intersect1d(dataset.held_out_clients, dataset.train_clients)
        if len(both):
            return f"client {both[0]} has training samples and is held out; expected one of the two"
    return None


def _of_inputs(dataset: Dataset, part: str, inputs: np.ndarray) -> str | None:
    """Numbers of one type and shape; token ids within the vocabulary."""
    if dataset.num_tokens:
        if inputs.dtype.kind not in "iu":
            return f"{part} inputs of type {inputs.dtype}; expected integers, since num_tokens is above 0"
        if inputs.size and not 0 <= inputs.min() <= inputs.max() < dataset.num_tokens:
            return (
                f"{part} token ids from {inputs.min()} to {inputs.max()}; expected 0 to "
                f"{dataset.num_tokens - 1}, num_tokens is {dataset.num_tokens}"
            )
    elif inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
        return (
            f"{part} inputs of type {inputs.dtype}; expected uint8 or floating point, or integers that are "
            "token ids (num_tokens above 0)"
        )
    if inputs.dtype != dataset.train_inputs.dtype:
        return f"{part} inputs of type {inputs.dtype}, train inputs of {dataset.train_inputs.dtype}"
    if inputs.shape[1:] != dataset.shape:
        return f"{part} samples of shape {inputs.shape[1:]}, train samples of {dataset.shape}"
    return None


def _of_labels(dataset: Dataset, part: str, labels: np.ndarray) -> str | None:
    """Numbers, the test set's as those of the training set; classes in their range."""
    if labels.ndim < 1 or labels.dtype.kind not in "iuf":
        return f"{part} labels of type {labels.dtype}, shape {labels.shape}; expected a list of numbers"
    wanted = dataset.train_labels
    if labels.dtype != wanted.dtype or labels.shape[1:] != wanted.shape[1:]:
        return (
            f"{part} labels of type {labels.dtype}, shape {labels.shape}; train labels of "
            f"{wanted.dtype}, {wanted.shape}"
        )
    is_class = labels.ndim == 1 and labels.dtype.kind in "iu"
    if is_class and len(labels) and not 0 <= labels.min() <= labels.max() < dataset.num_classes:
        return f"{part} labels outside 0..{dataset.num_classes - 1}"
    return None
