"""The experiment as typed records, and from TOML text to them.

keys.py: every key. validate.py: reading and checking text. rules.py, participation_rules.py: what must
hold between keys. toml.py: values as text. user_code.py: functions that a config names.
"""

from fedmpi.config.keys import (
    AVAILABILITIES,
    DATASETS,
    LR_SCHEDULES,
    MAY_CHANGE,
    METHODS,
    MODELS,
    PARTITIONS,
    SECTIONS,
    SELECTIONS,
    WEIGHTINGS,
    AlgorithmConfig,
    Config,
    DataConfig,
    ModelConfig,
    ParticipationConfig,
    RunConfig,
    WarmupConfig,
)

__all__ = [
    "AVAILABILITIES", "DATASETS", "LR_SCHEDULES", "MAY_CHANGE", "METHODS", "MODELS", "PARTITIONS",
    "SECTIONS", "SELECTIONS", "WEIGHTINGS", "AlgorithmConfig", "Config", "DataConfig", "ModelConfig",
    "ParticipationConfig", "RunConfig", "WarmupConfig",
]  # fmt: skip
