"""fedmpi: federated learning under arbitrary client participation, simulated under MPI.

Importing this package starts nothing: no MPI, no torch, no thread. Reading results needs neither:

>>> import fedmpi
>>> run = fedmpi.load_run("RUN.h5")       # doctest: +SKIP
>>> run.eval.plot("round", "train_loss")  # doctest: +SKIP
>>> table = fedmpi.load_runs("DIR")       # doctest: +SKIP
"""

from fedmpi.errors.moved import watch_for_old_names
from fedmpi.storage.reader import Run, load_run
from fedmpi.storage.runs import load_runs

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "load_run", "load_runs"]

watch_for_old_names()
