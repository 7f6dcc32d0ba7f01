"""What clients remember: rows by client id, on any number of ranks; and the refusal where it cannot fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.errors import UserError
from fedmpi.mpi import node_memory
from fedmpi.mpi.node_memory import available_bytes, room_for_rank
from fedmpi.simulation.client_tables import ClientMemory, check_room, check_vectors, table_bytes

WIDTH, CLIENTS = 3, 11


def owned(rank: int, size: int) -> np.ndarray:
    """Clients of a rank."""
    return np.arange(rank, CLIENTS, size)


def make(rank: int = 0, size: int = 1, names: tuple[str, ...] = ("a", "b")) -> ClientMemory:
    """An empty memory of a rank."""
    return ClientMemory(names, len(owned(rank, size)), size, torch.zeros(WIDTH))


def rows(clients, name: str) -> torch.Tensor:
    """Rows that tell whose they are and of which table."""
    return torch.tensor([[n + 1.0, ord(name), n * 0.5] for n in clients], dtype=torch.float32).reshape(
        -1, WIDTH
    )


def fill(kept: ClientMemory, clients) -> None:
    """Store the telling rows of some clients."""
    clients = np.array(clients)
    kept.store(clients, {name: rows(clients, name) for name in "ab"})


def test_rows_are_zero_before_they_are_stored():
    """A client that was never there remembers zeros, in every table."""
    found = make().fetch(np.array([4, 0]))
    assert set(found) == {"a", "b"}
    assert all(torch.equal(value, torch.zeros(2, WIDTH)) for value in found.values())


def test_rows_come_back_in_the_order_asked_for():
    """Whatever order they were stored in, and however the table had to grow."""
    kept = make()
    for some in ([7], [2, 10], [0, 1, 3, 4, 5, 6, 8, 9]):
        fill(kept, some)
    order = np.array([10, 3, 7, 0])
    found = kept.fetch(order)
    assert all(torch.equal(found[name], rows(order, name)) for name in "ab")


def test_fetched_rows_are_copies():
    """What a client does to them counts only once they are stored."""
    kept = make()
    fill(kept, [1])
    kept.fetch(np.array([1]))["a"].zero_()
    assert torch.equal(kept.fetch(np.array([1]))["a"], rows([1], "a"))


def test_no_tables_cost_nothing():
    """Methods without tables neither fetch nor store nor grow."""
    kept = make(names=())
    assert kept.fetch(np.array([1])) == {}
    kept.store(np.array([1]), {})
    assert kept.dump()["clients"].tolist() == []


@pytest.mark.parametrize("ranks_after", [1, 2, 3, 4])
@pytest.mark.parametrize("ranks_before", [1, 2, 3])
def test_dumps_are_taken_up_on_any_number_of_ranks(ranks_before, ranks_after):
    """The parts of all ranks, loaded by all ranks of another number, give every client its rows."""
    seen = [0, 1, 2, 5, 6, 9, 10]  # the others were never there
    parts = []
    for rank in range(ranks_before):
        kept = make(rank, ranks_before)
        fill(kept, [n for n in reversed(owned(rank, ranks_before)) if n in seen])
        parts.append(kept.dump())
    for rank in range(ranks_after):
        kept, mine = make(rank, ranks_after), owned(rank, ranks_after)
        for part in parts:
            kept.load(part, rank)
        dumped = kept.dump()
        assert sorted(dumped["clients"].tolist()) == [n for n in mine if n in seen]
        found = kept.fetch(mine)
        known = torch.tensor([float(n in seen) for n in mine])[:, None]
        assert all(torch.equal(found[name], rows(mine, name) * known) for name in "ab")


def test_working_precision_is_kept():
    """A float64 run remembers float64."""
    kept = ClientMemory(("a",), 2, 1, torch.zeros(1, dtype=torch.float64))
    kept.store(np.array([1]), {"a": torch.tensor([[1 + 1e-15]], dtype=torch.float64)})
    assert kept.dump()["a"].item() == 1 + 1e-15


def test_tables_that_cannot_fit_are_refused_with_the_arithmetic(monkeypatch):
    """The message names the method, every factor, the product, what is there, and what would help."""
    monkeypatch.setattr(node_memory, "available_bytes", lambda: 8_000_000_000)
    assert table_bytes(2, 1_000, 2_218_314, 4) == 17_746_512_000
    with pytest.raises(UserError) as refused:
        check_room("amplified-scaffold", 2, 1_000, 2_218_314, 4)
    assert str(refused.value) == (
        'config algorithm.name = "amplified-scaffold": keeps 2 x 1,000 clients x 2,218,314 parameters '
        "x 4 bytes = 17.7 GB on a rank, 8.0 GB are available; use more ranks, fewer clients or a smaller "
        "model"
    )


@pytest.mark.parametrize("room", [None, 17_746_512_000])
def test_tables_that_fit_are_accepted(monkeypatch, room):
    """Also where the system does not tell."""
    monkeypatch.setattr(node_memory, "available_bytes", lambda: room)
    check_room("amplified-scaffold", 2, 1_000, 2_218_314, 4)


GPU = torch.device("cuda", 1)


@pytest.fixture
def gpu_memory(monkeypatch):
    """A GPU with 8 GB free; torch keeps 3 GB of which 2 GB are in use."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 10**9, 10**12))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 10**9)
    monkeypatch.setattr(node_memory, "_WORKSPACES", 0)


def test_tables_on_a_gpu_must_fit_there(monkeypatch, gpu_memory):
    """Whatever the host has: they lie on the GPU, which its ranks share."""
    monkeypatch.setattr(node_memory, "available_bytes", lambda: 10**15)
    assert room_for_rank(GPU) == 9 * 10**9
    assert room_for_rank(GPU, 4) == 3 * 10**9
    with monkeypatch.context() as patch:  # what each rank needs besides
        patch.setattr(node_memory, "_WORKSPACES", 10**9)
        assert room_for_rank(GPU, 4) == 2 * 10**9
    check_room("scaffold", 1, 9_000, 250_000, 4, device=GPU)
    with pytest.raises(UserError) as refused:
        check_room("scaffold", 1, 10_000, 250_000, 4, device=GPU)
    assert str(refused.value) == (
        'config algorithm.name = "scaffold": keeps 1 x 10,000 clients x 250,000 parameters x 4 bytes = '
        "10.0 GB on a rank, 9.0 GB are available on cuda:1; use more GPUs, fewer clients or a smaller model"
    )
    with pytest.raises(
        UserError, match=r"3\.0 GB are available on cuda:1 to each of its 4 ranks; use more GPUs"
    ):
        check_room("scaffold", 1, 9_000, 250_000, 4, device=GPU, sharing=4)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_ranks_of_a_node_share_its_memory(monkeypatch, device):
    """8 GB are 2 GB for each of four ranks; more ranks there would not help."""
    monkeypatch.setattr(node_memory, "available_bytes", lambda: 8 * 10**9)
    check_room("mifa", 1, 1_000, 1_000_000, 8, device=device)
    with pytest.raises(
        UserError, match=r"2\.0 GB are available on this node to each of its 4 ranks; use more nodes"
    ):
        check_room("mifa", 1, 1_000, 1_000_000, 8, device=device, sharing=4)


UNLIMITED = "9223372036854771712\n"  # of version 1
VERSION_2 = {
    "": {"memory.stat": "inactive_file 5\n"},  # the root has neither limit nor use
    "job_1": {
        "memory.max": "1000\n",
        "memory.current": "700\n",
        "memory.stat": "anon 1\ninactive_file 50\n",
    },
    "job_1/step_0": {"memory.max": "max\n", "memory.current": "1\n", "memory.stat": ""},
}
VERSION_1 = {
    "memory": {"memory.limit_in_bytes": UNLIMITED, "memory.usage_in_bytes": "5\n", "memory.stat": ""},
    "memory/job_1": {
        "memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "700\n",
        "memory.stat": "inactive_file 7\ntotal_inactive_file 50\n",
    },
    "memory/job_1/step_0": {
        "memory.limit_in_bytes": "900\n", "memory.usage_in_bytes": "100\n", "memory.stat": "",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/job_1/step_0\n", VERSION_2, [350]),
        ("9:cpu:/\n4:memory:/job_1/step_0\n0::/\n", VERSION_1, [800, 350, int(UNLIMITED) - 5]),
        ("0::/gone/step_0\n", VERSION_2, []),  # a container shows a part of the tree
        ("0::/job_1\n", {"job_1": {"memory.max": "much\n", "memory.current": "1\n"}}, []),
        ("nonsense\n", VERSION_2, []),
    ],
)
def test_limits_of_slurm_and_containers_are_known(tmp_path, own, files, expected):
    """What each control group above the process leaves; files that can be dropped do not count as used."""
    for folder, contents in files.items():
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
        for name, text in contents.items():
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert list(node_memory._of_groups(tmp_path, tmp_path / "own")) == expected
    assert list(node_memory._of_groups(tmp_path, tmp_path / "missing")) == []


@pytest.mark.parametrize(
    ("machine", "groups", "expected"),
    [([500], [350, 800], 350), ([300], [350], 300), ([], [350], 350), ([300], [-5], 0), ([], [], None)],
)
def test_the_least_is_what_is_available(monkeypatch, machine, groups, expected):
    """Of the machine and all groups; None if nothing is told."""
    monkeypatch.setattr(node_memory, "_of_machine", lambda: iter(machine))
    monkeypatch.setattr(node_memory, "_of_groups", lambda: iter(groups))
    assert available_bytes() == expected
    assert room_for_rank(sharing=2) == (None if expected is None else expected // 2)


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return 4096 * int(file.read().split()[1])


def test_a_table_is_allocated_once_and_filled_as_clients_come():
    """400 MB for all clients, at one place for good; only rows in use take memory."""
    before = resident()
    kept = ClientMemory(("a",), 100_000, 1, torch.zeros(1000))
    where = kept._tables["a"].data_ptr()
    for first in range(0, 1000, 100):
        clients = np.arange(first, first + 100)
        kept.store(clients, {"a": torch.ones(100, 1000)})
    assert resident() - before < 100e6
    assert kept._tables["a"].data_ptr() == where
    assert kept._tables["a"].shape == (100_000, 1000)
    assert kept.fetch(np.array([999, 1000]))["a"].sum(dim=1).tolist() == [1000.0, 0.0]
    # On another device the whole table is there at once, so that it cannot fail to fit in mid-run.
    assert ClientMemory(("a",), 7, 1, torch.zeros(3, device="meta"))._tables["a"].shape == (7, 3)


def test_a_model_that_does_not_fit_with_its_total_is_refused(monkeypatch):
    """With the arithmetic, before anything of that size is allocated."""
    monkeypatch.setattr("fedmpi.simulation.client_tables.room_for_rank", lambda device, sharing: 10**9)
    check_vectors(5_000_000, 4, sharing=2)
    with pytest.raises(
        UserError, match=r"25,000,000 parameters x .* = 2\.0 GB on a rank, 1\.0 GB are avail"
    ):
        check_vectors(25_000_000, 4, sharing=2)


def test_a_model_that_cannot_be_built_is_refused_before_it_is(fedmpi_cli, small_config, tmp_path):
    """8 trillion parameters: `check` and `run` say so; torch gave a traceback, or the system a kill."""
    for words in (["check", small_config], ["run", small_config, "--out", "r.h5"]):
        done = fedmpi_cli(*words, "--set", 'model.name="mlp"', "--set", "model.hidden=[2000000,4000000]")
        assert done.returncode == 2, done.stderr
        assert "parameters x 16 bytes (module, values and x_0) = " in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "r.h5").exists()
