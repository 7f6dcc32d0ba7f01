"""Every command's arguments, and what they accept."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from fedmpi import __version__
from fedmpi.cli.data_arguments import add_data
from fedmpi.cli.number_arguments import index, names, positive, rank_list, seconds
from fedmpi.cli.slurm_arguments import add_slurm
from fedmpi.cli.starting_arguments import add_starting
from fedmpi.cli.sweep_arguments import add_sweeping
from fedmpi.errors import EXIT_BAD_INPUT


class _Parser(argparse.ArgumentParser):
    """Prints usage errors once, not once per rank."""

    def error(self, message: str) -> NoReturn:
        from fedmpi.mpi import launched_rank

        if launched_rank() == 0:
            print(f"fedmpi: error: {message}\n{self.format_usage()}", end="", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


def make_parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = _Parser(
        prog="fedmpi",
        description="Simulate federated learning under arbitrary client participation, under MPI.",
    )
    parser.add_argument("--version", action="version", version=f"fedmpi {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    add_starting(commands)
    _add_simulating(commands)
    add_sweeping(commands)
    add_slurm(commands)
    _add_planning(commands)
    _add_looking(commands)
    add_data(commands)
    return parser


def _add_simulating(commands: argparse._SubParsersAction) -> None:
    run = commands.add_parser("run", help="one simulation; also under mpirun or srun")
    run.add_argument("config", help="TOML file, see configs/")
    run.add_argument("--out", required=True, metavar="RUN.h5", help="result file")
    _add_set(run)
    run.add_argument("--force", action="store_true", help="overwrite an earlier run")

    resume = commands.add_parser("resume", help="go on from the newest checkpoint, on any number of ranks")
    resume.add_argument("run", metavar="RUN.h5")
    _add_set(resume)
    resume.add_argument("--trust", action="store_true", help="run code that another user's file names")
    resume.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="S",
        help="seconds to wait for a job that writes the file",
    )
    resume.add_argument(
        "--force-lock", action="store_true", help="take the file over from a dead process on another host"
    )

    verify = commands.add_parser(
        "verify", help="run a config on several numbers of ranks, compare the bits"
    )
    verify.add_argument("config", help="TOML file")
    verify.add_argument("--ranks", type=rank_list, default=[1, 2, 3], help="such as 1,2,3")
    _add_set(verify)

    bench = commands.add_parser("bench", help="the speed figures, each a ratio taken in one run")
    bench.add_argument("--quick", action="store_true", help="fewer turns")
    bench.add_argument("--ranks", type=positive, default=2, help="ranks to start (default: 2)")
    bench.add_argument(
        "--only", type=names, metavar="NAME,...",
        help="of fashion, logistic, cifar, evaluation, rounds, seeds, roofline, clients",
    )  # fmt: skip
    bench.add_argument("--save", metavar="FILE", help="add the figures to a record of earlier ones")
    bench.add_argument("--against", metavar="FILE", help="compare with the newest figures of a record")
    bench.add_argument("--json", metavar="FILE", help="write the figures there")
    bench.add_argument("--plot", metavar="FIG.png", help="draw scaling in ranks and in clients")
    bench.add_argument(
        "--project-ranks", type=rank_list, metavar="16,64,256", help="extrapolate by an alpha-beta model"
    )
    bench.add_argument("--latency-us", type=float, default=2.0, help="of a message between nodes")
    bench.add_argument("--bandwidth-gbs", type=float, default=12.0, help="of a link between nodes, GB/s")


def _add_planning(commands: argparse._SubParsersAction) -> None:
    check = commands.add_parser("check", help="validate a config; show what it would do and cost")
    check.add_argument("config", help="TOML file")
    _add_set(check)
    check.add_argument("--ranks", type=positive, default=1, help="number of ranks to plan for")
    check.add_argument("--plot", metavar="FIG.png", help="draw who takes part: PNG, PDF or SVG file")
    check.add_argument("--all", action="store_true", help="print keys without effect too")

    schema = commands.add_parser("schema", help="every config key: a JSON schema for editors, or a page")
    schema.add_argument("--out", metavar="FILE", help="write to this file instead of printing")
    schema.add_argument("--markdown", action="store_true", help="a page to read instead of a JSON schema")
    schema.add_argument(
        "--page", choices=("keys", "commands", "format", "python"),
        help="another reference page: config keys (as --markdown), commands, the file format, Python names",
    )  # fmt: skip

    advise = commands.add_parser("advise", help="theory: evenness, the bound, suggested P, gamma and eta")
    advise.add_argument("config", help="TOML file")
    advise.add_argument(
        "--at", metavar="RUN.h5", help="measure constants at the model of a run; under MPI too"
    )
    advise.add_argument("--measure", action="store_true", help="measure constants at the initial model")
    advise.add_argument("--json", action="store_true", help="one JSON object instead of text")
    advise.add_argument(
        "--plot", metavar="FIG.png", help="draw delta^2(P) and the bound: PNG, PDF or SVG file"
    )
    _add_set(advise)

    realised = commands.add_parser("participation", help="write who takes part, and with what weight")
    realised.add_argument("config", help="TOML file")
    realised.add_argument("--out", required=True, metavar="Q.h5", help=".h5 or .csv file, a schedule")
    realised.add_argument("--rounds", type=positive, help="how many (default: run.num_rounds)")
    realised.add_argument("--force", action="store_true", help="overwrite an earlier schedule")
    _add_set(realised)


def _add_looking(commands: argparse._SubParsersAction) -> None:
    diff = commands.add_parser("diff", help="how two runs differ, and where they part")
    diff.add_argument("run", metavar="A.h5")
    diff.add_argument("other", metavar="B.h5")

    compare = commands.add_parser(
        "compare", help="two settings seed by seed: difference, interval, p value, seeds needed"
    )
    compare.add_argument("a", metavar="A", help="runs of a setting: a file, a folder, or a quoted pattern")
    compare.add_argument("b", metavar="B", help="those of the other")
    compare.add_argument("--metric", default="train_loss", help="such as train_loss or test_accuracy")
    compare.add_argument(
        "--window", type=positive, metavar="R",
        help="average the evaluations of the last R rounds (default: whole cycles, about a twentieth)",
    )  # fmt: skip
    compare.add_argument("--json", action="store_true", help="one JSON object instead of text")

    replay = commands.add_parser("replay", help="one client's update of one round again, without MPI")
    replay.add_argument("run", metavar="RUN.h5")
    replay.add_argument("--round", type=index, required=True, metavar="T", help="round, from 0")
    replay.add_argument("--client", type=index, required=True, metavar="N", help="client, from 0")
    replay.add_argument("--trust", action="store_true", help="run code that another user's file names")

    info = commands.add_parser("info", help="what a result file holds")
    info.add_argument("run", metavar="RUN.h5")
    info.add_argument("--all", action="store_true", help="print config keys without effect too")

    plot = commands.add_parser("plot", help="curves of runs, and the paper's figures, as a picture")
    plot.add_argument("runs", nargs="+", metavar="RUN.h5|DIR")
    plot.add_argument("--out", required=True, metavar="FIG.png", help="PNG, PDF or SVG file")
    plot.add_argument(
        "--preset",
        help="methods, intervals (P), rates (gamma), amplification (eta), regularized (against independent "
        "participation), clients, participation, timing, appendix",
    )
    plot.add_argument(
        "--x", default="rounds", metavar="CLOCK",
        help="along the curves: rounds (default), local-steps, bytes, seconds or energy",
    )  # fmt: skip
    plot.add_argument(
        "--trajectory", action="store_true", help="draw the way of x instead, for two parameters"
    )

    watch = commands.add_parser("watch", help="a live view of a run, or of all runs of a folder")
    watch.add_argument("run", metavar="RUN.h5|DIR")
    watch.add_argument("--once", action="store_true", help="print one frame")
    watch.add_argument(
        "--every", type=seconds, default=2.0, metavar="S", help="between frames (default: 2)"
    )

    report = commands.add_parser(
        "report", help="runs as one HTML page with figures and curves to look into"
    )
    report.add_argument("runs", nargs="+", metavar="RUN.h5|DIR")
    report.add_argument("--out", required=True, metavar="report.html", help="HTML file")

    export = commands.add_parser("export", help="one table of runs for other tools")
    export.add_argument("runs", nargs="+", metavar="RUN.h5|DIR")
    export.add_argument("--out", required=True, metavar="FILE.csv", help=".csv, .json or .parquet file")
    export.add_argument(
        "--table", default="eval", help="eval (default), train, participation, clients or clients_eval"
    )


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        help="override a config key",
    )
