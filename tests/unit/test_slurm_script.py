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
    "run.sh": f"{FASHION} --out fashion.h5 --gpus-per-node 4 --time 12:00:00",
    "sweep.sh": f"{SWEEP} --out sweep --nodes 4 --ranks-per-node 32 --ranks-per-run 8 --time 12:00:00",
}
OTHERS = [
    f"{FASHION} --out fashion.h5 --nodes 2 --ranks-per-node 16 --time 12:00:00 --launcher mpirun",
    f"{SWEEP} --out sweep --array --at-a-time 8 --gpus-per-node 1 --time 12:00:00",
    "paper-cifar --out paper-cifar --nodes 2 --gpus-per-node 4 --time 12:00:00 --retries 100",
]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_scripts(name):
    """Scripts in jobs/ are what `fedmpi slurm` writes."""
    done = in_process(ROOT, "slurm", *SHIPPED[name].split())
    assert done.returncode == 0
    assert (ROOT / "jobs" / name).read_text() == done.stdout
    subprocess.run(["bash", "-n", ROOT / "jobs" / name], check=True)


def test_a_published_experiment_needs_no_file():
    """A name that `fedmpi reproduce` has is a sweep here too, and the script runs it by that name."""
    done = in_process(ROOT, "slurm", *OTHERS[-1].split())
    assert done.returncode == 0, done.stderr
    assert "command=(fedmpi sweep paper-cifar --out paper-cifar --ranks-per-run 1)" in done.stdout
    assert "The 145 runs of paper-cifar, 1 ranks each" in done.stdout


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck: apt-get install shellcheck")
def test_shellcheck_has_nothing_to_say(tmp_path):
    """About scripts in jobs/, those of other kinds of jobs, and those that start a SLURM here."""
    for number, words in enumerate(OTHERS):
        done = in_process(ROOT, "slurm", *words.split())
        (tmp_path / f"{number}.sh").write_text(done.stdout)
    folders = (ROOT / "jobs", ROOT / "tests" / "slurm", tmp_path)
    scripts = [path for folder in folders for path in folder.glob("*.sh")]
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
    packs = job_script(replace(REQUEST, num_runs=7, as_array=True, pack=3))
    assert "#SBATCH --array=0-2\n" in packs
    assert "--ranks-per-run 8 --pack 3)" in packs
    assert "--index" not in packs


def test_what_other_clusters_want():
    """Options by their names, memory left out, by GPU or shared by the cores of a rank, other MPIs."""
    text = job_script(replace(
        REQUEST, qos="regular", constraint="gpu&hbm80g", hint="nomultithread", lead=300, mpi="",
        cpus_per_rank=8, gpus_per_task=1, sbatch=("--mail-type=END", "-t 5:00:00"),
        srun=("--cpu-bind=cores",), setup=("module load python",), site="For a site.",
    ))  # fmt: skip
    for line in (
        "#SBATCH --qos=regular", '#SBATCH --constraint="gpu&hbm80g"', "#SBATCH --hint=nomultithread",
        "#SBATCH --cpus-per-task=8", "#SBATCH --gpus-per-task=1", "#SBATCH --mem-per-cpu=250M",
        "#SBATCH --mail-type=END", "#SBATCH -t 5:00:00", "launch=(srun --cpu-bind=cores)",
        "module load python", "# For a site.",
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun looks at no other',
    ):  # fmt: skip
        assert line in text.splitlines()
    assert "--signal=B:USR1@300 " in text
    assert "--time=" not in text  # replaced by the user's own
    assert "launch=(srun --mpi=pmi2)" in job_script(replace(REQUEST, mpi="pmi2"))
    assert "--mem" not in job_script(replace(REQUEST, memory_mb=0))
    assert "--mem=0" in job_script(replace(REQUEST, sbatch=("--mem=0",)))
    assert "--mem-per-cpu" not in job_script(replace(REQUEST, sbatch=("--mem=0",)))
    assert "#SBATCH --mem-per-gpu=9M\n" in job_script(replace(REQUEST, memory_per_gpu_mb=9))
    assert "#SBATCH --gres=gpu:4\n" in job_script(replace(REQUEST, gpus_per_node=4, gres=True))


def run_script(folder, request, *arguments: str, srun: str, scontrol: str = "", sbatch: str = "", **env):
    """A script where `srun`, `scontrol` and `sbatch` are shell lines; they say how they were called."""
    (folder / "job.sh").write_text(job_script(request))
    for name, line in (("srun", srun), ("scontrol", scontrol), ("sbatch", sbatch)):
        (folder / name).write_text(f'#!/bin/sh\necho "called {name} $*" >&2\n{line}\n')
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["bash", folder / "job.sh", *arguments], cwd=folder, capture_output=True, text=True, timeout=20,
        env={"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "restarts", "requeued"), [(75, 0, True), (75, 20, False), (0, 0, False), (3, 0, False)]
)
def test_a_script_requeues_when_asked(tmp_path, status, restarts, requeued):
    """Only status 75 requeues, and only so often; the script ends with the status of the run."""
    done = run_script(tmp_path, REQUEST, srun=f"exit {status}", SLURM_RESTART_COUNT=str(restarts))
    assert done.returncode == status, done.stderr
    assert ("called scontrol requeue 7" in done.stderr) == requeued
    assert "called sbatch" not in done.stderr


@pytest.mark.parametrize("as_array", [False, True])
def test_where_requeueing_is_forbidden(tmp_path, as_array):
    """The script submits itself again, to start after this job; of an array only the own task."""
    request = replace(REQUEST, num_runs=6 * as_array, as_array=as_array)
    done = run_script(
        tmp_path, request, "3", srun="exit 75", scontrol="exit 1",
        sbatch='echo "restarts ${SLURM_RESTART_COUNT:-none}" >&2; echo 8',
        SLURM_RESTART_COUNT="2", SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="4",
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    options = "--dependency=afterany:5_4 --array=4" if as_array else "--dependency=afterany:7"
    assert f"called sbatch --parsable {options} {tmp_path}/job.sh 6\n" in done.stderr
    assert "restarts none" in done.stderr  # those of this job are in the argument
    assert "job 8 continues when this one has ended" in done.stdout


def test_jobs_that_follow_each_other_are_bounded(tmp_path):
    """Restarts before this job count; where nothing is allowed, the script says what to do."""
    done = run_script(tmp_path, REQUEST, "20", srun="exit 75", scontrol="exit 1")
    assert "called sbatch" not in done.stderr
    assert "not done after 20 restarts: submit this script again" in done.stderr
    done = run_script(tmp_path, REQUEST, "19", srun="exit 75", scontrol="exit 1", sbatch="exit 1")
    assert done.returncode == 75
    assert "requeueing and sbatch were refused: submit this script again" in done.stderr


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--time soon", "HH:MM:SS"),
        ("--time 5 --array", "not a sweep"),
        ("--time 5 --pack 2", "--pack: c.toml is a config, not a sweep"),
        ("--time 5 --lead 300", "--lead 300: expected less than --time 5, and at most 65,535 seconds"),
        ("--time 9-0 --lead 65536", "at most 65,535 seconds"),
        ("--time 5 --gpus-per-node 2 --gpus-per-task 1", "the command line gives both"),
        ("--time 5 --memory-mb 9 --memory-per-gpu-mb 9", "the command line gives both"),
        ("--time 5 --memory-per-gpu-mb 9", "the job has no GPUs"),
        ("--time 5 --sbatch 2&3", "sbatch '2&3': expected one option of sbatch"),
        ("--time 5 --hint fast", "invalid choice: 'fast'"),
    ],
)
def test_bad_requests(fedmpi_cli, small_config, tmp_path, arguments, text):
    """Status 2, what was seen and what is accepted."""
    (tmp_path / "c.toml").write_text(small_config.read_text())
    done = fedmpi_cli("slurm", "c.toml", *arguments.split())
    assert done.returncode == 2
    assert text in done.stderr


def test_memory_by_kind_of_rank(fedmpi_cli, small_config):
    """A rank with a GPU gets room for what the GPU's libraries take; what is said wins."""

    def memory(*options: str) -> list[str]:
        done = fedmpi_cli("slurm", small_config, "--time", "10", *options)
        return [line for line in done.stdout.splitlines() if "--mem" in line]

    assert memory() == ["#SBATCH --mem-per-cpu=2000M"]
    assert (
        memory("--gpus-per-node", "2") == memory("--gpus-per-task", "1") == ["#SBATCH --mem-per-cpu=16000M"]
    )
    assert memory("--gpus-per-node", "2", "--cpus-per-rank", "8") == ["#SBATCH --mem-per-cpu=2000M"]
    assert memory("--memory-mb", "0") == []
    assert memory("--gpus-per-node", "2", "--memory-per-gpu-mb", "9") == ["#SBATCH --mem-per-gpu=9M"]
    assert memory("--sbatch", "--mem=0") == ["#SBATCH --mem=0"]


def test_hidden_gpus_and_cuda_aware_mpi(fedmpi_cli, small_config, tmp_path):
    """MPI of one rank cannot reach a GPU that SLURM hides from it: a warning."""
    (tmp_path / "c.toml").write_text(small_config.read_text().replace("[run]", "[run]\ncuda_aware = true"))
    for option, warned in (("--gpus-per-task", True), ("--gpus-per-node", False)):
        done = fedmpi_cli("slurm", "c.toml", "--time", "10", option, "1")
        assert ("run.cuda_aware = true needs" in done.stderr) == warned, done.stderr
