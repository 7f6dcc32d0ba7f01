"""The arguments of `fedmpi slurm`; those that a site's profile has too have no default here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from fedmpi.experiments.job_request import HINTS, LAUNCHERS


def add_slurm(commands: argparse._SubParsersAction) -> None:
    """The command and its arguments."""
    count, positive = _integer_from(0), _integer_from(1)
    job = commands.add_parser("slurm", help="write a SLURM job script for a config or a sweep")
    job.add_argument("source", metavar="CONFIG|SWEEP", help="TOML file")
    job.add_argument("--out", help="result file or folder (default: named after the TOML file)")
    job.add_argument("--script", metavar="JOB.sh", help="write to this file instead of printing")
    job.add_argument("--trial", action="store_true", help="run a few rounds here for memory and time")

    # What is run.
    job.add_argument("--ranks-per-run", type=positive, default=1, metavar="K", help="of a sweep's runs")
    job.add_argument("--array", action="store_true", help="a sweep as an array of jobs, one for each run")
    job.add_argument(
        "--pack", type=positive, default=0, metavar="K",
        help="runs in lockstep, see sweep; with --array, so many for each job",
    )  # fmt: skip
    job.add_argument("--at-a-time", type=positive, default=0, help="jobs of the array")
    job.add_argument("--retries", type=count, help="how often it may requeue itself (default: 20)")

    # On what.
    job.add_argument(
        "--site", metavar="NAME|FILE",
        help="profile of a cluster: perlmutter, lumi-g, juwels-booster, or a TOML file; other options win",
    )  # fmt: skip
    job.add_argument("--nodes", type=positive)
    job.add_argument("--ranks-per-node", type=positive, help="default: one for each GPU, else one")
    job.add_argument("--cpus-per-rank", type=positive, help="default: 1; for GPU ranks cores / GPUs")
    job.add_argument("--gpus-per-node", type=count)
    job.add_argument("--gpus-per-task", type=count, metavar="K", help="instead: a rank sees only its own")
    job.add_argument(
        "--memory-mb", type=count,
        help="of a rank (default: 2000, with GPUs 16000, or from --trial); 0 leaves it to the site",
    )  # fmt: skip
    job.add_argument("--memory-per-gpu-mb", type=positive, help="instead: by GPU")
    job.add_argument(
        "--hint", choices=HINTS, help="nomultithread: ranks share no core where cores have several threads"
    )

    # How SLURM is asked.
    job.add_argument("--time", required=True, help="limit of one job: minutes, HH:MM:SS or D-HH:MM:SS")
    job.add_argument(
        "--lead", type=positive, metavar="SECONDS",
        help="how long before the end to write a checkpoint and stop (default: 120)",
    )  # fmt: skip
    for name in ("account", "partition", "qos", "constraint"):
        job.add_argument(f"--{name}")
    job.add_argument(
        "--sbatch", action="append", default=[], metavar="LINE",
        help="another option of sbatch, such as --mail-type=END; may be given several times",
    )  # fmt: skip
    job.add_argument("--launcher", choices=LAUNCHERS, help="default: srun")
    job.add_argument(
        "--mpi", metavar="TYPE|default",
        help="of `srun --mpi`, or SLURM's own default (default: what the MPI of this environment needs)",
    )  # fmt: skip


def with_sbatch_lines(words: list[str]) -> Iterator[str]:
    """The words of a command line, with `--sbatch LINE` as one word: a LINE may begin with a dash.

    >>> list(with_sbatch_lines(["slurm", "c.toml", "--sbatch", "--mem=0", "--time", "5"]))
    ['slurm', 'c.toml', '--sbatch=--mem=0', '--time', '5']
    """
    rest = iter(words)
    for word in rest:
        line = next(rest, None) if word == "--sbatch" else None
        yield word if line is None else f"{word}={line}"


def _integer_from(least: int) -> Callable[[str], int]:
    """Reads an integer that is not smaller."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= {least}")
        return int(text)

    return read
