"""`fedmpi compare`: two settings, seed by seed."""

from __future__ import annotations

import json

from fedmpi.results.paired import compare_sides


def compare_runs(a: str, b: str, metric: str, window: int | None, *, as_json: bool) -> int:
    """Print the difference, its interval, the paired t test and the seeds that would decide it."""
    found = compare_sides(a, b, metric, window)
    print(json.dumps(found.to_dict(), indent=2) if as_json else found)
    return 0
