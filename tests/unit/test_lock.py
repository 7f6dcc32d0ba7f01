"""One writer per result file, whatever becomes of the one before."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmpi.errors import OutputError, UserError
from fedmpi.mpi.watch import pulse
from fedmpi.storage.lock import writer_lock
from fedmpi.storage.reader import load_run

_HOLDER = """
import sys
from pathlib import Path
from fedmpi.storage.lock import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
print("released", flush=True)
"""


@pytest.fixture
def path(tmp_path) -> Path:
    """A result file to be."""
    return tmp_path / "run.h5"


@contextlib.contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds the lock until its input ends."""
    command = [sys.executable, "-c", _HOLDER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def assert_refused(path: Path, *parts: str) -> None:
    """The lock cannot be had, and the message has these parts."""
    with pytest.raises(UserError, match="another job is writing this file") as caught, writer_lock(path):
        pass
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_a_second_process_is_refused_and_told_by_whom(path):
    """While one process holds the lock, another gets a UserError that names process and host."""
    with holder(path) as other:
        assert_refused(path, f"process {other.pid} on {socket.gethostname()}")
        assert_refused(path, f"process {other.pid} ")  # the refusal took nothing away


def test_a_second_holder_in_this_process_is_refused(path):
    """The lock does not let its own process in twice."""
    with writer_lock(path):
        assert_refused(path, f"process {os.getpid()} ")


@pytest.mark.parametrize(("age", "is_dead"), [(0, False), (500, False), (700, True)])
def test_a_lock_of_another_host_may_be_forced_only_if_its_heartbeat_is_old(
    fedmpi_cli, small_config, tmp_path, age, is_dead
):
    """`resume --force-lock` takes over after ten minutes without a heartbeat, never before; without it the
    refusal names host, age and remedy.
    """
    words = "run", small_config, "--out", "run.h5"
    assert fedmpi_cli(*words).returncode == 0
    more = "resume", "run.h5", "--set", "run.num_rounds=8"
    lock = tmp_path / ".run.h5.lock"
    who = {"host": "far", "pid": 77, "time": "2024-01-01T00:00:00Z", "start": "5", "machine": "far boot",
           "slurm_job": "", "slurm_restart": 0, "held": 60.0, "silent": 1.0}  # fmt: skip
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"process 77 on far\n{json.dumps(who)}")
        file.flush()
        os.utime(lock, (time.time() - age,) * 2)
        refused = fedmpi_cli(*more)
        assert refused.returncode == 2
        assert "process 77 on far" in refused.stderr
        assert ("--force-lock" in refused.stderr) == is_dead
        forced = fedmpi_cli(*more, "--force-lock")
    assert forced.returncode == (0 if is_dead else 2), forced.stderr
    assert load_run(tmp_path / "run.h5").attributes["legs"].count('"utc"') == 1 + is_dead


def test_the_lock_is_free_after_release(path):
    """After the holder left, the next one gets the lock, and no lock file stays behind."""
    with holder(path) as other:
        other.stdin.close()
        assert other.stdout.readline() == "released\n"
        with writer_lock(path):
            assert_refused(path)
    assert list(path.parent.iterdir()) == []


def test_waiting_for_a_lock_is_progress(path):
    """However long `--wait` is: the watchdog sees that this rank does what it was asked for."""
    with holder(path):
        before = pulse.here.slot[pulse.PROGRESS]
        with pytest.raises(UserError), writer_lock(path, wait=0.5):
            pass
    assert pulse.here.slot[pulse.PROGRESS] > before


def test_a_lock_that_was_taken_over_is_not_removed(path):
    """Whoever ends after another job has taken the file over leaves that job's lock where it is."""
    lock = path.with_name(".run.h5.lock")
    with writer_lock(path):
        lock.unlink()
        lock.write_text("of another job")
    assert lock.read_text() == "of another job"


def test_the_lock_is_free_after_an_error(path):
    """An exception of the holder releases the lock."""
    with pytest.raises(ZeroDivisionError), writer_lock(path):
        raise ZeroDivisionError
    with holder(path):
        pass


def test_the_lock_is_free_after_the_holder_was_killed(path):
    """A kill -9 leaves the lock file but not the lock; the next holder puts its own name there."""
    with holder(path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        first = path.with_name(".run.h5.lock").read_text().splitlines()[0]
        assert first == f"process {other.pid} on {socket.gethostname()}"
        with writer_lock(path):
            assert_refused(path, f"process {os.getpid()} ")


def test_locks_of_different_files_do_not_meet(path):
    """Two result files in one folder can be written at once."""
    with holder(path), writer_lock(path.with_name("other.h5")):
        assert_refused(path)


def test_ranks_other_than_the_first_need_no_lock(path):
    """Without `enabled` nothing is locked and nothing refused."""
    with writer_lock(path), writer_lock(path, enabled=False):
        assert_refused(path)
    with writer_lock(path, enabled=False):
        assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_goes_on(path, monkeypatch, number):
    """Where flock is not supported, the run is not refused, and tidies up."""

    def flock(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with writer_lock(path):
        assert path.with_name(".run.h5.lock").exists()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_removed_between_opening_and_locking(path, monkeypatch, replaced):
    """A lock on a file that is no longer under its name is worth nothing: a fresh one is taken."""
    lock, real, calls = path.with_name(".run.h5.lock"), fcntl.flock, []

    def flock(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            lock.unlink()
            if replaced:
                lock.touch()
        real(*arguments)

    monkeypatch.setattr(fcntl, "flock", flock)
    with writer_lock(path):
        assert len(calls) == 2
        assert lock.read_text().startswith(f"process {os.getpid()} ")
        assert_refused(path)


def test_a_lock_file_removed_by_somebody_else_does_not_hurt(path):
    """The holder leaves without an error when its lock file is gone."""
    with writer_lock(path):
        path.with_name(".run.h5.lock").unlink()
    assert list(path.parent.iterdir()) == []


def test_missing_folders_are_made(tmp_path):
    """The folder of a result file need not exist."""
    with writer_lock(tmp_path / "new" / "folder" / "run.h5"):
        assert (tmp_path / "new" / "folder").is_dir()


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_an_unwritable_folder_is_an_output_error(path, monkeypatch, error):
    """A lock file that cannot be made is an OutputError, exit status 1, with the system's reason."""

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(OutputError, match=os.strerror(error)) as caught, writer_lock(path):
        pass
    assert caught.value.exit_code == 1
    assert str(path) in str(caught.value)


def test_a_file_in_place_of_the_folder_is_an_output_error(tmp_path):
    """A path through a file is an OutputError."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file"), writer_lock(tmp_path / "file" / "run.h5"):
        pass


def test_no_space_for_the_holders_name_is_an_output_error(path):
    """A lock file that can be made but not written, as on a full disk, is an OutputError too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        with pytest.raises(OutputError), writer_lock(path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
