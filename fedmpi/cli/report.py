"""`fedmpi report`: runs as one HTML page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedmpi.errors import UserError
from fedmpi.results.report.page import make_page
from fedmpi.storage.output import write_output
from fedmpi.storage.runs import load_each


def report(paths: Sequence[str], out: str) -> int:
    """Write the report of all runs below the paths."""
    target = Path(out)
    if target.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: format {target.suffix or 'missing'}; accepted: .html")
    runs, skipped = load_each(paths)
    write_output(target, make_page(runs, skipped).encode())
    for problem in skipped:
        print(f"fedmpi: warning: left out: {problem}", file=sys.stderr)
    print(f"{target}: {len(runs):,} run(s)")
    return 0
