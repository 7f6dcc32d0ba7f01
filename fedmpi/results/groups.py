"""Runs that differ only by seed belong together; groups are named by what differs between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmpi.storage.reader import Run
from fedmpi.storage.runs import flat_config

# Keys that change neither the experiment nor its results.
_BESIDE = {
    "data.root", "data.stage", "run.seed", "run.name", "run.tensorboard", "run.device", "run.cuda_aware",
    "run.checkpoint_every", "run.checkpoint_minutes", "run.max_minutes",
    "run.stall_minutes",
}  # fmt: skip
_FEW = 7  # groups with distinct colours
# In a sweep, long names and those with blanks end with a digest of all settings, seed included.
_DIGEST = r"_(?=\d*[a-f])[0-9a-f]{8}$"  # with a letter: eight digits alone are more likely a date
_SEED_IN_NAME = re.compile(rf"[\s,_-]*seed[\s=_-]*\d+({_DIGEST})?|{_DIGEST}", re.IGNORECASE)


@dataclass(frozen=True)
class Group:
    """Runs with the same config except for the seed."""

    label: str
    values: dict[str, Any]  # the config values that differ between groups
    runs: tuple[Run, ...]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order in which they first appear; many, by the values that differ."""
    members: dict[tuple, list[Run]] = {}
    for run in runs:
        key = _identity(run)
        # The same seed twice is not a second sample: it forms a separate group.
        number = 0
        while any(
            r.config["run"]["seed"] == run.config["run"]["seed"] for r in members.get((key, number), [])
        ):
            number += 1
        members.setdefault((key, number), []).append(run)
    firsts = [group[0] for group in members.values()]
    keys = differing_keys(firsts)
    labels = _labels(firsts, keys)
    values = [{key: flat_config(run.config).get(key) for key in keys} for run in firsts]
    groups = [
        Group(label, value, tuple(group))
        for label, value, group in zip(labels, values, members.values(), strict=True)
    ]
    # Neighbours then have similar colours.
    return sorted(groups, key=_order) if len(groups) > _FEW else groups


def _order(group: Group) -> list[tuple]:
    """By the values that differ, numbers as numbers."""
    return [sort_key(value) for value in group.values.values()]


def sort_key(value: Any) -> tuple:
    """Orders config values: numbers first, then texts.

    >>> sorted(["b", 10, 2, "a"], key=sort_key)
    [2, 10, 'a', 'b']
    """
    return (0, value, "") if isinstance(value, int | float) else (1, 0, value_text(value))


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Config keys whose values differ between runs, without seeds, names and ways to run."""
    return differing_keys_of([run.config for run in runs])


def differing_keys_of(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The same of configs as files hold them."""
    flat = [flat_config(config) for config in configs]
    keys = [key for key in dict.fromkeys(key for f in flat for key in f) if key not in _BESIDE]
    return [key for key in keys if len({repr(f.get(key)) for f in flat}) > 1]


def value_text(value: Any) -> str:
    """A config value as readable text.

    >>> value_text(0.1), value_text(None), value_text([1, 2]), value_text(True)
    ('0.1', '-', '[1, 2]', 'yes')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and any(isinstance(entry, str | dict) for entry in value):
        return " and ".join(map(_entry_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entry_text(entry: str | dict[str, Any]) -> str:
    """A name, with the keys of its own in brackets."""
    if isinstance(entry, str):
        return entry
    own = ", ".join(f"{key} {value_text(value)}" for key, value in entry.items() if key != "name")
    return f"{entry.get('name')} ({own})" if own else str(entry.get("name"))


def _identity(run: Run) -> str:
    flat = flat_config(run.config)
    kept = sorted((key, repr(value)) for key, value in flat.items() if key not in _BESIDE)
    return repr([base_name(run), *kept])


def base_name(run: Run) -> str:
    """The run's name without its seed."""
    return without_seed(run.name)


def without_seed(name: str) -> str:
    """A name that a sweep gave, without the seed.

    >>> without_seed("amplified_local_lr-0.01_seed-3")
    'amplified_local_lr-0.01'
    """
    return _SEED_IN_NAME.sub("", name) or name


def _labels(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """Names where they distinguish the groups, else the values that differ, else the files."""
    flat = [flat_config(run.config) for run in runs]
    names = [_in_words(base_name(run), f) for run, f in zip(runs, flat, strict=True)]
    texts = [", ".join(value_label(key, f[key]) for key in keys if f.get(key) is not None) for f in flat]
    stems, paths = [run.path.stem for run in runs], [str(run.path) for run in runs]
    both = [f"{name}, {text}" for name, text in zip(names, texts, strict=True)]
    for labels in (names, texts, both, stems, paths):
        if len(set(labels)) == len(runs) and all(labels):
            return labels
    return paths


def _in_words(name: str, flat: dict[str, Any]) -> str:
    """A sweep's name for a file, as text.

    >>> _in_words("mifa_local_lr-0.01_eval_every-5", {"algorithm.local_lr": 0.01, "run.eval_every": 5})
    'mifa, local_lr 0.01, eval_every 5'
    """
    for key, value in flat.items():
        mechanical = re.escape(f"{key.split('.', 1)[1]}-{value_text(value)}")
        label = value_label(key, value)
        name = re.sub(rf"(^|_){mechanical}(?=_|$)", lambda m, label=label: ", " * bool(m[1]) + label, name)
    return name


def value_label(key: str, value: Any) -> str:
    """A config value with its name.

    >>> value_label("algorithm.local_lr", 0.01), value_label("model.name", "mlp")
    ('local_lr 0.01', 'mlp')
    """
    name = key.split(".", 1)[1]
    return value_text(value) if name == "name" else f"{name} {value_text(value)}"
