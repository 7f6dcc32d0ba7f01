"""The page: sections in HTML, data as JSON, script, style and plotting library inlined.

Invariant: every text that comes from a file passes `escape` or, in the JSON, `_harmless`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from fedmpi import __version__
from fedmpi.results.groups import Group, group_runs
from fedmpi.results.naming import metrics_of
from fedmpi.results.naming import title as metric_title
from fedmpi.results.report import collect, sections
from fedmpi.results.report.each_client import clients
from fedmpi.storage.clocks import CLOCKS
from fedmpi.storage.columns import headline
from fedmpi.storage.reader import Run


def make_page(runs: Sequence[Run], skipped: Sequence[str]) -> str:
    """The whole page as text."""
    groups = group_runs(runs)
    runs = [run for group in groups for run in group.runs]
    pictures, which = collect.participation_pictures(groups)
    metrics = metrics_of(runs)
    data = {
        "metrics": {name: metric_title(name) for name in metrics},
        "preferred": ["train_loss", headline(metrics)],
        "clocks": {n: {"label": clock.label, "unit": clock.unit} for n, clock in CLOCKS.items()},
        "groups": [
            {"label": group.label, "runs": [runs.index(run) for run in group.runs]} for group in groups
        ],
        "runs": [
            {"label": sections.run_label(group, run), "curve": collect.curve(run, metrics)}
            for group in groups
            for run in group.runs
        ],
        "pictures": pictures,
        "pictureOf": which,
    }
    title = _title(groups)
    parts = [
        sections.overview(groups, skipped),
        sections.problems(groups, skipped),
        sections.results(groups),
        sections.CURVES,
        clients(groups),
        sections.PARTICIPATION if pictures else "",
        sections.timing(groups),
        sections.config(groups),
        sections.provenance(groups),
    ]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><title>{escape(title)}</title>
<style>{_static("uPlot.min.css")}{_static("report.css")}</style></head><body>
<header><h1>{escape(title)}</h1><p class="quiet">fedmpi {__version__}, {now}</p>
<button id="theme" type="button" title="Light or dark">Light / dark</button></header>
<main>{"".join(parts)}</main>
<script type="application/json" id="data">{_harmless(data)}</script>
<script>/* uPlot, MIT licence
{_static("uPlot.LICENSE")}*/
{_static("uPlot.iife.min.js")}</script>
<script>{_static("report.js")}</script>
</body></html>
"""


def _title(groups: Sequence[Group]) -> str:
    names = [group.label for group in groups]
    return " and ".join(names) if len(names) <= 2 else f"{len(names)} experiments compared"


def _static(name: str) -> str:
    return (resources.files("fedmpi.results.report") / "static" / name).read_text()


def _harmless(data: Any) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
