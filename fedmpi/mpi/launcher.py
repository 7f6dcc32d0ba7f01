"""Starting this program again under mpirun, for commands that need several ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedmpi.errors import UserError

_RELAUNCHED = "FEDMPI_RELAUNCHED"


def relaunch(count: int, *, oversubscribe: bool = True) -> None:
    """Become `mpirun -n count fedmpi ...` with the same arguments; returns if already relaunched."""
    if os.environ.get(_RELAUNCHED):
        return

    # The environment of the ranks.
    os.environ[_RELAUNCHED] = "1"
    if oversubscribe:  # more ranks than cores are fine where bits are compared, not times
        os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        os.environ.setdefault("PRTE_MCA_hwloc_default_binding_policy", "none")
        os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")

    # Prefer the mpirun next to this Python.
    beside = Path(sys.executable).with_name("mpirun")
    launcher = str(beside) if beside.exists() else "mpirun"
    try:
        os.execvp(launcher, [launcher, "-n", str(count), sys.executable, "-m", "fedmpi", *sys.argv[1:]])
    except OSError as error:
        raise UserError(
            f"`fedmpi {sys.argv[1]}` needs mpirun to start {count} ranks ({error.strerror})"
        ) from None
