"""Module names of version 0.1: an import of one says where its contents are now.

Pictures are the exception, since their old name is documented: `fedmpi.plots` is `fedmpi.results.plots`,
the same module under a second name. Invariant: loads nothing, so that `import fedmpi` stays quick.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_OLD_NAME, _NAME = "fedmpi.plots", "fedmpi.results.plots"

# A package covers its modules too, except for those that have their own line.
MOVED = {
    "fedmpi.advice": "fedmpi.theory.advice",
    "fedmpi.aggregate": "fedmpi.simulation.aggregate",
    "fedmpi.arguments": "fedmpi.cli.arguments",
    "fedmpi.bench": "fedmpi.experiments.bench",
    "fedmpi.client": "fedmpi.simulation.client",
    "fedmpi.commands": "fedmpi.cli",
    "fedmpi.commands.output": "fedmpi.storage.output",
    "fedmpi.commands.run": "fedmpi.cli.run and fedmpi.experiments.lifecycle",
    "fedmpi.compare": "fedmpi.results.compare",
    "fedmpi.conflicts": "fedmpi.config.effects",
    "fedmpi.constants": "fedmpi.simulation.probe",
    "fedmpi.device": "fedmpi.mpi.device",
    "fedmpi.engines": "fedmpi.models.engines",
    "fedmpi.engines.cuda_graph": "fedmpi.simulation.gpu_client",
    "fedmpi.evaluate": "fedmpi.simulation.evaluate",
    "fedmpi.events": "fedmpi.experiments.tensorboard",
    "fedmpi.exact": "fedmpi.simulation.exact",
    "fedmpi.grouping": "fedmpi.results.groups",
    "fedmpi.launch": "fedmpi.mpi.launcher",
    "fedmpi.lending": "fedmpi.simulation.lending",
    "fedmpi.memory": "fedmpi.simulation.client_tables",
    "fedmpi.methods.registry": "fedmpi.config.registry",
    "fedmpi.params": "fedmpi.models.flat",
    "fedmpi.participation.files": "fedmpi.participation.tables",
    "fedmpi.participation.table": "fedmpi.participation.tables",
    "fedmpi.participation.trace": "fedmpi.participation.traces",
    "fedmpi.participation_conflicts": "fedmpi.config.effects",
    "fedmpi.placement": "fedmpi.mpi.placement",
    "fedmpi.plan": "fedmpi.simulation.plan",
    "fedmpi.plots.advice": "fedmpi.results.plots.advice_figure",
    "fedmpi.plots.command": "fedmpi.results.plots.picture",
    "fedmpi.plots.survey": "fedmpi.results.plots.participation_figure",
    "fedmpi.plugins": "fedmpi.config.user_code",
    "fedmpi.provenance": "fedmpi.experiments.provenance",
    "fedmpi.recorder": "fedmpi.experiments.result_file",
    "fedmpi.report": "fedmpi.results.report",
    "fedmpi.reproduce": "fedmpi.experiments.reproduce",
    "fedmpi.rng": "fedmpi.data.rng",
    "fedmpi.slurm": "fedmpi.experiments.job_script",
    "fedmpi.stopping": "fedmpi.simulation.stopping",
    "fedmpi.storage.schema": "fedmpi.storage.columns",
    "fedmpi.sweep": "fedmpi.experiments.sweep",
    "fedmpi.sweep.results": "fedmpi.experiments.sweep.store",
    "fedmpi.sweep.screen": "fedmpi.cli.screen",
    "fedmpi.terminal": "fedmpi.experiments.progress and fedmpi.results.text",
    "fedmpi.theory.chance": "fedmpi.theory.random_participation",
    "fedmpi.timing": "fedmpi.simulation.clock",
    "fedmpi.toml": "fedmpi.config.toml",
    "fedmpi.training": "fedmpi.simulation.training",
    "fedmpi.trust": "fedmpi.experiments.signature",
    "fedmpi.validate": "fedmpi.config.validate",
}


class OldNames:
    """Knows the old names; Python asks it before it looks at the disk."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """An error for a module that moved; the new module for a name that is kept; nothing for others."""
        if name in MOVED:
            # Not a ModuleNotFoundError: `from fedmpi import rng` would replace its message.
            raise ImportError(_message(name), name=name)
        if name == _OLD_NAME or name.startswith(_OLD_NAME + "."):
            return ModuleSpec(name, cls)
        return None

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """The usual empty one, which `exec_module` replaces."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Put the new module in place of the old one: the import returns what is there."""
        name = module.__spec__.name
        sys.modules[name] = importlib.import_module(_NAME + name.removeprefix(_OLD_NAME))


def watch_for_old_names() -> None:
    """From now on, imports of old names say where the contents are."""
    if OldNames not in sys.meta_path:
        sys.meta_path.insert(0, OldNames)


def _message(name: str) -> str:
    """Python imports `package` before `package.module`, so the message for a package must fit both."""
    inside = [f"{old} to {new}" for old, new in MOVED.items() if old.startswith(name + ".")]
    others = f" ({', '.join(inside)})" if inside else ""
    return f"{name} moved to {MOVED[name]} in version 0.2{others}"
