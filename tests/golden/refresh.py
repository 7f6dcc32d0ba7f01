"""Write the golden files anew: `python -m tests.golden.refresh [PART OF A NAME]`.

Only for a change that is meant to alter results: commit what it writes by itself, with the reason.
"""

from __future__ import annotations

import os
import sys

from tests.golden.cases import cases
from tests.golden.record import (
    HERE,
    golden_text,
    machine,
    path_of,
    random_words,
    recorded_machine,
    write_machine,
)


def main(wanted: str = "") -> None:
    """Files whose names contain `wanted`; all of them, and the machine they come from, without it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if wanted and machine() != recorded_machine():
        sys.exit("another machine than that of the files: refresh all of them, without a name")
    texts = {"randomness": random_words} | {c.name: lambda c=c: golden_text(c) for c in cases()}
    if not wanted:
        for path in HERE.rglob("*.txt"):
            path.unlink()
        write_machine()
    for name, make in texts.items():
        if wanted in name:
            path_of(name).parent.mkdir(parents=True, exist_ok=True)
            path_of(name).write_text(make())
    print(f"{sum(wanted in name for name in texts)} golden files written; see `git diff tests/golden`")


if __name__ == "__main__":
    main(*sys.argv[1:])
