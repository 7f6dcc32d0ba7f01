"""`fedmpi advise`: what the paper's theory says about a config, and what it would choose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedmpi.config import Config, validate
from fedmpi.experiments.advising import adviser_of
from fedmpi.experiments.advising import measure as measured
from fedmpi.results.plots.style import figure_target
from fedmpi.theory.advice import Adviser, Known

_TERMS = {
    "start": "8 F/(gamma eta I T): the distance from x_0",
    "nu": "126 gamma^2 L^2 I^2 nu^2: participants differ from each other",
    "beta": "144 gamma^2 L^2 I^2 P^2 beta^2: a round's participants differ from all",
    "delta": "6 delta^2(P): uneven participation over P rounds",
    "noise": "(...) sigma^2: noise of minibatches",
}


def advise(
    config_path: str,
    overrides: Sequence[str],
    *,
    at: str | None,
    measure: bool,
    as_json: bool,
    plot: str | None,
) -> int:
    """Print advice; with `at` or `measure` collective, constants are measured over all ranks."""
    if plot:
        figure_target(plot, "--plot")  # a bad name is reported before the work
    if not at and not measure:
        config = validate.load(config_path, overrides)
        return _tell(config, None, config_path, as_json=as_json, plot=plot)

    from fedmpi import mpi
    from fedmpi.experiments.progress import Progress

    with mpi.session(simulates=False) as comm:
        config = comm.on_root(lambda: validate.load(config_path, overrides))
        progress = Progress(unit="clients") if comm.is_root else None
        known = measured(comm, config, at, progress)
        comm.try_on_root(lambda: _tell(config, known, config_path, as_json=as_json, plot=plot))
    return 0


def _tell(config: Config, known: Known | None, path: str, *, as_json: bool, plot: str | None) -> int:
    adviser = adviser_of(config, known)
    report = adviser.report()
    if plot:
        from fedmpi.results.plots.advice_figure import plot_advice

        plot_advice(adviser, report, config.run.name, plot)
    if as_json:
        print(json.dumps(report, indent=2))
        return 0
    print("\n".join([*_participation_lines(adviser, report, path), "", *_bound_lines(adviser, report)]))
    if plot:
        print(f"\npicture        {plot}")
    return 0


def _participation_lines(adviser: Adviser, report: dict[str, Any], path: str) -> list[str]:
    q, even = adviser.q, report["regularized_P"]
    lines = [
        f"{path}: theory of generalized FedAvg (Wang & Ji 2022)",
        *_caveats(adviser.config),
        f"participation  {q.num_rounds:,} rounds of {q.num_clients:,} clients examined, "
        f"after the warm-up; rho {report['rho']:.4g}; longest absence {report['longest_absence']:,} rounds",
        f"regularized    yes: delta^2(P) = 0 first at P = {even:,}" if even else
        "regularized    no: no P up to half of the rounds examined gives all clients the same weight",
        "",
        f"{'P':>9}  {'delta^2(P)/d^2, worst':>22}  {'mean':>10}   (from weights alone, over intervals)",
    ]  # fmt: skip
    own, wanted = adviser.rates.amplify_every, report["suggested"]["amplify_every"]
    chosen = {own: "this config", wanted: "this config, and suggested" if own == wanted else "suggested"}
    rows = adviser.curve
    shown = {p for p, _, _ in rows[:: max(len(rows) // 10, 1)]} | set(chosen) | {even}
    for period, worst, mean in rows:
        if period in shown:
            lines.append(f"{period:>9,}  {worst:>22.4g}  {mean:>10.4g}   {chosen.get(period, '')}".rstrip())
    return lines


def _caveats(config: Config) -> list[str]:
    if config.algorithm.name == "fedavg":
        return []
    return [f"note: the theory is that of fedavg, not of algorithm.name = {config.algorithm.name!r}"]


def _bound_lines(adviser: Adviser, report: dict[str, Any]) -> list[str]:
    lines = []
    for name, holds in report["conditions"].items():
        lines.append(f"condition      {'holds' if holds else 'FAILS'}: {name}")
    suggested, known = report["suggested"], report["constants"]
    if known is None:
        return [
            *lines,
            f"suggested      amplify_every = {suggested['amplify_every']}",
            f"               Corollary {suggested['corollary']}",
            "unknown        L, sigma^2 and the divergences of this model: no bound, no learning rates. "
            "Measure them with --measure (at x_0) or --at RUN.h5",
        ]
    figures = ", ".join(f"{name} {known[name]:.4g}" for name in ("L", "sigma2", "F", "d2", "beta2", "nu2"))
    lines.append(f"constants      {figures} ({known['source']})")
    if adviser.known.source.startswith("estimates"):
        lines.append(
            "               the theorem needs bounds that hold everywhere: take what follows as a hint"
        )
    lines += ["", f"{'bound on min_t E|grad f(x_t)|^2':<76}  {'this config':>11}  {'suggested':>11}"]
    now, then = report["bound"], report["bound_suggested"]
    for term, text in [*_TERMS.items(), ("total", "total")]:
        lines.append(f"  {text:<74}  {now[term]:>11.4g}  {then[term]:>11.4g}")
    if not all(report["conditions"].values()):
        lines.append("  (a condition fails: for this config the theorem promises nothing)")
    lines += [
        "",
        f"suggested      amplify_every = {suggested['amplify_every']}, "
        f"local_lr = {suggested['local_lr']:.6g}, amplification = {suggested['amplification']:.6g}",
        f"               Corollary {suggested['corollary']}",
    ]
    return lines
