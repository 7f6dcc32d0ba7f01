"""`fedmpi advise`: what the paper's theory says about a config, and what it would choose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedmpi.config import Config, validate
from fedmpi.errors import UserError
from fedmpi.experiments.advising import adviser_of
from fedmpi.experiments.advising import measure as measured
from fedmpi.results.plots.style import figure_target
from fedmpi.theory.advice import Adviser, Known
from fedmpi.theory.chance_report import CORRECTING

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
    if plot and not adviser.weights_count:
        raise UserError(f"--plot {plot}: a picture of weights, which {_who_weighs(config)}")
    if plot:
        from fedmpi.results.plots.advice_figure import plot_advice

        plot_advice(adviser, report, config.run.name, plot)
    if as_json:
        print(json.dumps(report, indent=2))
        return 0
    if adviser.weights_count:
        lines = [*_participation_lines(adviser, report, path), "", *_bound_lines(adviser, report)]
    else:
        lines = _lines_without_weights(config, report, path)
    print("\n".join(lines))
    if plot:
        print(f"\npicture        {plot}")
    return 0


def _lines_without_weights(config: Config, report: dict[str, Any], path: str) -> list[str]:
    """What is left where weights q, and with them bias, delta^2(P) and the bound, are not the method's."""
    return [
        f"{path}: theory of generalized FedAvg (Wang & Ji 2022)",
        f"no advice      the theory is one of weights q, which {_who_weighs(config)}",
        f"participation  {report['rounds_seen']:,} rounds examined, after the warm-up; "
        f"longest absence {report['longest_absence']:,} rounds",
    ]


def _who_weighs(config: Config) -> str:
    return (
        f"algorithm.name = {config.algorithm.name!r} ignores: it weighs clients by itself; "
        "ask for FedAvg under the same participation with --set algorithm.name=fedavg"
    )


def _participation_lines(adviser: Adviser, report: dict[str, Any], path: str) -> list[str]:
    q = adviser.q
    lines = [
        f"{path}: theory of generalized FedAvg (Wang & Ji 2022)",
        *_bias_lines(adviser, report["bias"]),
        *_caveats(adviser.config),
        f"participation  {q.num_rounds:,} rounds of {q.num_clients:,} clients examined, "
        f"after the warm-up; rho {report['rho']:.4g}; longest absence {report['longest_absence']:,} rounds",
        f"regularized    {_regularized_text(adviser)}",
        "",
        f"{'P':>9}  {'delta^2(P)/d^2, worst':>22}  {'mean':>10}   (from weights alone, over intervals)",
    ]
    own, wanted = adviser.rates.amplify_every, report["suggested"]["amplify_every"]
    chosen = {own: "this config"}
    if wanted:
        chosen[wanted] = "this config, and suggested" if own == wanted else "suggested"
    rows = adviser.curve
    nearly = adviser.nearly_regularized
    shown = {p for p, _, _ in rows[:: max(len(rows) // 10, 1)]} | set(chosen)
    shown |= {adviser.regularized, nearly[0] if nearly else None}
    for period, worst, mean in rows:
        if period in shown:
            lines.append(f"{period:>9,}  {worst:>22.4g}  {mean:>10.4g}   {chosen.get(period, '')}".rstrip())
    return [*lines, *_proposition_lines(report["proposition"], shown, report)]


def _bias_lines(adviser: Adviser, bias: dict[str, Any]) -> list[str]:
    if not bias["is_biased"]:
        return []
    (least, low), (most, high) = bias["least"], bias["most"]
    exact = f" (here exactly {bias['floor_delta2']:.4g})" if bias["floor_delta2"] is not None else ""
    lines = [
        "BIASED         in the long run clients do not weigh the same: mean q from "
        f"{low:.4g} (client {least:,}) to {high:.4g} (client {most:,}), {bias['from']}",
        f"               delta^2(P) stays at about {bias['floor']:.3g} d^2{exact} for any P: fedavg, "
        "amplified or not,",
        "               goes to another point than the optimum of all clients",
    ]
    if bias["never_seen"]:
        lines.append(
            f"               {bias['never_seen']:,} clients never take part: no method sees their data"
        )
    own = adviser.config.algorithm.name
    mark = f" (this config has {own!r})" if own in CORRECTING else ""
    return [*lines, f"               remedies: {'; '.join(bias['remedies'])}{mark}"]


def _regularized_text(adviser: Adviser) -> str:
    if adviser.regularized:
        return f"yes: delta^2(P) = 0 first at P = {adviser.regularized:,}"
    if adviser.nearly_regularized:
        period, worst = adviser.nearly_regularized
        return f"nearly: delta^2(P) is at most {worst:.1g} d^2 at P = {period:,}"
    return "no: no P up to half of the rounds examined gives all clients the same weight"


def _proposition_lines(found: dict[str, Any] | None, shown: set, report: dict[str, Any]) -> list[str]:
    if found is None:
        return []
    sure, is_mixing = f"{1 - found['c']:g}", found["name"] == "4.6"
    kind = "mixing participation, large P" if is_mixing else "independent rounds"
    which, together = ("(16)", "T/P intervals") if is_mixing else ("(17)", "N clients, T/P intervals")
    lines = [
        "",
        f"Proposition {found['name']}: delta^2(P)/d^2 of {kind}; "
        f"upsilon^2 = {report['upsilon2']:.4g} ({report['upsilon2_from']})",
        f"{'P':>9}  {'in expectation':>22}  with probability {sure} {which}   for all {together} at once",
    ]
    for period, expected, probable, for_all in found["rows"]:
        if period in shown:
            lines.append(f"{period:>9,}  {expected:>22.4g}  {probable:>26.4g}   {for_all:>14.4g}")
    if not is_mixing:
        lines.append(
            "           (17) is about one client; the sum over clients needs the union bound beside it"
        )
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
            *_suggestion(suggested),
            "unknown        L, sigma^2 and the divergences of this model: no bound, no learning rates. "
            "Measure them with --measure (at x_0) or --at RUN.h5",
        ]
    figures = ", ".join(f"{name} {known[name]:.4g}" for name in ("L", "sigma2", "F", "d2", "beta2", "nu2"))
    lines.append(f"constants      {figures} ({known['source']})")
    if adviser.known.source.startswith("estimates"):
        lines.append(
            "               the theorem needs bounds that hold everywhere: take what follows as a hint"
        )
    now, then = report["bound"], report["bound_suggested"]
    head = f"{'bound on min_t E|grad f(x_t)|^2':<76}  {'this config':>11}"
    lines += ["", head + (f"  {'suggested':>11}" if then else "")]
    for term, text in [*_TERMS.items(), ("total", "total")]:
        lines.append(f"  {text:<74}  {now[term]:>11.4g}" + (f"  {then[term]:>11.4g}" if then else ""))
    if not all(report["conditions"].values()):
        lines.append("  (a condition fails: for this config the theorem promises nothing)")
    return [*lines, "", *_suggestion(suggested)]


def _suggestion(suggested: dict[str, Any]) -> list[str]:
    """P, and gamma and eta where they are known; or why there is none."""
    if suggested["amplify_every"] is None:
        return [f"suggested      {suggested['corollary']}; see the remedies at the top"]
    rates = ""
    if suggested["local_lr"] is not None:
        rates = (
            f", local_lr = {suggested['local_lr']:.6g}, amplification = {suggested['amplification']:.6g}"
        )
    return [
        f"suggested      amplify_every = {suggested['amplify_every']}{rates}",
        f"               Corollary {suggested['corollary']}",
    ]
