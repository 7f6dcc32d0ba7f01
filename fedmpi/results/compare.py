"""Where two runs differ: config first, then the first round, client and parameter.

Invariant: "the same" means bit for bit, in participation, updates, evaluations and the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from fedmpi.storage.reader import Run

_PARTICIPANTS = {"client": "client", "weight": "weight of", "update_max": "the update of"}
_TIMES = ("wall_time_s", "compute_time_s", "comm_time_s", "idle_time_s")


@dataclass(frozen=True)
class Difference:
    """The first difference of two runs."""

    round: int | None
    text: str


def config_differences(a: Run, b: Run) -> list[str]:
    """One line for each config key that differs."""
    lines = []
    for section in dict.fromkeys([*a.config, *b.config]):
        left, right = a.config.get(section, {}), b.config.get(section, {})
        for key in dict.fromkeys([*left, *right]):
            if left.get(key) != right.get(key):
                lines.append(f"{section}.{key}: {left.get(key, 'not set')} | {right.get(key, 'not set')}")
    return lines


def first_difference(a: Run, b: Run) -> Difference | None:
    """What differs first in time, among the rounds that both runs have; None if nothing does."""
    # x_t is evaluated before round t; in a tie the first of this list wins.
    found = _evaluations(a, b), _evaluations_of_clients(a, b), _participation(a, b), _rounds(a, b)
    differences = [difference for difference in found if difference]
    if differences:
        return min(differences, key=lambda difference: difference.round)
    if len(a.train) != len(b.train):
        return Difference(None, f"one run has {len(a.train):,} rounds, the other {len(b.train):,}")
    if a.global_params is None or b.global_params is None:
        return None if a.global_params is b.global_params else Difference(None, "one run has no model")
    if not _same(a.global_params, b.global_params):
        return Difference(len(a.train), f"the model: {parameter_difference(a, b)}")
    return None


def parameter_difference(a: Run, b: Run) -> str:
    """The first parameter of the last model that differs."""
    if a.global_params.shape != b.global_params.shape:
        return f"{a.global_params.size:,} parameters | {b.global_params.size:,}"
    different = np.flatnonzero(_bits(a.global_params) != _bits(b.global_params))
    if not len(different):
        return "no parameter differs"
    index, start = int(different[0]), 0
    for name, shape in json.loads(a.attributes["parameters"]):
        size = int(np.prod(shape))
        if index < start + size:
            place = [int(i) for i in np.unravel_index(index - start, shape or (1,))]
            values = f"{a.global_params[index].item()} | {b.global_params[index].item()}"
            return f"{len(different):,} parameters differ, first {name}{place}: {values}"
        start += size
    return "the parameters"


def _participation(a: Run, b: Run) -> Difference | None:
    """Who took part with what weight, and what came of it."""
    last = min(len(a.train), len(b.train))
    left, right = (r.participation[r.participation["round"] < last] for r in (a, b))
    rows = min(len(left), len(right))
    rounds = [side["round"].to_numpy()[:rows] for side in (left, right)]
    values = {c: [side[c].to_numpy()[:rows] for side in (left, right)] for c in _PARTICIPANTS}
    unequal = rounds[0] != rounds[1]
    for one, other in values.values():
        unequal = unequal | (_bits(one) != _bits(other))
    if not unequal.any():
        if len(left) == len(right):
            return None
        longer = left if len(left) > len(right) else right
        return _more_participants(int(longer["round"].iloc[rows]))
    row = int(np.flatnonzero(unequal)[0])
    if rounds[0][row] != rounds[1][row]:
        return _more_participants(int(min(rounds[0][row], rounds[1][row])))
    t, client = int(rounds[0][row]), int(values["client"][0][row])
    for column, what in _PARTICIPANTS.items():
        one, other = (side[row] for side in values[column])
        if _bits(np.array([one])) != _bits(np.array([other])):
            name = "" if column == "client" else f" client {client}:"
            return Difference(t, f"round {t}, {what}{name} {one.item()} | {other.item()}")
    return None


def _more_participants(t: int) -> Difference:
    return Difference(t, f"round {t}: one run has more participants")


def _rounds(a: Run, b: Run) -> Difference | None:
    rows = min(len(a.train), len(b.train))
    differences = []
    for column in (c for c in a.train.columns if c not in _TIMES):
        one, other = a.train[column].to_numpy()[:rows], b.train[column].to_numpy()[:rows]
        different = np.flatnonzero(_bits(one) != _bits(other))
        if len(different):
            t = int(different[0])
            differences.append(Difference(t, f"round {t}, {column}: {one[t].item()} | {other[t].item()}"))
    return min(differences, key=lambda difference: difference.round, default=None)


def _evaluations(a: Run, b: Run) -> Difference | None:
    both = a.eval.merge(b.eval, on="round", suffixes=("", "_other"))
    for row in both.itertuples():
        for column in (c for c in a.eval.columns if c not in ("round", *_TIMES)):
            one, other = getattr(row, column), getattr(row, f"{column}_other")
            if not _same(np.array([one]), np.array([other])):
                text = f"evaluation after round {row.round}, {column}: {one} | {other}"
                return Difference(int(row.round), text)
    return None


def _evaluations_of_clients(a: Run, b: Run) -> Difference | None:
    """Those of single clients, in rounds that both runs have them for."""
    if a.clients_eval is None or b.clients_eval is None:
        return None
    keys = ["round", "client", "part"]
    both = a.clients_eval.merge(b.clients_eval, on=keys, suffixes=("", "_other"))
    for column in (c for c in a.clients_eval.columns if c not in keys):
        one, other = both[column].to_numpy(), both[f"{column}_other"].to_numpy()
        for row in np.flatnonzero(_bits(one) != _bits(other))[:1]:
            t, client, part = both.loc[row, keys]
            place = f"evaluation after round {t}, {part} {column} of client {client}"
            return Difference(int(t), f"{place}: {one[row].item()} | {other[row].item()}")
    return None


def _bits(values: np.ndarray) -> np.ndarray:
    """Floats as integers, so that nan equals nan and -0.0 is not 0.0."""
    return values.view(f"u{values.itemsize}") if values.dtype.kind == "f" else values


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool((_bits(a) == _bits(b)).all())
