"""`fedmpi slurm`: a job script for a config or a sweep, printed or written to a file."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from fedmpi import mpi
from fedmpi.config import Config, validate
from fedmpi.errors import EXIT_DONE, OutputError, UserError
from fedmpi.experiments.job_script import Request, job_script, minutes, warnings
from fedmpi.experiments.sweep.points import Point, load_sweep
from fedmpi.storage.files import write_whole

_MARGIN = 1.3  # memory asked for, over what a trial used


def slurm(args: argparse.Namespace) -> int:
    """Write the script; warnings about what does not fit go to stderr."""
    if minutes(args.time) is None:
        raise UserError(f"--time {args.time}: expected minutes, HH:MM:SS or D-HH:MM:SS")
    points = load_sweep(args.source) if _is_sweep(args.source) else []
    if args.array and not points:
        raise UserError(f"--array: {args.source} is a config, not a sweep; leave --array out")
    config = points[0].config if points else validate.load(args.source)
    request = Request(
        source=args.source,
        out=args.out or Path(args.source).stem + ("" if points else ".h5"),
        time=args.time,
        nodes=args.nodes,
        ranks_per_node=args.ranks_per_node or max(args.gpus_per_node, 1),
        gpus_per_node=args.gpus_per_node,
        memory_mb=args.memory_mb or 2000,
        launcher=args.launcher,
        retries=args.retries,
        num_runs=len(points),
        ranks_per_run=args.ranks_per_run,
        as_array=args.array,
        at_a_time=args.at_a_time,
        account=args.account,
        partition=args.partition,
    )
    seconds = None
    if args.trial:
        request, seconds = _with_trial(request, config, points, fixed=args.memory_mb is not None)
    for warning in warnings(request, config.data.num_clients, seconds):
        print(f"fedmpi: warning: {warning}", file=sys.stderr)
    _deliver(job_script(request), args.script)
    return EXIT_DONE


def _is_sweep(path: str) -> bool:
    try:
        return "base" in tomllib.loads(validate.read_text(path))
    except (ValueError, RecursionError):
        return False  # the config's own check says what is wrong


def _with_trial(
    request: Request, config: Config, points: list[Point], *, fixed: bool
) -> tuple[Request, float]:
    """Memory of a rank and seconds of all work, from a few rounds on one rank here."""
    from fedmpi.experiments.sweep.trial import measure  # torch takes seconds to load

    with mpi.session() as comm:
        cost = measure(comm, config)
    memory = math.ceil(cost.memory_mb * _MARGIN / 100) * 100
    ranks = request.nodes * request.ranks_per_node
    runs = [cost.seconds(point.config) for point in points] or [cost.seconds(config)]
    seconds = sum(runs[:1] if request.as_array else runs) / ranks
    print(
        f"fedmpi: trial: {cost.memory_mb:,.0f} MB, {cost.round_seconds:.3g} s a round on one rank here; "
        f"about {seconds / 3600:.2g} hours on {ranks} such ranks",
        file=sys.stderr,
    )
    return request if fixed else replace(request, memory_mb=memory), seconds


def _deliver(text: str, target: str | None) -> None:
    if target is None:
        print(text, end="")
        return
    path = Path(target)
    if path.exists():
        raise UserError(f"--script {path}: exists already; choose another name, or remove it")
    write_whole(path, text.encode())
    try:
        os.chmod(path, 0o755)
    except OSError as error:
        raise OutputError.from_os(error, path) from None
    print(f"{path}: submit it with `sbatch {path}`")
