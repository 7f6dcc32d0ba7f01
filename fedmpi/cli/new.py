"""`fedmpi new`: a commented config to begin with."""

from __future__ import annotations

import sys
from pathlib import Path

from fedmpi.config.starting import starting_config
from fedmpi.errors import UserError
from fedmpi.storage.output import write_output


def new(method: str, availability: str, task: str, out: str | None, *, force: bool) -> int:
    """Print it, or write it to a file; a trace needs a file of its own, and gets an example."""
    needs_trace = "trace" in availability.split(",")
    trace = Path(out).with_suffix(".trace.csv") if out else Path("trace.csv")
    values = {"trace": str(trace)} if needs_trace else {}
    text = starting_config(method, availability, task, **values)

    name = out or "FILE.toml"
    usage = f"# fedmpi check {name}; mpirun -n 2 fedmpi run {name} --out RUN.h5; fedmpi help KEY\n\n"
    if not out:
        print(usage + text, end="")
        if needs_trace:
            print(f"note: {trace} must have the columns client,start,end; --out makes one", file=sys.stderr)
        return 0

    target = Path(out)
    if target.exists() and not force:
        raise UserError(f"--out {out}: exists; use --force to overwrite it, or another name")
    if needs_trace and not trace.exists():
        write_output(trace, _example_trace().encode())
        print(trace)
    write_output(target, (usage + text).encode())
    print(out)
    return 0


def _example_trace() -> str:
    """50 clients, each there for 8 of 20 rounds."""
    rows = (f"{n},{n % 5 * 4},{n % 5 * 4 + 8}" for n in range(50))
    return "\n".join(["client,start,end", *rows, ""])
