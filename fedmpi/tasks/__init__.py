"""What clients learn: the loss of a sample, and what is recorded about a model. One file per task.

Importing this package does not load torch.
"""

from __future__ import annotations

from fedmpi.config.keys import Config
from fedmpi.tasks.interface import TASKS, Metric, Samples, Task, task

# They register themselves, in the order in which their names are listed.
from fedmpi.tasks import classification, regression, next_character, multi_label  # isort: skip # noqa: F401

__all__ = ["TASKS", "Metric", "Samples", "Task", "make_task", "task"]


def make_task(config: Config) -> Task:
    """The task that `task.name` names: a built-in one, or a user's package.module:Task."""
    name = config.task.name
    if name in TASKS:
        return TASKS[name]()
    from fedmpi.config.user_code import call_function
    from fedmpi.errors import UserError
    from fedmpi.tasks.interface import problem_of

    shown = f"options={config.task.options}"
    made = call_function(name, "task.name", {}, config.task.options, shown)
    if not isinstance(made, Task):
        raise UserError(
            f'config task.name = "{name}": gave {type(made).__name__}; expected a class derived from '
            "fedmpi.tasks.Task"
        )
    problem = problem_of(made)
    if problem:
        raise UserError(f'config task.name = "{name}": {problem}')
    return made
