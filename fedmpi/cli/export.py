"""`fedmpi export`: a table of runs for other tools."""

from __future__ import annotations

import importlib.util
import io
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from fedmpi.errors import UserError
from fedmpi.storage.output import write_output
from fedmpi.storage.runs import read_runs

FORMATS = (".csv", ".json", ".parquet")


def export(paths: Sequence[str], out: str, table: str) -> int:
    """Write the rows of all runs into one file; the suffix says in which format."""
    target = Path(out)
    if target.suffix not in FORMATS:
        raise UserError(f"--out {out}: format {target.suffix or 'missing'}; accepted: {', '.join(FORMATS)}")
    if target.suffix == ".parquet" and not importlib.util.find_spec("pyarrow"):
        raise UserError(f"--out {out}: Parquet needs pyarrow; pip install pyarrow, or write .csv or .json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # printed below, in our own words
        rows = read_runs(paths, table)
    for problem in rows.attrs["skipped"]:
        print(f"fedmpi: warning: left out: {problem}", file=sys.stderr)
    if not len(rows):
        raise UserError(f"nothing to export: none of the runs holds a row of /{table} yet")
    buffer = io.BytesIO()
    if target.suffix == ".csv":
        rows.to_csv(buffer, index=False)
    elif target.suffix == ".json":
        rows.to_json(buffer, orient="records", double_precision=15)
    else:
        rows.to_parquet(buffer, index=False)
    write_output(target, buffer.getvalue())
    print(f"{target}: {len(rows):,} rows of {rows.file.nunique():,} run(s)")
    return 0
