"""`fedmpi slurm`: a job script for a config or a sweep, printed or written to a file."""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedmpi import mpi
from fedmpi.config import Config, validate
from fedmpi.errors import EXIT_DONE, OutputError, UserError
from fedmpi.experiments.job_request import CPU_RANK_MB, GPU_RANK_MB, Request, minutes, warnings
from fedmpi.experiments.job_script import job_script
from fedmpi.experiments.job_site import (
    OPTIONS,
    Site,
    load_site,
    refuse_missing_needs,
    refuse_unknown_partition,
    sbatch_line,
)
from fedmpi.experiments.reproduce import shipped
from fedmpi.experiments.sweep.points import Point, load_sweep
from fedmpi.experiments.sweep.sweep_file import is_sweep
from fedmpi.mpi.launcher import srun_type
from fedmpi.storage.files import write_whole

_MARGIN = 1.3  # memory asked for, over what a trial used
_LONGEST_LEAD = 65_535  # seconds, of `sbatch --signal`
_HIDDEN_GPUS = (
    "--gpus-per-task hides the GPUs of a node's other ranks, which run.cuda_aware = true needs: "
    "use --gpus-per-node"
)


def slurm(args: argparse.Namespace) -> int:
    """Write the script; warnings about what does not fit go to stderr."""
    if minutes(args.time) is None:
        raise UserError(f"--time {args.time}: expected minutes, HH:MM:SS or D-HH:MM:SS")
    site = load_site(args.site) if args.site else None
    chosen = _chosen(args, site)
    points = load_sweep(args.source) if is_sweep(validate.read_text(shipped(args.source))) else []
    if args.array and not points:
        raise UserError(f"--array: {args.source} is a config, not a sweep; leave --array out")
    if args.pack and not points:
        raise UserError(f"--pack: {args.source} is a config, not a sweep; leave --pack out")
    config = points[0].config if points else validate.load(args.source)
    request = replace(
        _request(args, site, chosen),
        num_runs=len(points),
        out=args.out or Path(args.source).stem + ("" if points else ".h5"),
    )
    _refuse_what_the_cluster_refuses(args, site, request)
    seconds = None
    if args.trial:
        fixed = "memory_mb" in chosen or "memory_per_gpu_mb" in chosen
        request, seconds = _with_trial(request, config, points, fixed=fixed)
    for warning in warnings(request, config.data.num_clients, seconds):
        print(f"fedmpi: warning: {warning}", file=sys.stderr)
    if config.run.cuda_aware and request.gpus_per_task:
        print(f"fedmpi: warning: {_HIDDEN_GPUS}", file=sys.stderr)
    _deliver(job_script(request), args.script)
    return EXIT_DONE


def _chosen(args: argparse.Namespace, site: Site | None) -> dict[str, Any]:
    """What the options ask for, and what the site's profile says where they leave it open."""
    given = {name: getattr(args, name) for name in OPTIONS if getattr(args, name, None) is not None}
    chosen = dict(site.settings) if site else {}
    for one, other in (("gpus_per_node", "gpus_per_task"), ("memory_mb", "memory_per_gpu_mb")):
        for values, source in ((chosen, args.site), (given, "the command line")):
            if values.get(one) and values.get(other):
                ways = " and ".join(f"--{name.replace('_', '-')}" for name in (one, other))
                raise UserError(f"{ways}: {source} gives both; give one of them")
        if one in given or other in given:  # takes the place of both in the profile
            chosen = {name: value for name, value in chosen.items() if name not in (one, other)}
    lines = [*chosen.get("sbatch", ()), *args.sbatch]
    return chosen | given | {"sbatch": tuple(map(sbatch_line, lines))}


def _request(args: argparse.Namespace, site: Site | None, chosen: dict[str, Any]) -> Request:
    """The job, with defaults that depend on the rest."""
    gpus = chosen.get("gpus_per_node", 0) or chosen.get("gpus_per_task", 0)
    if chosen.get("memory_per_gpu_mb") and not gpus:
        raise UserError("--memory-per-gpu-mb: the job has no GPUs; use --memory-mb, or --gpus-per-node too")
    lead, limit = chosen.get("lead", 0), 60 * (minutes(args.time) or 0)
    if 0 < limit <= lead or lead > _LONGEST_LEAD:  # a limit of 0 is none
        raise UserError(
            f"--lead {lead}: expected less than --time {args.time}, and at most {_LONGEST_LEAD:,} seconds"
        )
    wanted = "" if chosen.get("mpi") == "default" else chosen.get("mpi")
    defaults = {
        "ranks_per_node": chosen.get("gpus_per_node") or 1,
        "memory_mb": GPU_RANK_MB if gpus else CPU_RANK_MB,
    }
    lists = {name: tuple(chosen.get(name, ())) for name in ("srun", "setup")}
    return Request(
        source=args.source,
        out="",
        time=args.time,
        ranks_per_run=args.ranks_per_run,
        pack=args.pack,
        as_array=args.array,
        at_a_time=args.at_a_time,
        site=f"For {site.about}, by the profile {site.source}." if site else "",
        **(defaults | chosen | lists | {"mpi": srun_type() if wanted is None else wanted}),
    )


def _refuse_what_the_cluster_refuses(args: argparse.Namespace, site: Site | None, request: Request) -> None:
    """What sbatch would say later, as far as it can be known here."""
    if site:
        refuse_missing_needs(site, asdict(request))
    source = f"site profile {args.site}" if site and not args.partition else "--partition"
    refuse_unknown_partition(request.partition, source)


def _with_trial(
    request: Request, config: Config, points: list[Point], *, fixed: bool
) -> tuple[Request, float]:
    """Memory of a rank and seconds of all work, from a few rounds on one rank here."""
    from fedmpi.experiments.sweep.trial import measure  # torch takes seconds to load

    with mpi.session(simulates=False) as comm:
        cost = measure(comm, config)
    memory = math.ceil(cost.memory_mb * _MARGIN / 100) * 100
    if request.gpus_on_a_node:  # which add what a login node does not show
        memory = max(memory, GPU_RANK_MB)
    ranks = request.num_ranks
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
