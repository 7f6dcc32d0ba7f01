"""A real SLURM of virtual nodes on this machine.

It needs root, and Debian's slurm packages or apt to install them; elsewhere tests are skipped, visibly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from fedmpi.experiments.job_request import Request
from fedmpi.experiments.job_script import job_script
from tests.support.configs import ROOT

HERE = ROOT / "tests" / "slurm"
can_run = os.geteuid() == 0 and (shutil.which("slurmctld") or shutil.which("apt-get"))
needs_slurm = pytest.mark.skipif(not can_run, reason="a real SLURM needs root and Debian's packages")


class Cluster:
    """Some nodes, and what one does with them."""

    def __init__(self, nodes: int = 2, **settings: object) -> None:
        """Start them. `settings` as start-slurm.sh has them, without VSLURM_: GPUS=2."""
        self.state = Path(tempfile.mkdtemp(prefix="fedmpi-slurm-"))
        self.state.chmod(0o755)  # munge wants all folders above its socket open
        named = {"DIR": self.state, "GPUS": 0} | settings
        self.environment = os.environ | {f"VSLURM_{name}": str(value) for name, value in named.items()}
        started = subprocess.run(
            ["bash", HERE / "start-slurm.sh", str(nodes)], env=self.environment,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if started.returncode != 0:
            self.stop()
            pytest.skip(f"SLURM did not start: {started.stderr.strip()}")
        text = subprocess.run(
            ["bash", "-c", f". {self.state}/env.sh && env -0"], env=self.environment, capture_output=True,
            text=True, check=True,
        ).stdout  # fmt: skip
        self.environment = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
        self.environment["PYTHONPATH"] = str(ROOT)
        # Made for one machine: mpirun would fill the first node.
        self.environment.pop("PRTE_MCA_rmaps_default_mapping_policy", None)

    def stop(self) -> None:
        subprocess.run(["bash", HERE / "stop-slurm.sh"], env=self.environment, check=True, timeout=60)
        shutil.rmtree(self.state, ignore_errors=True)

    def call(self, *command: object, folder: Path | None = None, **extra: str) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=self.environment | extra, timeout=60,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(
        self, folder: Path, request: Request, *options: str, sleep: float = 0.0, **extra: str
    ) -> str:
        (folder / "job.sh").write_text(job_script(request))
        options = ("--parsable", "--output=log", "--mem-per-cpu=100", *options)
        extra = {"FEDMPI_TEST_SLEEP": str(sleep), **extra}
        return self.call("sbatch", *options, "job.sh", folder=folder, **extra)

    def wait(self, job: str, folder: Path, seconds: float = 120) -> str:
        """Until the job has left the queue; its log."""
        limit = time.monotonic() + seconds
        while self.call("squeue", "-h", "-j", job):
            assert time.monotonic() < limit, (folder / "log").read_text()
            time.sleep(0.2)
        return (folder / "log").read_text()
