"""Checkpoints: what is stored comes back or is passed over; participation goes on as if uninterrupted."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi.config import Config, validate
from fedmpi.errors import OutputError, UserError
from fedmpi.participation import Participation, make_participation
from fedmpi.storage.checkpoint import (
    Checkpoint,
    find_checkpoints,
    newest_checkpoint,
    read_checkpoint,
    read_part,
    remove_checkpoints,
    write_checkpoint,
    write_part,
)
from fedmpi.storage.files import replacing
from tests.support.configs import SMALL

CHECKPOINT = Checkpoint(
    run_id="0123456789abcdef",
    completed=40,
    anchor_round=37,
    rows={"train": 40, "eval": 5, "participation": 400, "clients": 7, "params": 2},
    wall_time_s=0.1 + 0.2,
    digests={"data": "d" * 64, "model": "e" * 64, "participation": ""},
    global_params=np.array([0.1, -0.0, np.inf, np.nan, 5e-324]),
    accumulated=np.array([1e300, -1e-300, 3.0, 0.0, -7.5]),
    minibatches_drawn=np.array([0, 3, 2**40], np.int64),
    participation={"level": np.arange(7), "front": np.array(3), "queue": np.arange(0)},
)


@pytest.fixture
def run_path(tmp_path) -> Path:
    """The result file the checkpoints belong to; it need not exist."""
    return tmp_path / "run.h5"


def store(run_path: Path, *completed: int, **changes: object) -> list[Path]:
    """Checkpoints after these numbers of rounds; each one's model tells which it is."""
    return [
        write_checkpoint(
            run_path, replace(CHECKPOINT, completed=t, global_params=np.full(5, float(t)), **changes)
        )
        for t in completed
    ]


def assert_same(seen: Checkpoint, expected: Checkpoint) -> None:
    """Every field is the same, arrays bit for bit with type and shape."""

    def plain(value: object) -> object:
        if isinstance(value, np.ndarray | np.generic):
            return value.dtype.str, value.shape, value.tobytes()
        return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value

    for field in fields(Checkpoint):
        one, other = (plain(getattr(c, field.name)) for c in (seen, expected))
        assert one == other, field.name


def test_round_trip(run_path):
    """Every field comes back as it was, floats bit for bit."""
    assert_same(read_checkpoint(write_checkpoint(run_path, CHECKPOINT)), CHECKPOINT)


@pytest.mark.parametrize(
    "changes",
    [
        {"participation": {}},
        {"global_params": np.empty(0), "accumulated": np.empty(0)},
        {"minibatches_drawn": np.zeros(0, np.int64)},
        {"rows": {}},
        {"wall_time_s": 0.0, "completed": 0, "anchor_round": 0},
        {"completed": 10**12},
        {"global_params": np.arange(10.0)[::2]},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_round_trip_of_unusual_contents(run_path, changes):
    """Empty arrays and tables, large numbers and strided arrays come back too."""
    checkpoint = replace(CHECKPOINT, **changes)
    assert newest_checkpoint(run_path, checkpoint.run_id) == (None, [])
    write_checkpoint(run_path, checkpoint)
    seen, notes = newest_checkpoint(run_path, checkpoint.run_id)
    assert_same(seen, checkpoint)
    assert notes == []


def test_the_two_newest_are_kept(run_path):
    """By rounds, not by name or time: 9 is older than 10 and 100."""
    expected = {9: [9], 10: [10, 9], 100: [100, 10], 101: [101, 100]}
    for completed, kept in expected.items():
        store(run_path, completed)
        assert [read_checkpoint(p).completed for p in find_checkpoints(run_path)] == kept
    assert newest_checkpoint(run_path, CHECKPOINT.run_id)[0].completed == 101


def test_only_own_checkpoints_are_found_and_removed(run_path):
    """Files with similar names, and another result file's checkpoints, are left alone."""
    store(run_path, 4)
    others = store(run_path.with_name("run.h5.h5"), 5) + store(run_path.with_name("xrun.h5"), 6)
    for name in (
        "run.h5.checkpoint-",
        "run.h5.checkpoint-4.bak",
        "run.h5.checkpoint--4",
        "runxh5.checkpoint-7",
    ):
        others.append(run_path.with_name(name))
        others[-1].touch()
    assert [p.name for p in find_checkpoints(run_path)] == ["run.h5.checkpoint-4"]
    remove_checkpoints(run_path)
    assert find_checkpoints(run_path) == []
    assert sorted(run_path.parent.iterdir()) == sorted(others)


def test_without_a_checkpoint_there_is_none(run_path):
    """No checkpoint and no folder give None without a note."""
    assert newest_checkpoint(run_path, "x") == (None, [])
    assert newest_checkpoint(run_path.parent / "missing" / "run.h5", "x") == (None, [])


@pytest.mark.parametrize("in_memory", [1 << 40, 0], ids=["in memory", "on disk"])
def test_tables_of_clients_come_back_by_rows(run_path, monkeypatch, in_memory):
    """Large ones go to the disk by themselves and come back a few rows at a time; a damaged part is passed
    over with its checkpoint.
    """
    monkeypatch.setattr("fedmpi.storage.checkpoint._IN_MEMORY", in_memory)
    monkeypatch.setattr("fedmpi.storage.checkpoint._ROWS_BYTES", 200)
    table = np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32)
    for completed in (30, 40):
        arrays = {"clients": np.arange(50), "control": table}
        write_part(run_path, CHECKPOINT.run_id, completed, 0, 1, arrays)
        store(run_path, completed, parts=1)
    found, notes = newest_checkpoint(run_path, CHECKPOINT.run_id)
    pieces = list(read_part(run_path, found, 0))
    assert (found.completed, notes, len(pieces)) == (40, [], 13)
    assert np.concatenate([piece["clients"] for piece in pieces]).tolist() == list(range(50))
    assert np.concatenate([piece["control"] for piece in pieces]).tobytes() == table.tobytes()

    # Every byte is under the seal, and no partial file is left.
    part = run_path.with_name("run.h5.checkpoint-40.part-0")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    found, notes = newest_checkpoint(run_path, CHECKPOINT.run_id)
    assert found.completed == 30
    assert "part-0" in notes[0]
    assert not list(run_path.parent.glob(".*"))


def test_parts_of_another_number_of_ranks_are_not_taken(run_path):
    """One rank's newest checkpoint has a damaged part; two ranks go on from the one before, write their own
    parts of the same round and are killed before the checkpoint that counts them: the half of the clients
    that lies in part 0 now does not pass for all of them.
    """
    for completed in (30, 40):
        write_part(run_path, CHECKPOINT.run_id, completed, 0, 1, {"clients": np.arange(4)})
        store(run_path, completed, parts=1)
    for rank in (0, 1):
        write_part(run_path, CHECKPOINT.run_id, 40, rank, 2, {"clients": np.arange(rank, 4, 2)})
    found, notes = newest_checkpoint(run_path, CHECKPOINT.run_id)
    assert found.completed == 30
    assert "one of 2 parts, the checkpoint has 1" in notes[0]


# --- Damage -------------------------------------------------------------------------------------------


def flip_byte_of_an_array(path: Path) -> None:
    """One bit of the model."""
    data = bytearray(path.read_bytes())
    place = data.find(np.full(5, 8.0).tobytes())
    assert place > 0
    data[place + 3] ^= 1
    path.write_bytes(data)


def flip_byte_of_the_header(path: Path) -> None:
    """One digit of the number of rows."""
    data = path.read_bytes()
    assert data.count(b'"train": 40') == 1
    path.write_bytes(data.replace(b'"train": 40', b'"train": 41'))


def truncate(path: Path) -> None:
    """The second half is missing."""
    os.truncate(path, path.stat().st_size // 2)


def make_foreign(path: Path) -> None:
    """An HDF5 file of another program."""
    with h5py.File(path, "w") as file:
        file["x"] = [1, 2, 3]


@contextlib.contextmanager
def edited(path: Path) -> Iterator[h5py.File]:
    """A checkpoint changed as another program would have written it, checksum included."""
    with replacing(path, copy=True) as file:
        yield file


def set_odd_attributes(path: Path) -> None:
    """Attributes of our names, of other types."""
    with edited(path) as file:
        file.attrs.update(format=[1, 2, 3], format_version="newest")


def set_version(path: Path) -> None:
    """A checkpoint of a later fedmpi."""
    with edited(path) as file:
        file.attrs["format_version"] = 99


def add_array(path: Path) -> None:
    """One array too many."""
    with edited(path) as file:
        file["extra"] = 1.0


def drop_array(path: Path) -> None:
    """One array too few."""
    with edited(path) as file:
        del file["accumulated"]


def drop_header(path: Path) -> None:
    """No header at all."""
    with edited(path) as file:
        del file.attrs["header"]


def make_folder(path: Path) -> None:
    """A folder of that name."""
    path.unlink()
    path.mkdir()


DAMAGES = [
    flip_byte_of_an_array,
    flip_byte_of_the_header,
    truncate,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_text("round,client,weight\n"),
    make_foreign,
    set_odd_attributes,
    set_version,
    add_array,
    drop_array,
    drop_header,
    make_folder,
]
IDS = [
    "array",
    "header",
    "half",
    "empty",
    "text",
    "foreign",
    "odd",
    "version",
    "more",
    "less",
    "no header",
    "dir",
]


@pytest.mark.parametrize("damage", DAMAGES, ids=IDS)
def test_a_damaged_checkpoint_is_passed_over(run_path, damage: Callable[[Path], None]):
    """The newest is damaged: a note names it, and the one before is used."""
    _, newest = store(run_path, 4, 8)
    damage(newest)
    with pytest.raises(UserError, match="checkpoint"):
        read_checkpoint(newest)
    seen, notes = newest_checkpoint(run_path, CHECKPOINT.run_id)
    assert_same(seen, replace(CHECKPOINT, completed=4, global_params=np.full(5, 4.0)))
    assert len(notes) == 1
    assert str(newest) in notes[0]


@pytest.mark.parametrize("damage", DAMAGES, ids=IDS)
def test_two_damaged_checkpoints_leave_none(run_path, damage: Callable[[Path], None]):
    """With nothing good left there is a note on each."""
    paths = store(run_path, 4, 8)
    truncate(paths[0])
    damage(paths[1])
    seen, notes = newest_checkpoint(run_path, CHECKPOINT.run_id)
    assert seen is None
    assert [str(path) in note for path, note in zip(reversed(paths), notes, strict=True)] == [True, True]


def test_a_later_version_is_named(run_path):
    """A checkpoint of a later fedmpi is refused for its version, not as damaged."""
    (path,) = store(run_path, 8)
    set_version(path)
    with pytest.raises(UserError, match=r"version 99; accepted is .* up to version 1"):
        read_checkpoint(path)


def test_a_damaged_older_one_is_not_even_read(run_path):
    """Damage behind the newest good one gives no note."""
    older, _ = store(run_path, 4, 8)
    truncate(older)
    seen, notes = newest_checkpoint(run_path, CHECKPOINT.run_id)
    assert (seen.completed, notes) == (8, [])


def test_another_runs_checkpoint_is_passed_over(run_path):
    """A checkpoint that was left by another run under the same name is not used."""
    store(run_path, 4)
    (foreign,) = store(run_path, 8, run_id="fedcba9876543210")
    seen, notes = newest_checkpoint(run_path, CHECKPOINT.run_id)
    assert seen.completed == 4
    assert len(notes) == 1
    assert str(foreign) in notes[0]
    assert "another run" in notes[0]
    assert newest_checkpoint(run_path, "0" * 16)[0] is None


# --- Failing writes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("completed", [8, 12], ids=["same rounds again", "later"])
def test_a_failing_write_leaves_what_was_there(run_path, monkeypatch, function, completed):
    """A full disk is an OutputError, exit status 1; earlier checkpoints stay and nothing partial does."""
    paths = store(run_path, 4, 8)
    before = {path: path.read_bytes() for path in paths}

    def refuse(*arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        with pytest.raises(OutputError, match="No space left") as caught:
            store(run_path, completed)
    assert caught.value.exit_code == 1
    assert {path: path.read_bytes() for path in run_path.parent.iterdir()} == before
    store(run_path, completed)  # once there is space again
    assert newest_checkpoint(run_path, CHECKPOINT.run_id)[0].completed == completed


def test_a_checkpoint_that_cannot_be_removed_is_no_error(run_path, monkeypatch):
    """Removing old ones is a courtesy: a failure there does not stop the run."""
    store(run_path, 4, 8)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self.name.endswith("-4"):
            raise OSError(13, os.strerror(13))

    monkeypatch.setattr(Path, "unlink", refuse)
    store(run_path, 12)
    assert newest_checkpoint(run_path, CHECKPOINT.run_id)[0].completed == 12


def test_a_missing_folder_is_an_output_error(run_path):
    """A folder that went away in mid-run is an OutputError."""
    with pytest.raises(OutputError, match="No such file"):
        store(run_path.parent / "gone" / "run.h5", 4)


# --- Participation goes on ----------------------------------------------------------------------------

ROUNDS = 60
AVAILABILITIES = {
    "always": {},
    "periodic": {"availability": "periodic", "num_groups": 3, "rounds_per_group": 8},
    "offset": {
        "availability": "periodic",
        "num_groups": 2,
        "rounds_per_group": 11,
        "random_offset": "true",
    },
    "changing": {"availability": "who_is_there:changing"},
    "sometimes nobody": {"availability": "who_is_there:sometimes_nobody"},
    "strict": {"availability": "who_is_there:strict"},
    "bernoulli": {"availability": "bernoulli", "probability": 0.4},
    "markov": {"availability": "markov", "to_active": 0.1, "to_inactive": 0.2},
    "non-stationary": {"availability": "non-stationary", "probability": 0.5, "shape": "staircase"},
    "cyclic": {"availability": "cyclic", "probability": 0.4, "cycle_rounds": 11},
    "sinusoidal": {
        "availability": "sinusoidal",
        "probability": 0.4,
        "amplitude": 0.4,
        "rounds_per_day": 9,
    },
    "perhaps": {
        "availability": "periodic",
        "num_groups": 3,
        "rounds_per_group": 8,
        "probability": 0.6,
    },
}
SELECTIONS = {
    "all": {"selection": "all"},
    "uniform": {"selection": "uniform", "clients_per_round": 7},
    "permutation of 7": {"selection": "permutation", "clients_per_round": 7},
    "permutation of 10": {"selection": "permutation", "clients_per_round": 10},
    "permutation of 1": {"selection": "permutation", "clients_per_round": 1},
    "separation": {"selection": "minimum-separation", "clients_per_round": 7, "min_separation": 2},
}


def changing(t: int, num_clients: int, seed: int) -> list[int]:
    """Another set every five rounds, the first one again after fifteen."""
    return [n for n in range(num_clients) if (n + t // 5) % 3]


def sometimes_nobody(t: int, num_clients: int, seed: int) -> list[int]:
    """Nobody in two of seven rounds."""
    return list(range(t % 4, num_clients, 3)) if t % 7 < 5 else []


def strict(t: int, num_clients: int, seed: int) -> list[int]:
    """A function that knows its rounds only."""
    if not 0 <= t < ROUNDS:
        raise ValueError(f"no round {t}")
    return list(range(num_clients))


@pytest.fixture
def user_functions(monkeypatch) -> None:
    """The functions above as a module of a user."""
    module = types.ModuleType("who_is_there")
    for function in (changing, sometimes_nobody, strict):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def make(who: dict[str, object], seed: int = 3) -> Participation:
    """A fresh participation of 50 clients."""
    return make_participation(parsed(seed, *(f"participation.{k}={v}" for k, v in who.items())), 50)


@functools.cache
def parsed(seed: int, *overrides: str) -> Config:
    """The small config with another participation."""
    text = SMALL.replace('selection = "uniform"\nclients_per_round = 3\n', "")
    return validate.parse(text, "x.toml", ["data.num_clients=50", f"run.seed={seed}", *overrides])


def rounds(participation: Participation, first: int, last: int) -> list[tuple[list, list]]:
    """Clients and weights of rounds first <= t < last."""
    pairs = [participation.weights(t) for t in range(first, last)]
    return [(clients.tolist(), weights.tolist()) for clients, weights in pairs]


@pytest.mark.usefixtures("user_functions")
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("availability", AVAILABILITIES)
def test_participation_goes_on_from_its_state(availability, selection):
    """Stopped after any number of rounds, a new object with the state gives the rounds to come."""
    who = AVAILABILITIES[availability] | SELECTIONS[selection]
    whole = rounds(make(who), 0, ROUNDS)
    before, fresh_differs = make(who), 0
    for t in range(1, ROUNDS):
        assert rounds(before, t - 1, t) == whole[t - 1 : t]
        state = {name: np.copy(value) for name, value in before.state().items()}
        after = make(who)
        after.restore(t, state)
        last = min(t + 20, ROUNDS)
        assert rounds(after, t, last) == whole[t:last], f"after {t} rounds"
        fresh_differs += bool(state) and rounds(make(who), t, t + 1) != whole[t : t + 1]
    # Where a selection has a state it matters, or this test would prove nothing. That of an availability
    # saves computing all rounds again (test_markov.py shows that it is used).
    assert fresh_differs or all(name.startswith("availability.") for name in before.state())


@pytest.mark.usefixtures("user_functions")
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("availability", AVAILABILITIES)
def test_participation_goes_on_from_a_checkpoint_before_the_first_round(availability, selection):
    """A checkpoint after 0 rounds (a long first evaluation can be due for one) is a fresh start."""
    who = AVAILABILITIES[availability] | SELECTIONS[selection]
    after = make(who)
    after.restore(0, {name: np.copy(value) for name, value in make(who).state().items()})
    assert rounds(after, 0, ROUNDS) == rounds(make(who), 0, ROUNDS)


@pytest.mark.usefixtures("user_functions")
@pytest.mark.parametrize("availability", AVAILABILITIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_participation_goes_on_through_checkpoint_files(run_path, availability, seed):
    """Through a file, again and again every few rounds, the rounds are those of one piece."""
    who = AVAILABILITIES[availability] | SELECTIONS["permutation of 7"]
    whole = rounds(make(who, seed), 0, ROUNDS)
    pieces, participation, t = [], make(who, seed), 0
    for length in (1, 1, 2, 3, 5, 8, 13, 21, 6):
        pieces += rounds(participation, t, t + length)
        t += length
        store(run_path, t, participation=participation.state())
        participation = make(who, seed)
        participation.restore(t, newest_checkpoint(run_path, CHECKPOINT.run_id)[0].participation)
    assert t == ROUNDS
    assert pieces == whole


def test_a_schedule_needs_no_state(tmp_path):
    """A schedule gives the same rounds after a restart at any round."""
    path = tmp_path / "schedule.csv"
    path.write_text("round,client,weight\n" + "".join(f"{t},{t % 50},0.5\n" for t in range(0, ROUNDS, 2)))
    who = {"selection": "schedule", "schedule": path}
    whole = rounds(make(who), 0, ROUNDS)
    for t in range(ROUNDS):
        after = make(who)
        after.restore(t, make(who).state())
        assert rounds(after, t, ROUNDS) == whole[t:]
