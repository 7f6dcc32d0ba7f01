"""The experiment as typed records, and from TOML text to them.

keys.py: the keys of every experiment, those of [algorithm] in algorithm_keys.py. registry.py: parts that a
config chooses by name, with keys of their own. validate.py: reading and checking text. effects.py: which
keys clash, and which have an effect. json_schema.py, reference.py: all keys for editors and for people.
user_code.py: the user's own functions.
"""

from typing import Any

from fedmpi.config.keys import LR_SCHEDULES, Config, RunConfig, WarmupConfig, may_change, sections
from fedmpi.config.registry import (
    AVAILABILITIES,
    DATASETS,
    METHODS,
    MODELS,
    PARTITIONS,
    SELECTIONS,
    WEIGHTINGS,
)

__all__ = [
    "AVAILABILITIES", "DATASETS", "LR_SCHEDULES", "METHODS", "MODELS", "PARTITIONS", "SELECTIONS",
    "WEIGHTINGS", "AlgorithmConfig", "Config", "DataConfig", "ModelConfig", "ParticipationConfig",
    "RunConfig", "WarmupConfig", "may_change", "sections",
]  # fmt: skip

_COMPLETE = {
    "DataConfig": "data",
    "ModelConfig": "model",
    "ParticipationConfig": "participation",
    "AlgorithmConfig": "algorithm",
}


def __getattr__(name: str) -> Any:
    """The complete records: they exist once the parts that declare keys are known."""
    if name in _COMPLETE:
        return sections()[_COMPLETE[name]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
