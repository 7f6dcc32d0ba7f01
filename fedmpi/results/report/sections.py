"""Sections of the page as HTML. Every text from a file goes through `escape`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from fedmpi.results.groups import Group, value_text
from fedmpi.results.naming import metrics_of, table_figures
from fedmpi.results.report import collect
from fedmpi.results.text import bytes_text, duration, joules_text
from fedmpi.storage.columns import BESIDE_PHASES, DEVICE_MEMORY, DONE, IN_ALL, MEMORY
from fedmpi.storage.reader import Run
from fedmpi.storage.runs import flat_config

CURVES = """<section id="curves"><h2>Curves</h2>
<div class="controls">
 <span id="metrics"></span>
 <label>along <select id="clock"></select></label>
 <label><input type="checkbox" id="means"> mean and band over seeds</label>
 <label><input type="checkbox" id="log"> log losses</label>
 <label>smoothing <input type="range" id="smooth" min="0" max="20" value="3" step="0.5">
  <output id="smooth-text"></output></label>
</div>
<p class="quiet">Drag to zoom, double-click to see all, hover for values.</p>
<div class="split"><div id="charts"></div>
<div class="legend"><div><button type="button" id="all">all</button>
 <button type="button" id="none">none</button>
 <input type="search" id="find" placeholder="find" aria-label="find runs"></div><ul id="legend"></ul></div>
</div></section>"""
PARTICIPATION = """<section id="participation"><h2>Participation</h2>
<p><label>Run <select id="who"></select></label>
<select id="span" aria-label="rounds"><option value="begin">first rounds</option>
<option value="whole">whole run</option></select> <span id="who-text" class="quiet"></span></p>
<div class="raster"><canvas id="raster"></canvas><canvas id="often"></canvas></div>
<div class="scale"><div><span id="first-round"></span><span id="last-round"></span></div>
<div><span>0</span><span id="most-often"></span></div></div>
<p class="quiet">Clients from bottom to top; the stronger the colour, the more of a cell's clients and
rounds took part. Right: how often each client took part in the whole run.</p></section>"""
_FEW_KEYS = 3
_COUNTS = {
    "rounds": "{:,.0f}".format, "local_steps": "{:,.0f}".format, "bytes_sent": bytes_text,
    "seconds": duration, "energy_j": joules_text,
}  # fmt: skip
_OPEN_ROWS = 12  # longer tables of details are collapsed at first


def run_label(group: Group, run: Run) -> str:
    """A run's name in the page."""
    return f"{group.label}, seed {run.config['run']['seed']}" if len(group.runs) > 1 else group.label


def overview(groups: Sequence[Group], skipped: Sequence[str]) -> str:
    """What was run, in a few facts."""
    runs = [run for group in groups for run in group.runs]

    def values(key: str) -> str:
        texts = dict.fromkeys(value_text(flat_config(run.config).get(key)) for run in runs)
        texts.pop("-", None)
        return ", ".join(texts) if len(texts) <= 6 else f"{len(texts)} values"

    states: dict[str, int] = {}
    for run in runs:
        states[run.status] = states.get(run.status, 0) + 1
    facts = {
        "Runs": f"{len(runs)} in {len(groups)} group{'s' * (len(groups) > 1)}"
        + (f", {len(skipped)} unreadable" if skipped else ""),
        "Status": ", ".join(f"{count} {status}" for status, count in states.items()),
        "Data": f"{values('data.dataset')}, {values('data.partition')}",
        "Model": values("model.name"),
        "Method": values("algorithm.name"),
        "Clients": values("data.num_clients"),
        "Availability": values("participation.availability"),
        "Rounds": values("run.num_rounds"),
        "Seeds": values("run.seed"),
    }
    items = (f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items() if v)
    return f'<section><dl class="facts">{"".join(items)}</dl></section>'


def problems(groups: Sequence[Group], skipped: Sequence[str]) -> str:
    """Warnings; the same one for several runs is shown once."""
    said: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            for text in collect.warnings_of(run):
                said.setdefault(text, []).append(run_label(group, run))
    lines = []
    for text, labels in said.items():
        is_all = len(labels) == sum(len(group.runs) for group in groups) > 1
        whose = (
            "All runs"
            if is_all
            else "; ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")
        )
        lines.append(f"<li><b>{escape(whose)}</b>: {escape(text)}</li>")
    lines += [f"<li><b>Left out</b>: {escape(text)}</li>" for text in skipped]
    if not lines:
        return ""
    return f'<section class="warnings" id="warnings"><h2>Warnings</h2><ul>{"".join(lines)}</ul></section>'


def results(groups: Sequence[Group]) -> str:
    """Figures by group, with their spread over seeds, and by run."""
    # Many columns of config would push the figures out of sight; "What differs" has them all.
    keys = list(groups[0].values) if len(groups[0].values) <= _FEW_KEYS else []
    figures = table_figures(metrics_of(run for group in groups for run in group.runs))
    names = [n for n in figures if any(collect.spread(group, n[0])[2] for group in groups)]
    head = ["Group", *map(_short, keys), "Seeds", *(title for _, title in names)]
    rows = []
    for group in groups:
        is_whole = all(run.status == DONE for run in group.runs)
        cells = [
            cell(group.label + ("" if is_whole else " *")),
            *(_value_cell(group.values[key]) for key in keys),
        ]
        cells.append(cell(str(len(group.runs)), len(group.runs)))
        rows.append(cells + [figure_cell(name, *collect.spread(group, name)[:2]) for name, _ in names])
    text = "<h2>Results</h2>" + html_table("results", head, rows)
    if len(groups) < sum(len(group.runs) for group in groups):
        each = []
        for group in groups:
            for run in group.runs:
                own = collect.figures(run)
                each.append(
                    [cell(run_label(group, run)), cell(run.status)]
                    + [figure_cell(name, own.get(name, math.nan), math.nan) for name, _ in names]
                )
        table = html_table("each-run", ["Run", "Status", *(title for _, title in names)], each)
        text += f"<details><summary>Every run</summary>{table}</details>"
    note = "Mean and standard deviation over seeds. Click a heading to sort."
    if any(run.status != DONE for group in groups for run in group.runs):
        note += " * with runs that are not finished."
    return f'<section id="figures">{text}<p class="quiet">{note}</p></section>'


def timing(groups: Sequence[Group]) -> str:
    """Where the time went: a bar for each run, a table of its ranks."""
    rows, details, names = [], [], {}
    for group in groups:
        for run in group.runs:
            ranks = collect.phases(run)
            if not ranks:
                continue
            label = run_label(group, run)
            kinds = [k for k in dict.fromkeys(k for r in ranks for k in r) if k not in BESIDE_PHASES]
            for kind in kinds:
                names.setdefault(kind, len(names))
            total = float(np.mean([r[IN_ALL] for r in ranks])) or 1e-9
            means = {k: float(np.mean([r.get(k, 0.0) for r in ranks])) for k in kinds}
            bar = "".join(
                f'<i class="p{names[k] % 8}" style="width:{100 * s / total:.2f}%" '
                f'title="{escape(k)} {100 * s / total:.1f} %"></i>'
                for k, s in means.items()
            )
            rows.append(
                f'<tr><td>{escape(label)}</td><td class="n">{duration(total)}</td>'
                f'<td class="bar"><div>{bar}</div></td></tr>'
            )
            memory = {MEMORY: "memory MB", DEVICE_MEMORY: "GPU memory MB"}
            if not any(r[DEVICE_MEMORY] for r in ranks):
                del memory[DEVICE_MEMORY]
            head = ["Rank", *kinds, IN_ALL, *memory.values()]
            table = [
                [cell(str(i), i)]
                + [cell(f"{r.get(k, 0.0):.2f}", r.get(k, 0.0)) for k in [*kinds, IN_ALL]]
                + [cell(f"{r[k]:,.0f}", r[k]) for k in memory]
                for i, r in enumerate(ranks)
            ]
            details.append(
                f"<details><summary>{escape(label)}: seconds of each rank</summary>"
                f"{html_table('', head, table)}</details>"
            )
    if not rows:
        return ""
    legend = "".join(f'<span><i class="p{n % 8}"></i>{escape(k)}</span>' for k, n in names.items())
    inner = f'<div class="scroll"><table class="bars">{"".join(rows)}</table></div>'
    ranks = "".join(details)
    if len(details) > 4:
        ranks = f"<details><summary>Seconds of each rank</summary>{ranks}</details>"
    return (
        f'<section id="timing"><h2>Where the time went</h2><p class="key">{legend}</p>{inner}{ranks}'
        '<p class="quiet">Of the last leg of each run, mean over ranks.</p></section>'
    )


def config(groups: Sequence[Group]) -> str:
    """What differs, group by group, and what all runs share."""
    keys = list(groups[0].values)
    text = ""
    if keys:
        rows = [[cell(g.label), *(_value_cell(g.values[key]) for key in keys)] for g in groups]
        table = html_table("differences", ["Group", *map(_short, keys)], rows)
        text += f"<details{_open(rows)}><summary>What differs</summary>{table}</details>"
    flat = [flat_config(run.config) for group in groups for run in group.runs]
    shared = [(k, v) for k, v in flat[0].items() if all(k in f and f[k] == v for f in flat)]
    rows = [[cell(k), cell(value_text(v))] for k, v in shared]
    title = "What all share" if len(groups) > 1 else "Values"
    text += f"<details><summary>{title}</summary>{html_table('shared', ['Key', 'Value'], rows)}</details>"
    return f'<section id="config"><h2>Config</h2>{text}</section>'


def provenance(groups: Sequence[Group]) -> str:
    """Where each file comes from."""
    head = ["File", "Run", "Status", "Created", "By", "Ranks", "Hosts", "Devices", "MPI", "Versions",
            "Data digest", "Model digest", "Run id"]  # fmt: skip
    rows = []
    for group in groups:
        for run in group.runs:
            attributes = run.attributes
            ranks = attributes.get("num_ranks", "-")
            values = [
                str(run.path), run_label(group, run), run.status, attributes.get("created_utc", "-"),
                attributes.get("creator", "-"), str(ranks), _names(attributes.get("host_names", [])),
                _names(attributes.get("device_names", [])), attributes.get("mpi_library", "-"),
                _versions(attributes.get("versions", "{}")), str(attributes.get("data_digest", "-"))[:12],
                str(attributes.get("model_digest", "-"))[:12], attributes.get("run_id", "-"),
            ]  # fmt: skip
            rows.append([cell(str(value)) for value in values])
    table = html_table("sources", head, rows)
    return (
        f'<section id="provenance"><h2>Provenance</h2><details><summary>Files, versions, machines</summary>'
        f"{table}</details></section>"
    )


def _short(key: str) -> str:
    """A key without its section, where that is clear."""
    return key if key.endswith(".name") else key.split(".", 1)[1]


def _names(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values}))


def _versions(text: str) -> str:
    try:
        return ", ".join(f"{name} {version}" for name, version in json.loads(text).items())
    except (ValueError, AttributeError):
        return text


def _open(rows: Sequence) -> str:
    return " open" if len(rows) <= _OPEN_ROWS else ""


def html_table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose headings sort it."""
    is_number = [bool(rows) and 'class="n"' in rows[0][i][:14] for i in range(len(head))]
    headings = "".join(
        f'<th scope="col"{" class=n" if number else ""}><button type="button">{escape(h)}</button></th>'
        for h, number in zip(head, is_number, strict=True)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    identity = f' id="{name}"' if name else ""
    return (
        f'<div class="scroll"><table class="sortable"{identity}><thead><tr>{headings}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def cell(text: str, number: float | None = None) -> str:
    """A cell of a table; with a number it is sorted by that."""
    if number is None:
        return f"<td>{escape(text)}</td>"
    return f'<td class="n" data-v="{number!r}">{escape(text)}</td>'


def _value_cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return cell(value_text(value), float(value) if is_number else None)


def figure_cell(name: str, mean: float, deviation: float) -> str:
    """A figure and its spread; accuracies in percent."""
    if not math.isfinite(mean):
        return '<td class="n" data-v="">-</td>'
    if name in _COUNTS:
        return cell(_COUNTS[name](mean), mean)
    scale, digits = (100, 2) if name.endswith("accuracy") else (1, 4)
    text = f"{scale * mean:.{digits}f}"
    if math.isfinite(deviation):
        text += f" ± {scale * deviation:.{digits}f}"
    return cell(text, mean)
