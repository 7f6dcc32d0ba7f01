"""Two hosts on this machine: network namespaces with a link between them, which a test takes down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.commands import with_tests_on_the_path

can_make_hosts = os.geteuid() == 0 and shutil.which("ip") and shutil.which("unshare")
_NET = "10.99.18"


class TwoHosts:
    """Made and removed as a context; `mpirun` puts rank 0 on the first host, rank 1 on the second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = [f"fedmpi-{os.getpid()}-{side}" for side in "ab"]
        self.links = [f"fm{os.getpid()}{side}" for side in "ab"]

    def __enter__(self) -> TwoHosts:
        (a, b), (link_a, link_b) = self.names, self.links
        try:
            for name in self.names:
                _ip("netns", "add", name)
            _ip("link", "add", link_a, "netns", a, "type", "veth", "peer", "name", link_b, "netns", b)
            for place, (name, link) in enumerate(zip(self.names, self.links, strict=True), 1):
                _ip("-n", name, "addr", "add", f"{_NET}.{place}/24", "dev", link)
                for device in ("lo", link):
                    _ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise

        # How mpirun starts its daemon on the second host: in place of ssh.
        agent = self.folder / "agent"
        agent.write_text(f'#!/bin/sh\nshift\nexec {" ".join(self._enter(1))} "$*"\n')
        agent.chmod(0o755)
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self.processes():
            subprocess.run(["kill", "-9", str(pid)], capture_output=True)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def _enter(self, place: int) -> list[str]:
        """A shell on a host: with a name and shared memory of its own, as MPI needs it."""
        name = self.names[place]
        script = f"'hostname host{place}; mount -t tmpfs tmpfs /dev/shm; eval \"$0\"'"
        return ["ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "--mount", "bash", "-c", script]

    def processes(self) -> list[int]:
        """All that runs on the two hosts."""
        found = []
        for name in self.names:
            done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            found += map(int, done.stdout.split())
        return found

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen:
        """`mpirun -n 2 fedmpi ...` over both hosts."""
        hosts = ",".join(f"{_NET}.{place}:1" for place in (1, 2))
        words = ["mpirun", "-H", hosts, "-n", "2", sys.executable, "-m", "fedmpi", *map(str, arguments)]
        settings = {
            "PRTE_MCA_plm": "ssh",
            "PRTE_MCA_plm_ssh_agent": str(self.folder / "agent"),
            "PRTE_MCA_prte_if_include": f"{_NET}.0/24",
            "OMPI_MCA_btl_tcp_if_include": f"{_NET}.0/24",
            "OMPI_MCA_btl": "tcp,sm,self",
            "OMPI_MCA_pml": "ob1",
        }
        variables = with_tests_on_the_path(settings | environment)
        variables.pop("PRTE_MCA_rmaps_default_mapping_policy", None)  # it would fill the first host
        return subprocess.Popen(
            ["sh", "-c", f'exec {" ".join(self._enter(0))} "{" ".join(words)}"'], cwd=self.folder,
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def cut(self) -> None:
        """The link is down from now on."""
        _ip("-n", self.names[1], "link", "set", self.links[1], "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
