"""`fedmpi replay`: one client's update of one round again, in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmpi.errors import EXIT_DONE, EXIT_FAILURE
from fedmpi.experiments.progress import Progress
from fedmpi.experiments.replaying import Replayed, replay


def show(path: str, t: int, client: int, *, trust: bool = False) -> int:
    """Print what came of it; exit status 0 if the bits equal what the run had, else 1."""
    found = replay(Path(path), t, client, trust=trust, listener=Progress())
    print(f"{path}: round {t}, client {client}: weight {found.weight:.6g}, gamma {found.local_lr:g}")
    again = t - found.begin
    between = f", {again:,} round{'s' * (again != 1)} done again" if again else ""
    print(f"  from     {found.source}{between}")
    print(f"  update   {_update(found)}")
    if found.first_difference:
        earlier, other = found.first_difference
        print(f"  before   round {earlier}, client {other} has another update than in the file")
    print(f"  the run  {_verdict(found)}")
    return EXIT_DONE if found.is_same else EXIT_FAILURE


def _update(found: Replayed) -> str:
    """The update in numbers."""
    if found.bad_step is not None:
        count = int((~np.isfinite(found.update)).sum())
        return (
            f"not finite after local step {found.bad_step} ({count:,} of {found.update.size:,} parameters)"
        )
    norm = float(np.linalg.norm(found.update.astype(np.float64)))
    return f"largest magnitude {found.largest:.9g}, Euclidean norm {norm:.9g}"


def _verdict(found: Replayed) -> str:
    """Whether that is what the run had."""
    if found.recorded is None:
        return "diverged in this round: " + (
            "by this client" if found.is_same else "not by this client, or not with these bits"
        )
    if found.is_same:
        return f"had the same bits in the largest magnitude, {found.recorded:.9g}"
    return f"had {found.recorded:.9g}: other bits; the software, the machine or the device changed"
