"""Arguments of `fedmpi data`."""

from __future__ import annotations

import argparse

from fedmpi.cli.number_arguments import index, positive, seconds, share


def add_data(commands: argparse._SubParsersAction) -> None:
    """`fedmpi data prepare`, `convert` and `trace`."""
    data = commands.add_parser("data", help="prepare data sets")
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepare = actions.add_parser(
        "prepare", help="import or download a data set, verify it, store it as one HDF5 file"
    )
    prepare.add_argument("name", help="fashion-mnist or cifar-10")
    prepare.add_argument("--root", default="data", help="folder to store it in (default: data)")
    prepare.add_argument("--from", dest="source", help="folder with the original files")

    _add_convert(actions)
    trace = actions.add_parser(
        "trace", help="turn an activity log in seconds into a trace of rounds, for availability = trace"
    )
    trace.add_argument(
        "file",
        help="FedScale's trace (.json, or its pickle), FLASH's states of phones (.json), or .csv with "
        "columns client,start,end",
    )
    trace.add_argument("--out", required=True, metavar="TRACE.csv", help=".csv or .h5 file")
    trace.add_argument(
        "--round-seconds", type=seconds, default=60.0, metavar="S", help="length of a round (default: 60)"
    )
    trace.add_argument(
        "--ready", metavar="A,B", help="FLASH: conditions of a phone that is available, of charging, wifi, "
        "screen-off and locked (default: charging,wifi; its authors': charging,wifi,locked)",
    )  # fmt: skip
    trace.add_argument("--force", action="store_true", help="overwrite an earlier trace")


def _add_convert(actions: argparse._SubParsersAction) -> None:
    convert = actions.add_parser(
        "convert", help="data whose clients are real (LEAF, TFF, folders, CSV, plays) as one HDF5 file"
    )
    convert.add_argument("kind", help="leaf, tff, folder, csv or plays")
    convert.add_argument("path", help="file or folder")
    convert.add_argument("--out", required=True, metavar="FILE.h5", help="for data.dataset")
    convert.add_argument(
        "--test-share", type=share, default=0.2, metavar="X",
        help="of each client's samples, where the source has no test samples (default: 0.2)",
    )  # fmt: skip
    convert.add_argument(
        "--held-out", type=share, default=0.0, metavar="X", help="share of clients that never train"
    )
    convert.add_argument(
        "--min-samples", type=index, default=0, metavar="K", help="leave out clients with fewer"
    )
    convert.add_argument(
        "--num-classes", type=positive, metavar="K", help="labels 0 to K - 1 (default: the largest + 1)"
    )
    convert.add_argument("--seed", type=index, default=1, help="draws test samples and held-out clients")
    convert.add_argument(
        "--length", type=positive, default=80, metavar="L", help="text: tokens of a sequence (default: 80)"
    )
    convert.add_argument(
        "--words", default="sequence", choices=("sequence", "bag"),
        help="tweets: words in their order, or how often each occurs (default: sequence)",
    )  # fmt: skip
    convert.add_argument(
        "--vocabulary", type=positive, default=10_000, metavar="K", help="tweets: words that are kept"
    )
    convert.add_argument("--client-column", default="client", metavar="NAME", help="csv (default: client)")
    convert.add_argument("--label-column", default="label", metavar="NAME", help="csv (default: label)")
    convert.add_argument("--standardise", action="store_true", help="numbers: mean 0 and std 1 in training")
    convert.add_argument("--force", action="store_true", help="overwrite an earlier file")
