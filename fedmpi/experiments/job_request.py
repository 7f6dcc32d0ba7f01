"""What a SLURM job needs, and what of it will not work well.

Invariant: plain data; nothing here looks at a cluster.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_LEAD, _SHORT_LEAD = 120, 60  # seconds before the end of a job; short for jobs below ten minutes
HINTS = ("nomultithread", "multithread", "compute_bound", "memory_bound")
LAUNCHERS = ("srun", "mpirun")
CPU_RANK_MB, GPU_RANK_MB = 2000, 16_000  # a GPU's context and libraries alone take 2.5 to 4 GB of the host


@dataclass(frozen=True)
class Request:
    """What a job needs."""

    source: str  # config or sweep file
    out: str  # result file, or folder of a sweep
    time: str  # as SLURM writes it: minutes, hours:minutes:seconds, days-hours:minutes:seconds
    nodes: int = 1
    ranks_per_node: int = 1
    cpus_per_rank: int = 1
    gpus_per_node: int = 0
    gpus_per_task: int = 0  # instead of gpus_per_node: SLURM hides the others from a rank
    gres: bool = False  # ask for GPUs by --gres, where SLURM knows no --gpus-per-node
    memory_mb: int = CPU_RANK_MB  # of a rank; 0 leaves it to the site
    memory_per_gpu_mb: int = 0  # instead of memory_mb
    launcher: str = "srun"  # or "mpirun"
    mpi: str = "pmix"  # of srun --mpi; empty for SLURM's own default
    retries: int = 20
    lead: int = 0  # seconds before the end at which it is told to stop; 0 for what suits the time
    num_runs: int = 0  # of a sweep; 0 for a single run
    ranks_per_run: int = 1
    pack: int = 0  # runs of a sweep in lockstep; 0 for what `fedmpi sweep` chooses
    as_array: bool = False  # a sweep as an array of jobs, one for each run or each pack, instead of one job
    at_a_time: int = 0  # jobs of the array; 0 for as many as the cluster gives
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    hint: str = ""  # "nomultithread"
    sbatch: tuple[str, ...] = ()  # further options of sbatch; they replace ours of the same name
    srun: tuple[str, ...] = ()  # further options of srun
    setup: tuple[str, ...] = ()  # shell lines before the environment is activated
    site: str = ""  # a sentence on where this is for

    @property
    def name(self) -> str:
        """The job's name: that of the file, with safe characters only."""
        stem = self.source.rsplit("/", 1)[-1].removesuffix(".toml")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem) or "fedmpi"

    @property
    def num_ranks(self) -> int:
        """Of one job."""
        return self.nodes * self.ranks_per_node

    @property
    def num_jobs(self) -> int:
        """Of the array."""
        return max(math.ceil(self.num_runs / max(self.pack, 1)), 1)

    @property
    def gpus_on_a_node(self) -> int:
        """However they are asked for."""
        return self.gpus_per_node or self.gpus_per_task * self.ranks_per_node

    @property
    def seconds_of_warning(self) -> int:
        """How long before its end the job is told to stop."""
        return self.lead or (_LEAD if (minutes(self.time) or 0) >= 10 else _SHORT_LEAD)


def minutes(text: str) -> float | None:
    """A time limit as SLURM writes it, in minutes; None if it is not one.

    >>> minutes("90"), minutes("1:30:00"), minutes("2-12"), minutes("10:30"), minutes("soon")
    (90.0, 90.0, 3600.0, 10.5, None)
    """
    match = _TIME.fullmatch(text)
    if not match:
        return None
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, mins, seconds = [*numbers, 0, 0][:3]
        return int(days) * 1440 + hours * 60 + mins + seconds / 60
    if len(numbers) == 3:
        return numbers[0] * 60 + numbers[1] + numbers[2] / 60
    return numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0.0)


def warnings(request: Request, num_clients: int | None, seconds: float | None) -> list[str]:
    """What will not work well; `seconds` is an estimate of the longest run, on these ranks."""
    problems = []
    ranks = request.num_ranks
    width = request.ranks_per_run if request.num_runs and not request.as_array else ranks
    if num_clients is not None and width > num_clients:
        problems.append(f"{width} ranks for {num_clients} clients: some ranks will own no client")
    if request.num_runs and not request.as_array:
        if ranks > request.num_runs * request.ranks_per_run:
            problems.append(
                f"{ranks} ranks for {request.num_runs} runs of {request.ranks_per_run}: "
                f"{ranks - request.num_runs * request.ranks_per_run} ranks will have nothing to do"
            )
        if ranks % request.ranks_per_run:
            problems.append(f"{ranks} ranks are not a multiple of {request.ranks_per_run} ranks per run")
    if request.gpus_on_a_node > request.ranks_per_node:
        problems.append(
            f"{request.gpus_on_a_node} GPUs but {request.ranks_per_node} ranks on a node: "
            "a rank uses one GPU, the others stay idle"
        )
    limit = minutes(request.time)
    if limit is not None and limit < 5:
        problems.append(f"--time {request.time}: SLURM checks limits once a minute; use 5 minutes or more")
    if seconds is not None and limit is not None and seconds > 60 * limit * (request.retries + 1):
        problems.append(
            f"about {seconds / 3600:.1f} hours of work do not fit into "
            f"{request.retries + 1} times {request.time}"
        )
    return problems
