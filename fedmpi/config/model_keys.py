"""What is trained, and what for: the keys of [model] and [task] that every experiment has."""

from __future__ import annotations

from dataclasses import dataclass

from fedmpi.config.options import REQUIRED, option
from fedmpi.config.registry import MODELS, TASKS


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """[model] What is trained."""

    name: str = option(REQUIRED, "model", choices=MODELS, or_function=True)
    options: dict = option(
        {},
        "keyword arguments for a model function of your own",
        has_effect=lambda config: ":" in config.model.name,
    )


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """[task] What clients learn: the loss of a sample, and what is recorded of a model."""

    name: str = option("classification", "loss and metrics", choices=TASKS, or_function=True)
    options: dict = option(
        {},
        "keyword arguments for a task class of your own",
        has_effect=lambda config: ":" in config.task.name,
    )
