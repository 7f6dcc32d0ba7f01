"""SLURM job scripts as text: a pure function from what a job needs to a script that can be submitted.

Invariant: the same request gives the same text, and every script ends by requeueing itself only when
fedmpi asked for it (exit status 75), a bounded number of times.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class Request:
    """What a job needs."""

    source: str  # config or sweep file
    out: str  # result file, or folder of a sweep
    time: str  # as SLURM writes it: minutes, hours:minutes:seconds, days-hours:minutes:seconds
    nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_node: int = 0
    memory_mb: int = 2000  # of a rank
    launcher: str = "srun"  # or "mpirun"
    retries: int = 20
    num_runs: int = 0  # of a sweep; 0 for a single run
    ranks_per_run: int = 1
    as_array: bool = False  # a sweep as an array of jobs, instead of one
    at_a_time: int = 0  # jobs of the array; 0 for as many as the cluster gives
    account: str = ""
    partition: str = ""

    @property
    def name(self) -> str:
        """The job's name: that of the file, with safe characters only."""
        stem = self.source.rsplit("/", 1)[-1].removesuffix(".toml")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem) or "fedmpi"


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


def job_script(request: Request) -> str:
    """The script, ready for `sbatch`."""
    return "\n".join([*_header(request), "", *_body(request), ""])


def _header(request: Request) -> list[str]:
    lead = 120 if (minutes(request.time) or 0) >= 10 else 60
    options = {
        "job-name": request.name,
        "nodes": request.nodes,
        "ntasks-per-node": request.ranks_per_node,
        "cpus-per-task": 1,
        "gpus-per-node": request.gpus_per_node or None,
        "mem-per-cpu": f"{request.memory_mb}M",
        "time": request.time,
        "account": request.account or None,
        "partition": request.partition or None,
        "array": _array(request) if request.as_array else None,
        "output": "%x-%A_%a.log" if request.as_array else "%x-%j.log",
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:USR1@{lead}",
    }
    comments = {
        "ntasks-per-node": "MPI ranks on each node",
        "open-mode": "a requeued job continues in the same log",
        "signal": "seconds before the end to signal this shell, for a checkpoint",
    }
    lines = [
        "#!/usr/bin/env bash",
        f"# {_purpose(request)}",
        "# Submit it with sbatch; it requeues itself until all is done.",
    ]
    for name, value in options.items():
        if value is None:
            continue
        line = f"#SBATCH --{name}" + (f"={value}" if value != "" else "")
        lines.append(line + (f"   # {comments[name]}" if name in comments else ""))
    return lines


def _purpose(request: Request) -> str:
    what = f"One run of {request.source}"
    if request.num_runs:
        what = f"The {request.num_runs} runs of {request.source}, " + (
            "each a job of an array"
            if request.as_array
            else f"{request.ranks_per_run} ranks each, in one job"
        )
    place = f"{request.nodes} node{'s' * (request.nodes > 1)} of {request.ranks_per_node} ranks"
    gpus = f" and {request.gpus_per_node} GPUs" if request.gpus_per_node else ""
    return f"{what}, on {place}{gpus}."


def _array(request: Request) -> str:
    limit = f"%{request.at_a_time}" if request.at_a_time else ""
    return f"0-{max(request.num_runs, 1) - 1}{limit}"


def _command(request: Request) -> list[str]:
    """Lines that set `command`."""
    source, out = shlex.quote(request.source), shlex.quote(request.out)
    if not request.num_runs:
        return [
            f"command=(fedmpi run {source} --out {out})",
            "# After a requeue the run continues from its checkpoint.",
            f"[ ! -e {out} ] || command=(fedmpi resume {out})",
        ]
    if request.as_array:
        return [f'command=(fedmpi sweep {source} --out {out} --index "$SLURM_ARRAY_TASK_ID")']
    return [f"command=(fedmpi sweep {source} --out {out} --ranks-per-run {request.ranks_per_run})"]


def _body(request: Request) -> list[str]:
    srun, mpirun = "launch=(srun --mpi=pmix)", 'launch=(mpirun -n "$SLURM_NTASKS")'
    mine, other = (srun, mpirun) if request.launcher == "srun" else (mpirun, srun)
    return [
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        "# The environment: load your modules here, the same MPI that fedmpi was installed with.",
        "# shellcheck disable=SC1091",
        "[ ! -f .venv/bin/activate ] || . .venv/bin/activate",
        "export OMP_NUM_THREADS=1",
        f"{mine}   # or: {other}",
        f"retries={request.retries}",
        "",
        *_command(request),
        "",
        "# The launcher runs in the background, so that this shell hears USR1 and passes it on. All ranks",
        "# then finish their round, write a checkpoint and leave with status 75.",
        "pid='' signalled=''",
        'trap \'signalled=yes; [ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null || true\' USR1',
        '"${launch[@]}" "${command[@]}" &',
        "pid=$!",
        'if [ -n "$signalled" ]; then kill -USR1 "$pid" || true; fi  # it came before the launcher',
        "signalled=yes status=0",
        'while [ -n "$signalled" ]; do  # a signal ends `wait` early',
        "  signalled='' status=0",
        '  wait "$pid" || status=$?',
        "done",
        "",
        'if [ "$status" = 75 ]; then',
        '  if [ "${SLURM_RESTART_COUNT:-0}" -lt "$retries" ]; then',
        '    echo "not done yet: requeueing job $SLURM_JOB_ID"',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "  else",
        '    echo "not done after $retries restarts: submit this script again to continue" >&2',
        "  fi",
        "fi",
        'exit "$status"',
    ]


def warnings(request: Request, num_clients: int | None, seconds: float | None) -> list[str]:
    """What will not work well; `seconds` is an estimate of the longest run, on these ranks."""
    problems = []
    ranks = request.nodes * request.ranks_per_node
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
    if request.gpus_per_node > request.ranks_per_node:
        problems.append(
            f"{request.gpus_per_node} GPUs but {request.ranks_per_node} ranks on a node: "
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
