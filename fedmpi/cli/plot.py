"""`fedmpi plot`: runs as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedmpi.results import plots


def plot(
    paths: Sequence[str],
    out: str,
    preset: str | None = None,
    *,
    x: str = "rounds",
    trajectory: bool = False,
) -> int:
    """Draw the runs below the paths, and name the file."""
    for problem in plots.plot(paths, out, preset, x=x, trajectory=trajectory):
        print(f"fedmpi: warning: left out: {problem}", file=sys.stderr)
    print(out)
    return 0
