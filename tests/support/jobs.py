"""Jobs under mpirun in the background, for tests that stop, signal or kill them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedmpi.storage.reader import peek
from tests.support.commands import with_tests_on_the_path

SECONDS = 15.0  # "within seconds", also on two busy cores


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Look again and again; fail if it does not come."""
    limit = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < limit, f"not after {seconds:g} s: {what}"
        time.sleep(0.02)


def seconds_since_the_fault(folder: Path) -> float:
    """Since a model or an availability of user_code.py began to misbehave in a folder."""
    return time.time() - (folder / "fault").stat().st_mtime


def processes_in(folder: Path) -> dict[int, bool]:
    """Process ids of jobs that work in a folder, and whether each is a rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0]:  # not a zombie
                    is_launcher = words[0].endswith((b"mpirun", b"prterun"))
                    found[int(entry.name)] = not is_launcher and b"fedmpi" in words
        except OSError:
            continue
    return found


def assert_all_ended(folder: Path) -> None:
    """Within seconds after the fault no process is left in a folder; mpirun may end before its ranks."""
    left = SECONDS - seconds_since_the_fault(folder)
    wait_until(lambda: not processes_in(folder), "the end of all ranks", left)
    assert seconds_since_the_fault(folder) < SECONDS


def has_rounds(path: Path, rounds: int) -> bool:
    """Whether a result file has at least so many rounds."""
    found = peek(path)
    return found is not None and found["rounds"] >= rounds


class Job:
    """`mpirun -n R fedmpi ...` in the background, in a process group of its own; without R, no mpirun."""

    def __init__(
        self,
        folder: Path,
        ranks: int | None,
        *arguments: object,
        sleep: float = 0.0,
        **environment: str,
    ) -> None:
        launcher = ["mpirun", "-n", str(ranks)] if ranks else []
        self.process = subprocess.Popen(
            [*launcher, sys.executable, "-m", "fedmpi", *map(str, arguments)],
            cwd=folder, env=with_tests_on_the_path({"FEDMPI_TEST_SLEEP": str(sleep), **environment}),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.folder = folder

    def wait_for_rounds(self, rounds: int) -> None:
        """Until r.h5 has more than so many rounds, or the job ends."""
        wait_until(
            lambda: self.process.poll() is not None or has_rounds(self.folder / "r.h5", rounds + 1),
            f"{rounds + 1} rounds",
        )

    def processes(self) -> dict[int, bool]:
        """Process ids of the job, and whether each is a rank."""
        return processes_in(self.folder)

    def ranks(self) -> list[int]:
        """Process ids of the ranks."""
        return [pid for pid, is_rank in self.processes().items() if is_rank]

    def kill_all(self) -> None:
        """SIGKILL to every process of the job, also to those just being born."""
        while alive := self.processes():
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def end(self, seconds: float = 60) -> tuple[int, str]:
        """Exit status and output; it is a failure if the job has not ended in time."""
        output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, output
