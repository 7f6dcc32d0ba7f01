"""`fedmpi bench`: the speed figures, as a table, as JSON and as a picture."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fedmpi import __version__, mpi
from fedmpi.cli.bench_table import NUM_PARAMS, projection, table
from fedmpi.errors import EXIT_DONE, UserError
from fedmpi.experiments.bench.passes import host_passes
from fedmpi.experiments.bench.record import add_to_record, compared, read_record
from fedmpi.mpi.launcher import relaunch
from fedmpi.results.plots.style import figure_target, save_figure
from fedmpi.storage.output import write_output

FIGURES = ("fashion", "logistic", "cifar", "evaluation", "rounds", "seeds", "roofline", "clients")


def bench(args: argparse.Namespace) -> int:
    """Collective. Measure, print, and write what was asked for."""
    wanted = args.only or list(FIGURES)
    unknown = [name for name in wanted if name not in FIGURES]
    if unknown:
        raise UserError(f"--only {unknown[0]}: no such figure; expected some of {', '.join(FIGURES)}")
    if args.project_ranks and "roofline" not in wanted:
        raise UserError("--project-ranks needs the roofline figure: add it to --only")
    picture = figure_target(args.plot, "--plot") if args.plot else None
    before = read_record(Path(args.against), "--against") if args.against else []
    if args.save and Path(args.save).exists():
        read_record(Path(args.save), "--save")  # a bad file is reported before the work
    if mpi.launched_size() < args.ranks:
        relaunch(args.ranks, oversubscribe=False)
    with mpi.session(simulates=False) as comm:
        from fedmpi.mpi.device import choose_device

        choose_device("cpu", comm.node_rank)
        results = _measure(comm, wanted, quick=args.quick)
        if comm.is_root:
            print(table(results))
            if args.project_ranks:
                network = args.latency_us, args.bandwidth_gbs
                print(projection(results, args.project_ranks, *network, host_passes(NUM_PARAMS)))
            if before:
                print("\n".join(compared(results, before[-1])))
            if args.save:
                add_to_record(Path(args.save), results)
            if args.json:
                write_output(Path(args.json), json.dumps(results, indent=1).encode() + b"\n", "--json")
            if picture:
                _plot(results, picture)
    return EXIT_DONE


def _measure(comm: mpi.Comm, wanted: list[str], *, quick: bool) -> dict[str, Any]:
    """Collective. All figures asked for; complete on rank 0."""
    from fedmpi.experiments.bench import figures, small

    def say(text: str) -> None:
        if comm.is_root:
            print(f"  {text} ...", flush=True)

    turns = 2 if quick else 7
    fashion, logistic = figures.FASHION, figures.LOGISTIC
    if quick:  # fewer samples to load and to evaluate
        fashion, logistic = (replace(job, num_train=12_000, num_test=2_000) for job in (fashion, logistic))
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "version": f"fedmpi {__version__}, torch {metadata.version('torch')}",
        "machine": f"{platform.machine()}, {comm.size} ranks",
        "mpi": comm.library,
    }
    if "fashion" in wanted:
        results["fashion"] = figures.against_plain(comm, fashion, 6 if quick else 10, turns, say)
    if "logistic" in wanted:
        results["logistic"] = figures.against_plain(comm, logistic, 30, turns + 1, say)
    if "cifar" in wanted:
        results["cifar"] = figures.against_plain(comm, figures.CIFAR, 3, turns, say)
    if "evaluation" in wanted:
        results["evaluation"] = {
            job.model: figures.evaluation(comm, job, 1 if quick else 4, say) for job in (fashion, logistic)
        }
    if "rounds" in wanted:
        results["rounds"] = small.fixed_cost(comm, 500 if quick else 2_000, turns, say)
    if "seeds" in wanted:
        results["seeds"] = small.packed_seeds(comm, 10, 150 if quick else 500, turns - 1, say)
    if "roofline" in wanted:
        results["roofline"] = figures.roofline(comm, fashion, turns, say)
    if "clients" in wanted:
        counts = [250, 1_000_000] if quick else [250, 1_000, 10_000, 100_000, 1_000_000]
        results["clients"] = figures.scale_in_clients(comm, counts, say)
        if comm.is_root:
            results["file_bytes_per_round"] = figures.bytes_per_round(results["clients"][0])
    return results


def _plot(results: dict[str, Any], target: Path) -> None:
    """Strong scaling in ranks, and cost against N."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.8))
    colours = {"fashion": "#0072B2", "logistic": "#D55E00", "cifar": "#009E73"}
    for key, colour in colours.items():
        if key in results:
            r = results[key]
            left.plot([1, r["ranks"]], [1, r["scaling"]], "o-", color=colour, label=key)
            left.plot([1, r["ranks"]], [1, r["ranks"]], ":", color="0.6")
    left.set(xlabel="Ranks", ylabel="Speed over one rank", title="Strong scaling (dotted: ideal)")
    left.legend(frameon=False)
    rows = results.get("clients", [])
    for key, label, colour in (
        ("outside_local_sgd_ms", "outside local SGD, ms a round", "#0072B2"),
        ("start_s", "start of the run, s", "#D55E00"),
    ):
        points = [(row["num_clients"], row[key]) for row in rows]
        if points:
            right.loglog(*zip(*points, strict=True), "o-", color=colour, label=label)
    right.set(xlabel="Clients N", title="Cost against N (one rank)")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    save_figure(figure, target, "--plot")
    pyplot.close(figure)
    print(target)
