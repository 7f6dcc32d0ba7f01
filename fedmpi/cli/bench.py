"""`fedmpi bench`: the speed figures, as a table, as JSON and as a picture."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmpi import mpi
from fedmpi.errors import EXIT_DONE, UserError
from fedmpi.mpi.launcher import relaunch
from fedmpi.results.plots.style import figure_target, save_figure
from fedmpi.storage.output import write_output

FIGURES = ("fashion", "logistic", "cifar", "roofline", "clients")


def bench(args: argparse.Namespace) -> int:
    """Collective. Measure, print, and write what was asked for."""
    wanted = args.only or list(FIGURES)
    unknown = [name for name in wanted if name not in FIGURES]
    if unknown:
        raise UserError(f"--only {unknown[0]}: no such figure; expected some of {', '.join(FIGURES)}")
    if args.project_ranks and "roofline" not in wanted:
        raise UserError("--project-ranks needs the roofline figure: add it to --only")
    picture = figure_target(args.plot, "--plot") if args.plot else None
    if mpi.launched_size() < args.ranks:
        relaunch(args.ranks, oversubscribe=False)
    with mpi.session() as comm:
        from fedmpi.mpi.device import choose_device

        choose_device("cpu", comm.node_rank)
        results = _measure(comm, wanted, quick=args.quick)
        if comm.is_root:
            print(table(results))
            if args.project_ranks:
                print(projection(results, args.project_ranks, args.latency_us, args.bandwidth_gbs))
            if args.json:
                write_output(Path(args.json), json.dumps(results, indent=1).encode() + b"\n", "--json")
            if picture:
                _plot(results, picture)
    return EXIT_DONE


def _measure(comm: mpi.Comm, wanted: list[str], *, quick: bool) -> dict[str, Any]:
    """Collective. All figures asked for; complete on rank 0."""
    from fedmpi.experiments.bench import figures

    def say(text: str) -> None:
        if comm.is_root:
            print(f"  {text} ...", flush=True)

    turns = 2 if quick else 7
    fashion, logistic = figures.FASHION, figures.LOGISTIC
    if quick:  # fewer samples to load and to evaluate
        fashion, logistic = (replace(job, num_train=12_000, num_test=2_000) for job in (fashion, logistic))
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {comm.size} ranks",
        "mpi": comm.library,
    }
    if "fashion" in wanted:
        evaluations = 1 if quick else 3
        rounds = 6 if quick else 10
        results["fashion"] = figures.against_plain(comm, fashion, rounds, turns, say, evaluations)
    if "logistic" in wanted:
        results["logistic"] = figures.against_plain(comm, logistic, 30, turns + 1, say)
    if "cifar" in wanted:
        results["cifar"] = figures.against_plain(comm, figures.CIFAR, 3, turns, say)
    if "roofline" in wanted:
        results["roofline"] = figures.roofline(comm, fashion, turns, say)
    if "clients" in wanted:
        counts = [250, 1_000_000] if quick else [250, 1_000, 10_000, 100_000, 1_000_000]
        results["clients"] = figures.scale_in_clients(comm, counts, say)
        if comm.is_root:
            results["file_bytes_per_round"] = figures.bytes_per_round(results["clients"][0])
    return results


def table(results: dict[str, Any]) -> str:
    """The figures for reading."""
    lines = []
    for key in ("fashion", "logistic", "cifar"):
        if key in results:
            lines += _comparison(key, results[key])
    if "roofline" in results:
        r = results["roofline"]
        lines.append(
            f"roofline   a local CNN step takes {r['step_ms']:.2f} ms for {r['step_mflop']:.0f} MFLOP: "
            f"{r['share_of_sgemm']:.0%} of the {r['sgemm_gflop_per_s']:.0f} GFLOP/s of SGEMM on the core"
        )
        lines.append(f"           {_floor(r, results.get('fashion'))}")
    if "clients" in results:
        lines.append("clients          N   start s   outside SGD ms/round   memory MB")
        for row in results["clients"]:
            lines.append(
                f"         {row['num_clients']:>9,} {row['start_s']:>9.1f} "
                f"{row['outside_local_sgd_ms']:>22.2f} {row['memory_mb']:>11.0f}"
            )
        added = _added_by_clients(results)
        if added is not None:
            lines.append(
                f"           N = 10^6 adds {added:.1%} to a round of the logistic problem (one rank)"
            )
        per_round = results["file_bytes_per_round"]
        lines.append(f"file       {per_round:.0f} bytes a round; 300,000 rounds: {per_round * 0.3:.0f} MB")
    return "\n".join(lines)


def _comparison(key: str, r: dict[str, Any]) -> list[str]:
    lines = [
        f"{key:<10} {r['rounds_per_s']:.2f} rounds/s on {r['ranks']} ranks, plain loop "
        f"{r['plain_rounds_per_s']:.2f} on {r['ranks']} threads: {r['ratio']:.2f} times "
        f"(medians {r['ratio_median']:.2f})",
        f"           {r['ranks']} ranks over 1: {r['scaling']:.2f} times; "
        f"outside local SGD {r['outside_local_sgd']:.1%} of a round: {r['own_overhead']:.1%} for the sum, "
        f"the server and planning, {r['waiting']:.1%} waiting for the slower rank's local SGD",
    ]
    if "evaluation_s" in r:
        lines.append(
            f"           evaluation of {r['evaluation_samples']:,} samples {r['evaluation_s']:.1f} s, "
            f"plain loop {r['plain_evaluation_s']:.1f} s: {r['evaluation_ratio']:.2f} times"
        )
    return lines


def _floor(roofline: dict[str, Any], fashion: dict[str, Any] | None) -> str:
    """What the kernels alone would take, and the speed-up that would allow."""
    share = roofline["share_of_kernels"]
    text = f"its convolutions and matrix products, each alone, take {share:.0%} of that time"
    if fashion is None:
        return text
    limit = fashion["ratio"] / share
    return f"{text}; if all else were free, FMNIST-250 would be {limit:.2f} times the plain loop"


def _added_by_clients(results: dict[str, Any]) -> float | None:
    """What N = 10^6 adds to a logistic round on one rank, as a share of it."""
    rows = {row["num_clients"]: row for row in results["clients"]}
    if "logistic" not in results or 1_000_000 not in rows or 250 not in rows:
        return None
    more = rows[1_000_000]["outside_local_sgd_ms"] - rows[250]["outside_local_sgd_ms"]
    return more / (1e3 / results["logistic"]["rounds_per_s_one_rank"])


def projection(results: dict[str, Any], ranks: list[int], latency_us: float, bandwidth_gbs: float) -> str:
    """Rounds/s on many nodes by an alpha-beta model of the reduction."""
    step, num_bytes = results["roofline"]["step_ms"] / 1e3, 8 * 228_587
    lines = [
        "projection for FMNIST, I = 5, from the measured step time; assumed: one rank a node or more, "
        f"latency {latency_us:g} us,",
        f"           bandwidth {bandwidth_gbs:g} GB/s, allreduce of {num_bytes / 1e6:.1f} MB as "
        "2 log2(R) latencies and 2 (R-1)/R of the bytes, clients spread evenly;",
        "           not counted: evaluation, output, jitter. S = clients a round.",
        "           ranks   S = 10 rounds/s   efficiency   S = 10 R rounds/s   efficiency",
    ]
    for count in ranks:
        hops = math.ceil(math.log2(count)) if count > 1 else 0
        exchange = 2 * hops * latency_us * 1e-6
        exchange += 2 * (count - 1) / count * num_bytes / (bandwidth_gbs * 1e9)
        cells = []
        for clients in (10, 10 * count):
            seconds = math.ceil(clients / count) * 5 * step + exchange
            cells += [1 / seconds, clients * 5 * step / count / seconds]
        lines.append(
            f"           {count:>5} {cells[0]:>17.1f} {cells[1]:>12.0%} {cells[2]:>19.1f} {cells[3]:>12.0%}"
        )
    return "\n".join(lines)


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
