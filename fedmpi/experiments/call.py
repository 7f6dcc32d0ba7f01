"""What every call from Python has: MPI, its objects, its output, signals, and a caller left as it was."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmpi.config.user_code import passed_objects
from fedmpi.errors import EXIT_STOPPED, UserError
from fedmpi.errors.wording import in_python
from fedmpi.experiments.python_input import known_objects
from fedmpi.mpi import Comm, attached
from fedmpi.mpi.watch.beginning import beginning
from fedmpi.mpi.watch.watchdog import watching
from fedmpi.mpi.world import SIMULATE, launched_size
from fedmpi.simulation.stopping import StopRequest, is_interrupt, reason
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.writer import check_target

_one_at_a_time = threading.RLock()  # a callback may call again, another thread may not
_running: list[str] = []  # calls, the innermost last


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call from Python while it lasts."""

    named: dict[str, str]  # settings that name the objects passed
    comm: Comm
    stop: StopRequest
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # locks, temporary folders

    def input_file(self, path: str | Path) -> Path:
        """The name of a file to read."""
        return _path("path", path)

    def lock(self, path: Path, **how: Any) -> None:
        """Collective. Nobody else writes this result file; `how` as in `writer_lock`."""
        self.comm.try_on_root(lambda: self.held.enter_context(writer_lock(path, **how)))

    def watch(self, stall_minutes: float, path: Path, *, is_sweep: bool = False) -> None:
        """Collective. No rank may be silent for long from now on, until the call ends."""
        self.held.enter_context(watching(self.comm, stall_minutes, path, is_sweep=is_sweep))

    def output_file(self, out: str | Path | None, *, force: bool) -> Path:
        """Collective. The result file, locked by rank 0; without `out` one that is removed again."""
        if out is None:
            return self._temporary_folder() / "run.h5"
        path = _path("out", out)
        self.lock(path)
        self.comm.try_on_root(lambda: check_target(path, force=force))
        return path

    def output_folder(self, out: str | Path | None) -> Path:
        """Collective. The folder of a sweep; without `out` one that is removed again."""
        if out is None and self.comm.node_size < self.comm.size:
            raise UserError.on_all_ranks(
                f"sweep on {self.comm.size} ranks of several nodes: needs out=FOLDER on a file system that "
                "all of them see"
            )
        return self._temporary_folder() if out is None else _path("out", out)

    def _temporary_folder(self) -> Path:
        folder = self.comm.on_root(lambda: self.held.enter_context(_temporary_folder()))
        self.held.callback(self.comm.barrier)  # nobody looks into it any more when it is removed
        return Path(folder)

    def obey_signals(self, where: str) -> None:
        """Collective. Ctrl-C on any rank is a KeyboardInterrupt on all; other signals end the program."""
        code = max(self.comm.gather_on_all(self.stop.signal_code))
        if not code:
            return
        self.stop.obeyed = True
        if is_interrupt(code):
            error: BaseException = KeyboardInterrupt(where)
        else:
            error = SystemExit(EXIT_STOPPED)
            self.warn(f"{where}: {reason(code)}; the program ends with status {EXIT_STOPPED}", levels=1)
        error.agreed = True  # all ranks raise it
        raise error

    def warn(self, text: str, levels: int = 0) -> None:
        """Once, on rank 0, at the line that called fedmpi."""
        if self.comm.is_root:
            warnings.warn(text, stacklevel=4 + levels)


@contextlib.contextmanager
def begin(name: str, objects: dict[str, Any], *, listens: bool = True) -> Iterator[Call]:
    """Collective. The call fedmpi.`name`; afterwards torch and signal handlers are as they were."""
    from fedmpi.mpi.device import settings_restored  # here, since torch takes seconds to load

    stop = StopRequest()
    heard = stop.listening() if listens else contextlib.nullcontext()
    with _known(name, objects) as named, attached(name) as comm, settings_restored(), heard:
        call = Call(named=named, comm=comm, stop=stop)
        if comm.size > 1 and name in SIMULATE:  # in a notebook the user sees that nothing happens
            call.held.enter_context(beginning(comm))
        try:
            yield call
        except BaseException as error:
            if comm.size > 1 and not getattr(error, "agreed", False):
                call.held.pop_all()  # others may be elsewhere: nothing here may wait for them
            raise
        finally:
            call.held.close()


@contextlib.contextmanager
def begin_alone(name: str, objects: dict[str, Any]) -> Iterator[dict[str, str]]:
    """A call that needs no MPI: each rank may make it by itself. Gives the settings that name objects."""
    with _known(name, objects) as named:
        yield named


@contextlib.contextmanager
def _known(name: str, objects: dict[str, Any]) -> Iterator[dict[str, str]]:
    """The objects of one call, known while it lasts."""
    given = known_objects(objects)
    if not _one_at_a_time.acquire(blocking=False):
        raise UserError(
            f"fedmpi.{name}: another thread of this process is in a call of fedmpi; make one call after "
            "another, or use fedmpi.sweep, which does runs beside each other on several ranks"
        )
    _running.append(name)
    try:
        if len(_running) > 1 and launched_size() > 1:
            raise UserError(
                f"fedmpi.{name} inside fedmpi.{_running[-2]}: a callback runs on rank 0 alone, and cannot "
                "call for all ranks; call it afterwards"
            )
        with passed_objects(given) as named, in_python():
            yield named
    finally:
        _running.pop()
        _one_at_a_time.release()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """Rank 0: a folder that is removed again; also those of processes that were killed in a call."""
    for folder in Path(tempfile.gettempdir()).glob("fedmpi-*-*"):
        owner = re.fullmatch(r"fedmpi-(\d+)-\w+", folder.name)
        with contextlib.suppress(OSError):
            if owner and folder.stat().st_uid == os.getuid() and not Path(f"/proc/{owner[1]}").exists():
                shutil.rmtree(folder)
    with tempfile.TemporaryDirectory(prefix=f"fedmpi-{os.getpid()}-") as folder:
        yield folder


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise UserError.on_all_ranks(f"{name} = {value!r}: expected the name of a file or folder")
    return Path(value)
