"""The arguments of `fedmpi sweep`, `fedmpi sweep best` and `fedmpi reproduce`."""

from __future__ import annotations

import argparse

from fedmpi.cli.number_arguments import index, names, positive, seed_list


def add_sweeping(commands: argparse._SubParsersAction) -> None:
    """All three."""
    sweep = commands.add_parser(
        "sweep",
        help="many runs from one file; `sweep best DIR` tells which settings were best",
        epilog="fedmpi sweep best DIR --metric train_loss: the best settings of each method.",
    )
    sweep.add_argument(
        "sweep", metavar="SWEEP.toml", help="base config, grid, cases, seeds; or a name that reproduce has"
    )
    sweep.add_argument("--out", metavar="DIR", help="folder of run files and index.csv")
    sweep.add_argument("--ranks-per-run", type=positive, metavar="K", help="ranks of a run (default: 1)")
    sweep.add_argument(
        "--pack", default="auto", metavar="auto|1|K",
        help="runs in lockstep by a group of ranks, which share samples and steps (default: auto)",
    )  # fmt: skip
    sweep.add_argument("--index", type=index, metavar="I", help="only this run, on all ranks: job arrays")
    _add_choosing(sweep)
    sweep.add_argument("--dry-run", action="store_true", help="estimate time and memory by short trials")

    best = commands.add_parser(
        "sweep-best", prog="fedmpi sweep best", help="the best settings of a sweep, `fedmpi sweep best DIR`"
    )
    best.add_argument("folder", metavar="DIR", help="folder of a sweep")
    best.add_argument("--metric", default="train_loss", help="such as train_loss or test_accuracy")
    best.add_argument(
        "--last", type=positive, default=1, help="average this many last evaluations, and whole cycles"
    )
    best.add_argument("--all", action="store_true", help="all settings, best first")

    reproduce = commands.add_parser(
        "reproduce", help="a published experiment from scratch, with its figure and table"
    )
    reproduce.add_argument(
        "name", nargs="?", help="such as periodic, methods, intervals; without: all of them"
    )
    _add_choosing(reproduce)
    reproduce.add_argument("--seeds", type=seed_list, metavar="LIST", help="other ones: 4,5 or 4-13")
    reproduce.add_argument("--rounds", type=positive, help="instead of the published number")
    reproduce.add_argument("--resume", action="store_true", help="go on with all in the folder; add to it")
    reproduce.add_argument("--pack", default="auto", metavar="auto|1|K", help="as of sweep")
    reproduce.add_argument("--out", metavar="DIR", help="folder (default: reproduced/NAME)")


def _add_choosing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="the short version: its [quick] settings, one seed"
    )
    parser.add_argument(
        "--only", type=names, metavar="NAME,...", help="these cases or runs; patterns such as 'wait-*'"
    )
    parser.add_argument("--list", action="store_true", help="print the runs and their states")
    parser.add_argument(
        "--write-configs", metavar="DIR", help="write each run as a config of its own, run nothing"
    )
