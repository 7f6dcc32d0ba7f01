"""SLURM job scripts as text: a pure function from what a job needs to a script that can be submitted.

Invariant: the same request gives the same text, and every script submits itself again only when fedmpi
asked for it (exit status 75), a bounded number of times.
"""

from __future__ import annotations

import math
import re
import shlex

from fedmpi.experiments.job_request import Request

# Options of sbatch that exclude each other, and short names.
_KINDS = {
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "memory"),
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "G"), "GPUs"),
    **dict.fromkeys(("ntasks-per-node", "tasks-per-node"), "ranks on a node"),
    **{"A": "account", "C": "constraint", "J": "job-name", "N": "nodes", "a": "array"},
    **{"c": "cpus-per-task", "o": "output", "p": "partition", "q": "qos", "t": "time"},
    "no-requeue": "requeue",
}
_OPTION = re.compile(r"--?([A-Za-z][A-Za-z0-9-]*)(?:[= ].*)?")
_COMMENTS = {
    "ntasks-per-node": "MPI ranks on each node",
    "open-mode": "a requeued job continues in the same log",
    "signal": "seconds before the end to signal this shell, for a checkpoint",
}


def job_script(request: Request) -> str:
    """The script, ready for `sbatch`."""
    return "\n".join([*_header(request), "", *_body(request), ""])


def option_name(line: str) -> str | None:
    """The name of an option of sbatch as the command line has it; None if the line is not one.

    >>> option_name("--mail-type=END"), option_name("-C gpu"), option_name("-Cgpu"), option_name("gpu")
    ('mail-type', 'C', 'C', None)
    """
    match = _OPTION.fullmatch(line)
    return match and (match[1] if line.startswith("--") else match[1][0])


def option_kind(name: str) -> str:
    """What an option of sbatch is about; a later one of the same kind replaces an earlier one.

    >>> option_kind("mem") == option_kind("mem-per-gpu"), option_kind("C"), option_kind("mail-type")
    (True, 'constraint', 'mail-type')
    """
    return _KINDS.get(name, name)


def _header(request: Request) -> list[str]:
    lines = ["#!/usr/bin/env bash", f"# {_purpose(request)}"]
    if request.site:
        lines.append(f"# {request.site}")
    lines.append("# Submit it with sbatch; it requeues itself until all is done.")
    replaced = {option_kind(option_name(line) or "") for line in request.sbatch}
    for name, value in _options(request).items():
        if value is None or option_kind(name) in replaced:
            continue
        line = f"#SBATCH --{name}" + (f"={value}" if value != "" else "")
        lines.append(line + (f"   # {_COMMENTS[name]}" if name in _COMMENTS else ""))
    return lines + [f"#SBATCH {line}" for line in request.sbatch]


def _options(request: Request) -> dict[str, object]:
    """Options of sbatch; None for those left out, empty for those without a value."""
    memory = math.ceil(request.memory_mb / request.cpus_per_rank)
    by_gres = f"gpu:{request.gpus_on_a_node}" if request.gres and request.gpus_on_a_node else None
    return {
        "job-name": request.name,
        "nodes": request.nodes,
        "ntasks-per-node": request.ranks_per_node,
        "cpus-per-task": request.cpus_per_rank,
        "gres": by_gres,
        "gpus-per-node": (not by_gres and request.gpus_per_node) or None,
        "gpus-per-task": (not by_gres and request.gpus_per_task) or None,
        "mem-per-cpu": f"{memory}M" if memory and not request.memory_per_gpu_mb else None,
        "mem-per-gpu": f"{request.memory_per_gpu_mb}M" if request.memory_per_gpu_mb else None,
        "hint": request.hint or None,
        "time": request.time,
        "account": request.account or None,
        "partition": request.partition or None,
        "qos": request.qos or None,
        "constraint": _quoted(request.constraint) or None,
        "array": _array(request) if request.as_array else None,
        "output": "%x-%A_%a.log" if request.as_array else "%x-%j.log",
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:USR1@{request.seconds_of_warning}",
    }


def _quoted(text: str) -> str:
    """A value as sbatch reads it in a script; `gpu&hbm80g` has a character that shells know too.

    >>> _quoted("gpu"), _quoted("gpu&hbm80g")
    ('gpu', '"gpu&hbm80g"')
    """
    return text if re.fullmatch(r"[\w.,:=+@%/-]*", text) else f'"{text}"'


def _purpose(request: Request) -> str:
    what = f"One run of {request.source}"
    if request.num_runs:
        what = f"The {request.num_runs} runs of {request.source}, " + (
            f"{f'in packs of {request.pack}, ' * (request.pack > 1)}each a job of an array"
            if request.as_array
            else f"{request.ranks_per_run} ranks each, in one job"
        )
    place = f"{request.nodes} node{'s' * (request.nodes > 1)} of {request.ranks_per_node} ranks"
    gpus = f" and {request.gpus_on_a_node} GPUs" if request.gpus_on_a_node else ""
    return f"{what}, on {place}{gpus}."


def _array(request: Request) -> str:
    limit = f"%{request.at_a_time}" if request.at_a_time else ""
    return f"0-{request.num_jobs - 1}{limit}"


def _command(request: Request) -> list[str]:
    """Lines that set `command`."""
    source, out = shlex.quote(request.source), shlex.quote(request.out)
    if not request.num_runs:
        return [
            f"command=(fedmpi run {source} --out {out})",
            "# After a requeue the run continues from its checkpoint.",
            f"[ ! -e {out} ] || command=(fedmpi resume {out})",
        ]
    sweep = f"fedmpi sweep {source} --out {out}"
    if request.as_array and request.pack <= 1:
        return [f'command=({sweep} --index "$SLURM_ARRAY_TASK_ID")']
    pack = f" --pack {request.pack}" if request.pack else ""
    if request.as_array:
        return [
            "# Each job takes the next runs that are free, and ends when none is.",
            f"command=({sweep} --ranks-per-run {request.num_ranks}{pack})",
        ]
    return [f"command=({sweep} --ranks-per-run {request.ranks_per_run}{pack})"]


def _launcher(request: Request) -> list[str]:
    """Lines that set `launch`."""
    words = ["srun", *([f"--mpi={request.mpi}"] if request.mpi else []), *request.srun]
    # A bare comma looks like a slip in an array.
    quoted = [f"'{w}'" if "," in w and shlex.quote(w) == w else shlex.quote(w) for w in words]
    srun, mpirun = f"launch=({' '.join(quoted)})", 'launch=(mpirun -n "$SLURM_NTASKS")'
    mine, other = (srun, mpirun) if request.launcher == "srun" else (mpirun, srun)
    lines = [mine if request.site else f"{mine}   # or: {other}"]
    if request.cpus_per_rank > 1:
        lines.insert(0, 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun looks at no other')
    return lines


def _modules(request: Request) -> list[str]:
    """The site's own lines."""
    if not request.setup:
        return []
    return ["set +u  # modules may read variables that are not set", *request.setup, "set -u"]


def _body(request: Request) -> list[str]:
    return [
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        "# The environment: load your modules here, the same MPI that fedmpi was installed with.",
        *_modules(request),
        "# shellcheck disable=SC1091",
        "[ ! -f .venv/bin/activate ] || . .venv/bin/activate",
        "export OMP_NUM_THREADS=1",
        *_launcher(request),
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
        *_again(request),
        'exit "$status"',
    ]


def _again(request: Request) -> list[str]:
    """Lines that requeue the job, or submit the script again as a job that waits for this one's end."""
    job, options = "$SLURM_JOB_ID", ""
    if request.as_array:  # this task alone
        job = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
        options = ' --array="$SLURM_ARRAY_TASK_ID"'
    return [
        "# Some sites forbid requeueing: then a job that depends on this one takes its place. Its argument",
        "# is the number of restarts before it.",
        "restarts=$((${1:-0} + ${SLURM_RESTART_COUNT:-0}))",
        'if [ "$status" = 75 ] && [ "$restarts" -lt "$retries" ]; then',
        '  echo "not done yet: requeueing job $SLURM_JOB_ID"',
        '  if ! scontrol requeue "$SLURM_JOB_ID"; then',
        f'    next=(sbatch --parsable --dependency="afterany:{job}"{options} "$0" "$((restarts + 1))")',
        '    if new=$(env -u SLURM_RESTART_COUNT "${next[@]}"); then',
        '      echo "requeueing was refused: job $new continues when this one has ended"',
        "    else",
        '      echo "requeueing and sbatch were refused: submit this script again to continue" >&2',
        "    fi",
        "  fi",
        'elif [ "$status" = 75 ]; then',
        '  echo "not done after $retries restarts: submit this script again to continue" >&2',
        "fi",
    ]
