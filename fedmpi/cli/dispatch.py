"""From the words of a command line to the command that they name, and its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from fedmpi.cli.arguments import make_parser
from fedmpi.cli.slurm_arguments import with_sbatch_lines
from fedmpi.errors import UserError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:2] == ["sweep", "best"]:
        words[:2] = ["sweep-best"]
    if words[:1] == ["slurm"]:
        words = list(with_sbatch_lines(words))
    args = make_parser().parse_args(words)
    # One thread a rank, set before torch loads; a user's own setting wins.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        sys.exit(_dispatch(args))
    except UserError as error:
        print(f"fedmpi: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output left, as `fedmpi info RUN.h5 | head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _dispatch(args: argparse.Namespace) -> int:
    # Each command imports only what it needs: `info` and `plot` load neither torch nor MPI.
    if args.command == "new":
        from fedmpi.cli.new import new

        return new(args.method, args.participation, args.task, args.out, force=args.force)
    if args.command == "help":
        from fedmpi.cli.help import show_help

        return show_help(" ".join(args.topic))
    if args.command == "run":
        from fedmpi.cli.run import run

        return run(args.config, args.out, args.set, force=args.force)
    if args.command == "resume":
        from fedmpi.cli.run import resume

        how = {"trust": args.trust, "wait": args.wait, "force_lock": args.force_lock}
        return resume(args.run, args.set, **how)
    if args.command == "sweep":
        from fedmpi.cli.sweep import sweep

        return sweep(args)
    if args.command == "sweep-best":
        from fedmpi.cli.sweep import best

        return best(args.folder, args.metric, args.last, everything=args.all)
    if args.command == "reproduce":
        from fedmpi.cli.reproduce import reproduce

        return reproduce(args)
    if args.command == "slurm":
        from fedmpi.cli.slurm import slurm

        return slurm(args)
    if args.command == "check":
        from fedmpi.cli.check import check

        return check(args.config, args.set, args.ranks, args.plot, everything=args.all)
    if args.command == "schema":
        from fedmpi.cli.schema import schema

        return schema(args.out, args.page or ("keys" if args.markdown else None))
    if args.command == "advise":
        from fedmpi.cli.advise import advise

        how = {"at": args.at, "measure": args.measure, "as_json": args.json, "plot": args.plot}
        return advise(args.config, args.set, **how)
    if args.command == "participation":
        from fedmpi.cli.participation import write_participation

        return write_participation(args.config, args.set, args.out, args.rounds, force=args.force)
    if args.command == "verify":
        from fedmpi.cli.verify import verify

        return verify(args.config, args.set, args.ranks)
    if args.command == "bench":
        from fedmpi.cli.bench import bench

        return bench(args)
    if args.command == "replay":
        from fedmpi.cli.replay import show

        return show(args.run, args.round, args.client, trust=args.trust)
    if args.command == "diff":
        from fedmpi.cli.verify import diff

        return diff(args.run, args.other)
    if args.command == "compare":
        from fedmpi.cli.compare_runs import compare_runs

        return compare_runs(args.a, args.b, args.metric, args.window, as_json=args.json)
    if args.command == "info":
        from fedmpi.cli.info import info

        return info(args.run, everything=args.all)
    if args.command == "plot":
        from fedmpi.cli.plot import plot

        return plot(args.runs, args.out, args.preset, x=args.x, trajectory=args.trajectory)
    if args.command == "watch":
        from fedmpi.cli.watch import watch

        return watch(args.run, once=args.once, every=args.every)
    if args.command == "report":
        from fedmpi.cli.report import report

        return report(args.runs, args.out)
    if args.command == "export":
        from fedmpi.cli.export import export

        return export(args.runs, args.out, args.table)
    if args.action == "trace":
        from fedmpi.cli.trace import import_trace

        return import_trace(args.file, args.out, args.round_seconds, ready=args.ready, force=args.force)
    if args.action == "convert":
        from fedmpi.cli.convert import convert

        return convert(args)
    from fedmpi.cli.prepare import prepare

    return prepare(args.name, args.root, args.source)
