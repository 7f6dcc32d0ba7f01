"""Ranks whose launcher was killed must not live on: they end in seconds, with a checkpoint if they can.

A launcher that dies by SIGKILL tells nobody. Some MPIs notice, others leave the ranks computing for ever,
with the lock of the result file. So each rank looks every second whether its parent process, the launcher
or its daemon on this host, is still the same, and whether srun, where it is on this host, still listens.
Invariant: a rank that was not started by a launcher is never ended by this.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

from fedmpi.errors import EXIT_STOPPED

_LOOK_SECONDS = 1.0
_CHECKPOINT_SECONDS = 8.0  # to end by itself, with a checkpoint, before it is ended
_LAUNCHERS = (
    "mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "mpiexec.hydra", "hydra_pmi_proxy"
)  # fmt: skip
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp

_watched: list[threading.Thread] = []  # once in a process


def end_with_launcher(launched_size: int, rank: int) -> None:
    """Watch the launcher from now on; `launched_size` ranks were started by one."""
    if launched_size > 1 and not _watched:
        _watched.append(threading.Thread(target=_watch, args=(rank,), name="fedmpi launcher", daemon=True))
        _watched[0].start()


def _watch(rank: int) -> None:
    """Until the launcher is gone."""
    parent, port = os.getppid(), _port_of_srun()
    while not (why := _gone(parent, port)):
        threading.Event().wait(_LOOK_SECONDS)

    # As if SLURM or the user ended the job: the round is finished, a checkpoint written.
    with contextlib.suppress(OSError):
        os.write(2, f"fedmpi: rank {rank}: {why}; this rank ends\n".encode())
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_CHECKPOINT_SECONDS)
    os._exit(EXIT_STOPPED)


def end_launcher_later(seconds: float) -> None:
    """SIGKILL to the launcher of this rank, or its daemon on this host, if it has not ended by then."""
    parent = os.getppid()
    try:
        name, _, rest = Path(f"/proc/{parent}/stat").read_text().rpartition(")")
    except OSError:
        return
    if name.partition("(")[2] not in _LAUNCHERS:
        return  # srun's daemon, a shell: not ours to end
    begin = rest.split()[19]  # in case another process gets its number
    script = f'sleep {seconds}; [ "$(cut -d" " -f22 /proc/{parent}/stat)" = {begin} ] && kill -9 {parent}'
    with contextlib.suppress(OSError):
        subprocess.Popen(
            ["sh", "-c", script], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _gone(parent: int, port: int | None) -> str:
    """What has ended; empty if nothing has."""
    if os.getppid() != parent:
        return f"its launcher (mpirun or its daemon, process {parent}) has ended"
    if port is not None and port not in _listening():
        return f"srun (on port {port}) has ended"
    return ""


def _port_of_srun() -> int | None:
    """The port on which the srun of this step listens, if it is on this host."""
    text = os.environ.get("SLURM_SRUN_COMM_PORT", "")
    is_step = "SLURM_PROCID" in os.environ and text.isdecimal()
    return int(text) if is_step and int(text) in _listening() else None


def _listening() -> set[int]:
    """Ports of this host on which somebody listens."""
    ports = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS:
                    ports.add(int(words[1].rpartition(":")[2], 16))
    return ports
