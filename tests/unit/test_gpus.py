"""Ranks on GPUs, on a machine without any: torch is told that it has some."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fedmpi.config import may_change, validate
from fedmpi.config.effects import unused_keys
from fedmpi.errors import UserError
from fedmpi.experiments.lifecycle import device_of
from fedmpi.experiments.provenance import _place
from fedmpi.mpi import cuda_aware, device
from fedmpi.mpi.comm import import_mpi
from fedmpi.mpi.device import choose_device, ranks_sharing, settings_restored
from fedmpi.simulation.clock import peak_device_memory_mb
from tests.support.simulations import single_rank

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
SMALL = """
[run]
num_rounds = 3
[data]
dataset = "fashion-mini"
num_clients = 10
[model]
name = "logistic"
[algorithm]
local_lr = 0.1
local_steps = 1
"""
ABOUT_GPUS = (
    *device._SHOWN,
    *device._GIVEN_BY_SLURM,
    "SLURM_JOB_ID",
    "CUDA_MPS_PIPE_DIRECTORY",
    "MPICH_GPU_SUPPORT_ENABLED",
)


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Pretend to have a number of GPUs; torch and the environment are left as they were."""
    for name in ABOUT_GPUS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device, "_MPS_PIPES", tmp_path / "none")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")

    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"id-{device.index}")
        )

    with settings_restored():
        yield pretend


def config(*overrides: str):
    """A small experiment."""
    return validate.parse(SMALL, "c.toml", overrides)


# What is set on a rank with a GPU.


def test_the_host_of_a_gpu_is_set_up_too(gpus, monkeypatch):
    """Threads, freed memory and tiny numbers: the server's vectors are on the host, whatever trains."""
    calls = []
    monkeypatch.setattr(device, "_keep_freed_memory", lambda: calls.append("kept"))
    gpus(2)
    torch.set_num_threads(2)
    torch.set_flush_denormal(False)
    assert choose_device("auto", 1) == GPU
    assert torch.get_num_threads() == 1
    assert device._flushes_tiny_numbers()
    assert calls == ["kept"]
    choose_device("auto", 1, threads=3)
    assert torch.get_num_threads() == 3


def settings() -> tuple[bool, ...]:
    """Deterministic kernels, TF32 in convolutions, TF32 in products."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
    )


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
def test_the_config_decides_on_determinism_and_tf32(gpus, deterministic, tf32):
    """run.deterministic and run.tf32 reach torch, and torch is left as it was."""
    gpus(1)
    torch.use_deterministic_algorithms(not deterministic)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not tf32
    run = config(f"run.deterministic={str(deterministic).lower()}", f"run.tf32={str(tf32).lower()}").run
    with settings_restored():
        assert device_of(SimpleNamespace(device_rank=0, size=1), run).type == "cuda"
        assert settings() == (deterministic, tf32, tf32)
    assert settings() == (not deterministic, not tf32, not tf32)


def test_both_keys_concern_gpus_only(gpus):
    """A CPU takes no notice, `check` says so, and they cannot change in mid-run as others can."""
    gpus(0)
    before = settings()
    choose_device("cpu", 0, deterministic=not before[0], tf32=not before[1])
    assert settings() == before
    assert config().run.deterministic is True
    assert config().run.tf32 is False
    changed = ("run.deterministic=false", "run.tf32=true")
    assert unused_keys(config(*changed)) == []
    assert [note.split()[0] for note in unused_keys(config(*changed, "run.device=cpu"))] == [
        "run.deterministic",
        "run.tf32",
    ]
    assert not {"run.deterministic", "run.tf32"} & set(may_change())


# GPUs that SLURM gave and torch does not see.


@pytest.mark.parametrize(
    "given",
    [
        *({"SLURM_GPUS_ON_NODE": "2"}, {"SLURM_JOB_GPUS": "0"}, {"SLURM_STEP_GPUS": "0,1"}),
        *({"SLURM_GPUS_PER_NODE": "a100:4"}, {"SLURM_GPUS_PER_TASK": "1"}),
        *({name: "0,1", "SLURM_JOB_ID": "7"} for name in device._SHOWN),
    ],
    ids=lambda given: next(iter(given)),
)
def test_gpus_that_slurm_gave_are_not_left_idle(gpus, monkeypatch, given):
    """Refused, with the variable, torch's version and three ways out; on request the CPU is used."""
    gpus(0)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused:
        choose_device("auto", 0)
    name, value = next(iter(given.items()))
    for part in (
        'config run.device = "auto"', f"SLURM gave GPUs ({name}={value})", torch.__version__,
        "install a CUDA build of torch", "ask SLURM for no GPUs", 'run.device = "cpu"',
    ):  # fmt: skip
        assert part in str(refused.value)
    assert choose_device("cpu", 0) == CPU
    gpus(2)
    assert choose_device("auto", 1) == GPU


@pytest.mark.parametrize(
    "given",
    [
        *({"SLURM_JOB_ID": "7"}, {"SLURM_GPUS_ON_NODE": "0"}, {"SLURM_JOB_GPUS": ""}),
        *({"SLURM_GPUS_PER_TASK": "0"}, {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}),
    ],
)
def test_without_gpus_of_slurm_nothing_is_refused(gpus, monkeypatch, given):
    """A job that asked for none computes on the CPU."""
    gpus(0)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert choose_device("auto", 0) == CPU


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_gpus_shown_without_slurm_are_told(gpus, monkeypatch, name):
    """Also those of AMD, which the torch of PyPI does not know."""
    gpus(0)
    monkeypatch.setenv(name, "0,1")
    assert choose_device("auto", 0) == CPU
    assert f"{name}=0,1, but torch {torch.__version__} sees no GPU" in device.missed_gpus("auto", 0)
    assert "ROCm build" in device.missed_gpus("auto", 0)
    assert device.missed_gpus("auto", 2) == device.missed_gpus("cpu", 0) == ""
    monkeypatch.setenv(name, "-1")
    assert device.missed_gpus("auto", 0) == ""


# Ranks that share a GPU.


def ranks_of(hosts: list[tuple[str, str]], rank: int, node_ranks: int, device_rank: int):
    """A communicator whose ranks say where they are."""
    return SimpleNamespace(
        host=hosts[rank][0],
        gather_on_all=lambda own: [own if n == rank else where for n, where in enumerate(hosts)],
        node_ranks=node_ranks,
        device_rank=device_rank,
    )


def test_ranks_that_share_memory_are_counted(gpus):
    """Those with the same GPU of the same host; on CPUs all of the node, other groups too."""
    gpus(1)
    hosts = [("n1", "id-1"), ("n1", "id-1"), ("n1", "id-2"), ("n2", "id-1")]
    assert ranks_sharing(ranks_of(hosts, 0, 3, 0), GPU) == 2
    assert ranks_sharing(ranks_of(hosts, 3, 1, 0), GPU) == 1
    assert ranks_sharing(ranks_of(hosts, 0, 8, 0), CPU) == 8
    gpus(2)  # a group of one rank on a node where three ranks use two GPUs by turns
    assert ranks_sharing(ranks_of([("n1", "id-1")], 0, 3, 1), GPU) == 1
    assert ranks_sharing(ranks_of([("n1", "id-0")], 0, 3, 2), torch.device("cuda", 0)) == 2


def test_groups_know_how_many_ranks_their_node_has():
    """Groups share the node's memory, so the number of the whole job is passed on."""
    whole = single_rank()
    assert whole.node_ranks == whole.node_size == 1
    whole.node_ranks = 7
    for part in (whole.first(1), whole.split(0)):
        assert part.node_ranks == 7
        assert ranks_sharing(part, CPU) == 7
        part.free()


def test_a_rank_tells_whether_others_would_wait_for_its_gpu(gpus, monkeypatch, tmp_path):
    """NVIDIA's GPUs compute for one process at a time unless MPS runs, which a pipe or a variable tells."""
    gpus(2)
    comm = single_rank()
    assert _place(comm, config(), GPU).takes_turns
    assert not _place(comm, config(), CPU).takes_turns
    monkeypatch.setattr(device, "_MPS_PIPES", tmp_path)
    assert not _place(comm, config(), GPU).takes_turns
    monkeypatch.setattr(device, "_MPS_PIPES", tmp_path / "none")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
    assert not _place(comm, config(), GPU).takes_turns
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not _place(comm, config(), GPU).takes_turns


# An MPI that takes pointers to GPU memory.


def fake_library(**functions):
    """An MPI library with these functions only."""
    return SimpleNamespace(**functions)


def mpich_says(answer: int, status: int = 0):
    """MPICH's query, which writes its answer to a pointer."""

    def query(kind: int, result) -> int:
        result._obj.value = answer * (kind == 0)
        return status

    return query


@pytest.mark.parametrize(
    ("functions", "name", "environment", "expected"),
    [
        ({"MPIX_Query_cuda_support": lambda: 1}, "Open MPI v5", {}, True),
        ({"MPIX_Query_cuda_support": lambda: 0}, "Open MPI v5", {}, False),
        ({"MPIX_GPU_query_support": mpich_says(1)}, "MPICH Version: 4.3", {}, True),
        ({"MPIX_GPU_query_support": mpich_says(0)}, "MPICH Version: 4.3", {}, False),
        ({"MPIX_GPU_query_support": mpich_says(1, status=1)}, "MPICH Version: 4.3", {}, None),
        ({}, "MPICH Version: 3.4", {"MPIR_CVAR_ENABLE_GPU": "1"}, True),
        ({}, "MPICH Version: 3.4", {"MPIR_CVAR_ENABLE_GPU": "0"}, False),
        ({}, "MPICH Version: 3.4", {}, None),
        ({}, "Intel(R) MPI Library 2021.14", {"MPIR_CVAR_ENABLE_GPU": "1"}, None),
        ({"MPIX_GPU_query_support": mpich_says(1)}, "MPI VERSION    : CRAY MPICH version 8.1", {}, False),
        ({}, "MPI VERSION    : CRAY MPICH version 8.1", {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
    ],
)
def test_mpi_is_asked_whether_it_takes_device_pointers(monkeypatch, functions, name, environment, expected):
    """By the function of each MPI, else by the environment; None if neither tells."""
    for variable in ("MPIR_CVAR_ENABLE_GPU", "MPICH_GPU_SUPPORT_ENABLED"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    mpi = SimpleNamespace(__file__="mpi.so", Get_library_version=lambda: name)
    monkeypatch.setattr(cuda_aware, "import_mpi", lambda: mpi)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: fake_library(**functions))
    assert cuda_aware.cuda_aware_mpi() is expected


def test_the_mpi_of_this_environment_answers():
    """Open MPI and MPICH of PyPI know that they have no CUDA: found in the library that mpi4py loaded."""
    single_rank()  # starts MPI
    library = import_mpi().Get_library_version()
    if not library.startswith(("Open MPI", "MPICH")):
        pytest.skip(f"another MPI: {library}")
    assert cuda_aware.cuda_aware_mpi() in (True, False)


@pytest.mark.parametrize("answer", [True, False, None])
def test_an_mpi_without_device_pointers_is_refused_before_the_run(gpus, monkeypatch, answer):
    """No: a sentence instead of a segmentation fault. Not known: a note at the start. Yes: neither."""
    gpus(2)
    monkeypatch.setattr(cuda_aware, "cuda_aware_mpi", lambda: answer)
    wanted, comm = config("run.cuda_aware=true"), SimpleNamespace(device_rank=1, size=2, rank=1, host="n1")
    if answer is False:
        with pytest.raises(
            UserError, match=r"config run\.cuda_aware = true: this MPI \(.+\) cannot take"
        ) as no:
            device_of(comm, wanted.run)
        assert "use false" in str(no.value)
        assert "CUDA-aware MPI" in str(no.value)
    else:
        assert device_of(comm, wanted.run) == GPU
    assert ("does not tell whether" in _place(comm, wanted, GPU).note) == (answer is None)
    # Where no buffer of a GPU is handed to MPI, the answer does not matter.
    for other, size in ((config(), 2), (wanted, 1)):
        alone = SimpleNamespace(device_rank=1, size=size, rank=0, host="n1")
        assert device_of(alone, other.run) == GPU
        assert _place(alone, other, GPU).note == ""
    gpus(0)
    assert device_of(comm, wanted.run) == CPU


# Memory of a GPU.


def test_the_peak_of_a_gpu_is_told(monkeypatch):
    """In the megabytes of `peak_memory_mb`; 0 on a CPU, which has no memory of its own."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20 * (device == GPU))
    assert peak_device_memory_mb(GPU) == 3.0
    assert peak_device_memory_mb(CPU) == 0.0


def test_tf32_by_torch_s_new_names():
    """torch refuses to answer by the old names what was set by the new: both are left as they were."""
    code = """
import torch
from fedmpi.mpi.device import settings_restored
controls = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
for precision in ("tf32", "ieee"):
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "ieee"
    before = [control.fp32_precision for control in controls]
    with settings_restored():
        for control in controls:
            control.fp32_precision = "tf32" if precision == "ieee" else "ieee"
    assert [control.fp32_precision for control in controls] == before, (precision, before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_products_that_cannot_be_deterministic_are_refused(monkeypatch):
    """cuBLAS reads its setting once: a program that computed before is told what to do."""
    message = "Deterministic behavior ... set CUBLAS_WORKSPACE_CONFIG=:4096:8 ..."

    def refuse(*args: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(torch, "mm", refuse)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with pytest.raises(UserError, match=r"set it before Python starts, or use run.deterministic = false"):
        device._require_working_products(torch.device("cpu"))
