"""Readers of files in a process of their own: a crash or a hang inside a library is seen as a failure."""

from __future__ import annotations

import functools
import multiprocessing
import resource
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

_SECONDS = 25.0  # a reader that takes longer hangs; a child process that tries a file may take 10
_MEMORY = 8 << 30  # a damaged size must not take the machine down


class Worker:
    """One process for many cases; a new one after a crash."""

    def __init__(self) -> None:
        self._process: multiprocessing.Process | None = None

    def ask(self, kind: str, *contents: bytes) -> str:
        """What became of a case: a word, or the text of an unexpected exception."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        self._pipe.send((kind, contents))
        try:
            if self._pipe.poll(_SECONDS):
                return self._pipe.recv()
            self.close()
            return f"hang: no answer after {_SECONDS:g} s"
        except EOFError:
            self._process.join()
            code, self._process = self._process.exitcode, None
            return f"crash: exit code {code}"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def serve(pipe: Connection) -> None:
    """In the process: read files until the other side is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with tempfile.TemporaryDirectory() as folder:
        while True:
            try:
                kind, contents = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(_READERS[kind](Path(folder), *contents))
            except Exception:
                pipe.send(f"unexpected {traceback.format_exc()}")


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _schedule_csv(folder: Path, data: bytes) -> str:
    return _schedule(_write(folder / "schedule.csv", data))


def _schedule_hdf5(folder: Path, data: bytes) -> str:
    return _schedule(_write(folder / "schedule.h5", data))


def _schedule(path: Path) -> str:
    from fedmpi.errors import UserError
    from fedmpi.participation.schedule import read_schedule

    try:
        schedule = read_schedule(path, 7)
    except UserError:
        return "refused"
    for t in (0, 1, 5, 2**62):  # what was accepted can be used
        clients, weights = schedule.weights(t)
        assert len(clients) == len(weights)
        assert (np.diff(clients) > 0).all()
        assert ((clients >= 0) & (clients < 7)).all()
        assert (np.isfinite(weights) & (weights > 0)).all()
    return "read"


def _trace_csv(folder: Path, data: bytes) -> str:
    from fedmpi.config import ParticipationConfig
    from fedmpi.errors import UserError
    from fedmpi.participation.composition import make_availability

    path = _write(folder / "trace.csv", data)
    config = ParticipationConfig(availability="trace", trace=str(path))
    try:
        trace = make_availability(config, 7, seed=1)
    except UserError:
        return "refused"
    for t in (0, 1, 5, 2**62, 3):
        clients = trace.available(t)
        assert (np.diff(clients) > 0).all()
        assert ((clients >= 0) & (clients < 7)).all()
    return "read"


def _checkpoint(folder: Path, damaged: bytes, newest: bytes, older: bytes) -> str:
    """The newest of two checkpoints was damaged."""
    from fedmpi.storage.checkpoint import newest_checkpoint

    expected, before = _whole_checkpoints(folder, newest, older)
    _write(folder / "run.h5.checkpoint-8", damaged)
    seen, notes = newest_checkpoint(folder / "run.h5", RUN_ID)
    if _same(seen, expected):
        assert notes == []
        return "the same"
    assert _same(seen, before), f"other contents: {seen}"
    assert len(notes) == 1
    return "older"


@functools.cache
def _whole_checkpoints(folder: Path, newest: bytes, older: bytes) -> list[object]:
    from fedmpi.storage.checkpoint import read_checkpoint

    files = {"run.h5.checkpoint-8": newest, "run.h5.checkpoint-4": older}
    return [read_checkpoint(_write(folder / name, data)) for name, data in files.items()]


def _same(a: object, b: object) -> bool:
    return _bits(vars(a)) == _bits(vars(b))


def _bits(value: object) -> object:
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    return value


def _run(folder: Path, data: bytes) -> str:
    from fedmpi.errors import UserError
    from fedmpi.storage.reader import Run, load_run, peek, read_attributes

    path = _write(folder / "run.h5", data)
    seen = peek(path)
    assert seen is None or seen.keys() == {"status", "rounds"}
    for read in (read_attributes, load_run):
        try:
            answer = read(path)
        except UserError:
            answer = None
    assert answer is None or isinstance(answer, Run)
    return "read" if answer else "refused"


def _data(folder: Path, damaged: bytes, whole: bytes) -> str:
    from fedmpi.data.prepared import read_dataset
    from fedmpi.errors import UserError

    expected = read_dataset(_write(folder / "data.h5", whole))
    try:
        seen = read_dataset(_write(folder / "data.h5", damaged))
    except UserError:
        return "refused"
    assert _bits(seen.arrays()) == _bits(expected.arrays())
    parts = [(d.num_classes, d.mean, d.std, d.names()) for d in (seen, expected)]
    assert parts[0] == parts[1]
    return "the same"


RUN_ID = "0123456789abcdef"
_READERS = {
    "schedule.csv": _schedule_csv,
    "schedule.h5": _schedule_hdf5,
    "trace.csv": _trace_csv,
    "checkpoint": _checkpoint,
    "run": _run,
    "data": _data,
}
