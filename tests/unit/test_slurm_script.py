"""Job scripts as text: what they ask for, what they refuse to promise, and that jobs/ is up to date."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest

from fedmpi.experiments.job_request import Request, minutes, warnings
from fedmpi.experiments.job_script import job_script
from tests.support.commands import in_process
from tests.support.configs import ROOT

REQUEST = Request("configs/my config.toml", "out dir/r.h5", "4:00:00", nodes=2, ranks_per_node=4)
FASHION, SWEEP = "configs/fashion-amplified.toml", "configs/fashion-sweep.toml"
SHIPPED = {
    "run-one-node.sh": f"{FASHION} --out fashion.h5 --gpus-per-node 4 --time 12:00:00",
    "run-nodes.sh": f"{FASHION} --out fashion.h5 --nodes 2 --ranks-per-node 16 --time 12:00:00 "
    "--launcher mpirun",
    "run-chain.sh": f"{FASHION} --out fashion.h5 --ranks-per-node 32 --time 1:00:00 --retries 100",
    "sweep-array.sh": f"{SWEEP} --out sweep --array --at-a-time 8 --gpus-per-node 1 --time 12:00:00",
    "sweep-mpi.sh": f"{SWEEP} --out sweep --nodes 4 --ranks-per-node 32 --ranks-per-run 8 --time 12:00:00",
    **{
        f"paper-{data}.sh": f"configs/paper/{data}-sweep.toml --out paper-{data} --nodes 2 "
        "--gpus-per-node 4 --time 12:00:00 --retries 100"
        for data in ("fashion", "cifar")
    },
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_scripts(name):
    """Scripts in jobs/ are what `fedmpi slurm` writes."""
    done = in_process(ROOT, "slurm", *SHIPPED[name].split())
    assert done.returncode == 0
    assert (ROOT / "jobs" / name).read_text() == done.stdout
    subprocess.run(["bash", "-n", ROOT / "jobs" / name], check=True)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck: apt-get install shellcheck")
def test_shellcheck_has_nothing_to_say():
    """About any script in jobs/, nor about those that start a SLURM for the tests."""
    scripts = [*(ROOT / "jobs").glob("*.sh"), *(ROOT / "tests" / "slurm").glob("*.sh")]
    assert len(scripts) >= 10
    subprocess.run(["shellcheck", "--source-path", ROOT, *scripts], check=True, cwd=ROOT)


def test_what_a_script_asks_for():
    """Nodes, ranks, time, the signal to the batch shell alone; names with blanks are quoted."""
    text = job_script(REQUEST)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4" in text
    assert "#SBATCH --signal=B:USR1@120" in text
    assert "#SBATCH --open-mode=append" in text
    assert "--gpus-per-node" not in text
    assert "fedmpi run 'configs/my config.toml' --out 'out dir/r.h5'" in text
    assert "fedmpi resume 'out dir/r.h5'" in text
    assert "#SBATCH --job-name=my-config\n" in text
    assert "launch=(srun --mpi=pmix)   #" in text
    assert 'launch=(mpirun -n "$SLURM_NTASKS")   #' in job_script(replace(REQUEST, launcher="mpirun"))
    array = job_script(replace(REQUEST, num_runs=6, as_array=True, at_a_time=2))
    assert "#SBATCH --array=0-5%2" in array
    assert '--index "$SLURM_ARRAY_TASK_ID"' in array


@pytest.mark.parametrize(
    ("status", "restarts", "requeued"), [(75, 0, True), (75, 20, False), (0, 0, False), (3, 0, False)]
)
def test_a_script_requeues_when_asked(tmp_path, status, restarts, requeued):
    """Only status 75 requeues, and only so often; the script ends with the status of the run."""
    (tmp_path / "srun").write_text(f"#!/bin/sh\nexit {status}\n")
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "scontrol $*"\n')
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", job_script(REQUEST)], cwd=tmp_path, capture_output=True, text=True, timeout=20,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7",
             "SLURM_RESTART_COUNT": str(restarts)},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert ("scontrol requeue 7" in done.stdout) == requeued


def test_a_script_passes_the_signal_on(tmp_path):
    """USR1 to the batch shell reaches the launcher, and its status comes back, not that of the signal."""
    (tmp_path / "srun").write_text(
        "#!/usr/bin/env bash\ntrap 'sleep 0.2; exit 75' USR1\ntouch up\nwhile :; do sleep 0.05; done\n"
    )
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "scontrol $*"\n')
    (tmp_path / "job.sh").write_text(job_script(REQUEST))
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    driver = "bash job.sh & until [ -e up ]; do sleep 0.05; done; kill -USR1 $!; kill -USR1 $!; wait $!"
    done = subprocess.run(
        ["bash", "-c", driver], cwd=tmp_path, capture_output=True, text=True, timeout=20,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    assert "scontrol requeue 7" in done.stdout


def test_what_cannot_fit_is_told():
    """Ranks without clients or runs, idle GPUs, and more work than all retries have time for."""
    assert warnings(REQUEST, 250, None) == []
    assert "8 ranks for 5 clients" in warnings(REQUEST, 5, None)[0]
    sweep = replace(REQUEST, num_runs=2, ranks_per_run=3)
    assert [w.split(":")[0] for w in warnings(sweep, 250, None)] == [
        "8 ranks for 2 runs of 3", "8 ranks are not a multiple of 3 ranks per run",
    ]  # fmt: skip
    assert "4 GPUs but 1 ranks" in warnings(replace(REQUEST, gpus_per_node=4, ranks_per_node=1), 9, None)[0]
    assert "do not fit into 21 times" in warnings(REQUEST, 250, 1e6)[0]
    assert minutes("1-0") == 1440


def test_bad_requests(fedmpi_cli, small_config):
    """A time that is none, an array of a single run: status 2 and what is accepted."""
    for arguments, text in ((["--time", "soon"], "HH:MM:SS"), (["--time", "5", "--array"], "not a sweep")):
        done = fedmpi_cli("slurm", small_config, *arguments)
        assert done.returncode == 2
        assert text in done.stderr
