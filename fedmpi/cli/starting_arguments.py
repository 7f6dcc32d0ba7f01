"""The arguments of `fedmpi new` and `fedmpi help`."""

from __future__ import annotations

import argparse


def add_starting(commands: argparse._SubParsersAction) -> None:
    """Both commands."""
    new = commands.add_parser(
        "new", help="write a starting config, with the keys that matter and what they mean"
    )
    new.add_argument("--method", default="fedavg", metavar="NAME", help="algorithm.name (default: fedavg)")
    new.add_argument(
        "--participation", default="periodic", metavar="NAME",
        help="participation.availability, or several at once: sinusoidal,markov (default: periodic)",
    )  # fmt: skip
    new.add_argument(
        "--task", default="classification", metavar="NAME", help="task.name (default: classification)"
    )
    new.add_argument("--out", metavar="FILE.toml", help="write to this file instead of printing")
    new.add_argument("--force", action="store_true", help="overwrite an earlier file")

    explained = commands.add_parser(
        "help", help="what a config key, a name that a key accepts, or a command means"
    )
    explained.add_argument(
        "topic", nargs="*", metavar="NAME", help="such as algorithm.amplify_every, markov, scaffold, run"
    )
