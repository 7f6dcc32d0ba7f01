"""The figures of `fedmpi bench` as text."""

from __future__ import annotations

import math
from typing import Any

from fedmpi.experiments.bench.passes import Passes
from fedmpi.simulation.running_total import most_kept

NUM_PARAMS = 228_586  # of the CNN for FashionMNIST


def table(results: dict[str, Any]) -> str:
    """The figures for reading."""
    lines = []
    for key in ("fashion", "logistic", "cifar"):
        if key in results:
            lines += _comparison(key, results[key])
    lines += [_evaluated(model, r) for model, r in results.get("evaluation", {}).items()]
    if "rounds" in results:
        r = results["rounds"]
        lines.append(
            f"rounds     {r['rounds_per_s']:,.0f} rounds/s of the appendix example on one rank, "
            f"{1e6 / r['rounds_per_s']:.0f} us each, {r['times_by_hand']:.0f} times numpy by hand"
        )
    if "seeds" in results:
        r = results["seeds"]
        lines.append(
            f"seeds      {r['run_rounds_per_s']:,.0f} rounds/s in all of {r['seeds']} seeds in lockstep, "
            f"{r['one_by_one_run_rounds_per_s']:,.0f} one by one: {r['ratio']:.2f} times "
            f"(medians {r['ratio_median']:.2f})"
        )
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
    return lines


def _evaluated(model: str, r: dict[str, Any]) -> str:
    seconds, plain = (f"{r[key]:.3g}" for key in ("seconds", "plain_seconds"))
    return (
        f"evaluation {r['samples']:,} samples by {model} in {seconds} s on {r['ranks']} ranks, plain loop "
        f"{plain} s: {r['ratio']:.2f} times (medians {r['ratio_median']:.2f})"
    )


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


def projection(
    results: dict[str, Any], ranks: list[int], latency_us: float, bandwidth_gbs: float, passes: Passes
) -> str:
    """Rounds/s on many nodes: steps, passes over vectors here, and an alpha-beta model of messages."""
    step, num_params = results["roofline"]["step_ms"] / 1e3, NUM_PARAMS
    lines = [
        "projection for FMNIST, I = 5, from the measured step time; assumed: a rank a node or more,",
        f"           latency {latency_us:g} us, {bandwidth_gbs:g} GB/s; two or three allreduces of "
        "2 log2(R) latencies, that of the",
        f"           sum with 2 (R-1)/R of {8 * num_params / 1e6:.1f} MB, twice that for more "
        f"than {most_kept(num_params)} clients; measured on the host:",
        f"           {1e3 * passes.kept:.2f} or {1e3 * passes.streamed:.2f} ms to add a client, "
        f"{1e3 * passes.server:.2f} ms a round; not counted: evaluation, output,",
        "           jitter, loans. S = clients a round.",
        "           ranks   S = 10 rounds/s   efficiency   S = 10 R rounds/s   efficiency",
    ]
    for count in ranks:
        cells = []
        for clients in (10, 10 * count):
            # Each rank trains and adds its share; then all meet.
            is_streamed = clients > most_kept(num_params)
            hops, collectives = math.ceil(math.log2(count)), 2 + (clients > 56)
            sent = 2 * (count - 1) / count * 8 * (1 + is_streamed) * num_params / (bandwidth_gbs * 1e9)
            exchange = collectives * 2 * hops * latency_us * 1e-6 + sent
            each = 5 * step + (passes.streamed if is_streamed else passes.kept)
            seconds = math.ceil(clients / count) * each + exchange + passes.server
            cells += [1 / seconds, clients * 5 * step / count / seconds]
        lines.append(
            f"           {count:>5} {cells[0]:>17.1f} {cells[1]:>12.0%} {cells[2]:>19.1f} {cells[3]:>12.0%}"
        )
    return "\n".join(lines)
