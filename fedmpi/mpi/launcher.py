"""How ranks are started: this program again under mpirun, by srun, and where they should not be started."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from fedmpi.errors import UserError
from fedmpi.mpi.comm import import_mpi

_RELAUNCHED = "FEDMPI_RELAUNCHED"

# What `srun --mpi` has to be told to start ranks of an MPI; empty for SLURM's own default, which sites set
# for their own. The first name that stands in the library's version text counts.
_SRUN_TYPES = {
    **{"open mpi": "pmix", "cray": "", "parastation": ""},
    **dict.fromkeys(("mpich", "intel", "mvapich"), "pmi2"),
}

# Where SLURM keeps its settings, or what it fetched from its controller.
_SETTINGS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


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


def srun_type() -> str:
    """What `srun --mpi=` needs for the MPI that this environment loads; empty for SLURM's own default."""
    try:
        library = import_mpi().Get_library_version().lower()
    except UserError:  # no MPI can be loaded here; Open MPI is what set-up would install
        return "pmix"
    return next((kind for name, kind in _SRUN_TYPES.items() if name in library), "")


def login_node_note() -> str:
    """A sentence where SLURM is found and no job is running; empty elsewhere."""
    sbatch = shutil.which("sbatch")
    if not sbatch or "SLURM_JOB_ID" in os.environ:
        return ""
    beside = Path(sbatch).resolve().parents[1] / "etc" / "slurm.conf"
    if "SLURM_CONF" not in os.environ and not any(map(os.path.exists, (*_SETTINGS, beside))):
        return ""  # its programs are installed, and no more
    return (
        "SLURM is here and no job is running, so this may be a login node: leave long work to a job "
        "(`fedmpi slurm` writes it, `sbatch` submits it), or ask for one with `salloc`"
    )
