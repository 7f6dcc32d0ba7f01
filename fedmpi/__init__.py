"""fedmpi: federated learning under arbitrary client participation, simulated under MPI.

Importing this package starts nothing: no MPI, no torch, no thread. Reading results needs neither:

>>> import fedmpi
>>> run = fedmpi.load_run("RUN.h5")       # doctest: +SKIP
>>> run.eval.plot("round", "train_loss")  # doctest: +SKIP
>>> table = fedmpi.load_runs("DIR")       # doctest: +SKIP
>>> print(fedmpi.compare("A", "B"))       # doctest: +SKIP

Simulations from Python, in one process or under `mpirun -n R python script.py`:

>>> run = fedmpi.run("first.toml", {"algorithm.local_lr": 0.1}, out="a.h5")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from fedmpi.errors.moved import watch_for_old_names
from fedmpi.mpi.world import launched_rank
from fedmpi.results.many_runs import load_runs
from fedmpi.storage.reader import Run, load_run

if TYPE_CHECKING:
    from fedmpi.experiments.api import advise, check, resume, run, sweep
    from fedmpi.results.fairness import fairness
    from fedmpi.results.paired import compare

__version__ = "0.2.0.dev0"
__all__ = [
    "Run", "__version__", "advise", "check", "compare", "fairness", "is_root", "load_run", "load_runs",
    "resume", "run", "sweep",
]  # fmt: skip

watch_for_old_names()


def _plot(
    run: Run, metric: str | None = None, x: str = "rounds", ax: Any = None, label: str | None = None
) -> Any:
    """One metric on matplotlib axes, which are returned; without a name all panels of `fedmpi plot`.

    `x`: "rounds", "local-steps", "bytes", "seconds" or "energy"; `ax`: axes of an earlier call.
    """
    from fedmpi.results.plots.at_once import draw_at_once

    return draw_at_once([run], metric, x, ax, label)


Run.plot = _plot  # here, since files are read by a layer that draws nothing


def is_root() -> bool:
    """Whether this process is rank 0: of several ranks of a script, the one that prints and draws."""
    return launched_rank() == 0


_SERVICES = ("advise", "check", "resume", "run", "sweep")


def __getattr__(name: str) -> Any:
    """What starts simulations is loaded when it is first used."""
    if name == "compare":
        from fedmpi.results.paired import compare

        return compare
    if name == "fairness":
        from fedmpi.results.fairness import fairness

        return fairness
    if name in _SERVICES:
        from fedmpi.experiments import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | {"compare", "fairness", *_SERVICES})
