"""`fedmpi verify` and `fedmpi diff`: are the bits the same, and if not, where do they first differ?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedmpi import mpi
from fedmpi.config import Config, validate
from fedmpi.errors import EXIT_DONE, EXIT_FAILURE, UserError
from fedmpi.experiments.lifecycle import start
from fedmpi.mpi.launcher import relaunch
from fedmpi.results.compare import config_differences, first_difference, parameter_difference
from fedmpi.storage.reader import Run, load_run


def diff(path: str, other: str) -> int:
    """Print how two runs differ; exit status 0 if they do not, 1 if they do."""
    a, b = load_run(path), load_run(other)
    for line in config_differences(a, b):
        print(f"config {line}")
    difference = first_difference(a, b)
    if difference:
        print(f"results differ: {difference.text}")
        return EXIT_FAILURE
    print(f"results are the same, bit for bit: {len(a.train):,} rounds, {len(a.eval):,} evaluations")
    return EXIT_DONE


def verify(config_path: str, overrides: Sequence[str], ranks: Sequence[int]) -> int:
    """Collective. Run a config on each number of ranks and compare the bits."""
    if mpi.launched_size() < max(ranks):
        relaunch(max(ranks))
    with (
        mpi.session(simulates=False) as comm,
        tempfile.TemporaryDirectory(prefix="fedmpi-verify-") as folder,
    ):
        if comm.size < max(ranks):
            raise UserError.on_all_ranks(
                f"--ranks {max(ranks)}: MPI has {comm.size} ranks; launch with mpirun -n {max(ranks)}"
            )
        config = comm.on_root(lambda: validate.load(config_path, overrides))
        config = replace(config, run=replace(config.run, tensorboard=False))  # its files are not kept
        runs = [_run_on(comm, config, count, Path(folder)) for count in ranks]
        for count, run in zip(ranks[1:], runs[1:], strict=True):
            place = comm.on_root(lambda run=run: first_difference(runs[0], run))
            if place is None:
                continue
            # Only the first round that differs shows which parameter was first to differ.
            if place.round is not None:
                rounds = min(place.round + 1, config.run.num_rounds)
                short = replace(config, run=replace(config.run, num_rounds=rounds))
                pair = [_run_on(comm, short, n, Path(folder)) for n in (ranks[0], count)]
            if comm.is_root:
                print(f"{ranks[0]} and {count} ranks differ: {place.text}")
                if place.round is not None:
                    print(f"after that round {parameter_difference(*pair)}")
            return EXIT_FAILURE
        if comm.is_root:
            print(
                f"the same bits on {', '.join(map(str, ranks))} ranks: "
                f"{len(runs[0].train):,} rounds, {len(runs[0].eval):,} evaluations"
            )
    return EXIT_DONE


def _run_on(comm: mpi.Comm, config: Config, count: int, folder: Path) -> Run | None:
    """Collective. The results of a run on the first `count` ranks; on rank 0."""
    some = comm.first(count)
    path = folder / f"{count}.h5"
    if some is not None:
        prepared = start(some, config, path)
        if comm.is_root:
            print(f"{config.run.num_rounds:,} rounds on {count} rank{'s' * (count > 1)} ...", flush=True)
        prepared.simulation.run(prepared.file)
    comm.barrier()  # the others wait here
    return load_run(path) if comm.is_root else None
