"""Three ways to run `fedmpi ...` in a test: inside this process, in a process of its own, under mpirun.

Starting Python and torch takes seconds. A process of its own is for tests that are about the process: its
imports, its environment, its threads, its death.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests.support.configs import ROOT

_HANG_SECONDS = 300  # the longest job takes 30 by itself, some minutes on a machine with other work
_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)


def with_tests_on_the_path(environment: dict[str, str]) -> dict[str, str]:
    """This environment with changes, in which configs may name functions of tests.support.user_code.

    Always passed on as a whole: MPI, once started in this process, sets variables that a child would
    inherit from the C library, but which are not in `os.environ`.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path} | environment


def in_process(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """`fedmpi ...` in a folder, inside this process: what it prints, and the status it would end with."""
    from fedmpi.__main__ import main
    from tests.support.simulations import single_rank

    words = list(map(str, arguments))
    out, err = io.StringIO(), io.StringIO()
    single_rank()  # a command that starts MPI itself also ends it, and MPI starts once in a process
    with (
        _left_as_it_was(folder, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(words)
        except SystemExit as end:
            status = _status(end)
        except Exception:
            traceback.print_exc()
            status = 1
    return subprocess.CompletedProcess(["fedmpi", *words], status, out.getvalue(), err.getvalue())


def in_own_process(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """`fedmpi ...` in a folder, in a new process; never longer than three minutes."""
    return subprocess.run(
        [sys.executable, "-m", "fedmpi", *map(str, arguments)],
        cwd=folder, env=with_tests_on_the_path(environment), capture_output=True, text=True, timeout=180,
    )  # fmt: skip


def under_mpirun(
    folder: Path, ranks: int, *arguments: object, **environment: str
) -> subprocess.CompletedProcess:
    """`mpirun -n R fedmpi ...` in a folder; one that hangs is ended, and fails the test."""
    words = ["mpirun", "-n", str(ranks), sys.executable, "-m", "fedmpi", *map(str, arguments)]
    with subprocess.Popen(
        words, cwd=folder, env=with_tests_on_the_path(environment), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as job:  # fmt: skip
        try:
            out, err = job.communicate(timeout=_HANG_SECONDS)
        except subprocess.TimeoutExpired:
            job.terminate()  # which mpirun passes on; if it were killed, its ranks would spin for ever
            out, err = job.communicate(timeout=30)
            raise AssertionError(f"hang: {words} after {_HANG_SECONDS} s\n{out}\n{err}") from None
    return subprocess.CompletedProcess(words, job.returncode, out, err)


def _status(end: SystemExit) -> int:
    """The exit status that Python makes of `sys.exit(...)`."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


@contextlib.contextmanager
def _left_as_it_was(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """A folder and an environment as for a new process; afterwards all that a command sets is set back."""
    import torch

    before = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    threads, execvp = torch.get_num_threads(), os.execvp
    path = list(sys.path)
    os.environ.update(environment)
    os.execvp = _refuse_to_be_replaced
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.execvp = execvp
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
        sys.path[:] = path
        _forget_modules_in(folder)


def _refuse_to_be_replaced(file: str, words: list[str]) -> NoReturn:
    raise AssertionError(f"{words}: would replace the process of the tests; run it in a process of its own")


def _forget_modules_in(folder: Path) -> None:
    """Modules of a user's folder are imported anew next time, as by a new process."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""  # a string, since there are thousands
        if file.startswith(f"{folder}{os.sep}") and not file.startswith(f"{ROOT}{os.sep}"):
            del sys.modules[name]
