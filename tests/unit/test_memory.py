"""What clients remember: rows by client id, on any number of ranks; and the refusal where it cannot fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.errors import UserError
from fedmpi.simulation import client_tables as memory
from fedmpi.simulation.client_tables import ClientMemory, check_room, table_bytes

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
    monkeypatch.setattr(memory, "available_bytes", lambda: 8_000_000_000)
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
    monkeypatch.setattr(memory, "available_bytes", lambda: room)
    check_room("amplified-scaffold", 2, 1_000, 2_218_314, 4)
