"""`fedmpi data trace`: an activity log of devices, in seconds, as a trace in rounds."""

from __future__ import annotations

import math

import numpy as np

from fedmpi.errors import UserError
from fedmpi.participation.activity import read_activity
from fedmpi.participation.device_states import DEFAULT, checked_conditions
from fedmpi.participation.tables import table_target, write_table


def import_trace(file: str, out: str, round_seconds: float, *, ready: str | None, force: bool) -> int:
    """Write the trace that `availability = "trace"` takes."""
    target = table_target(out, force=force)
    log = read_activity(file, checked_conditions(ready) if ready else DEFAULT)
    if ready and not log.notes:
        raise UserError(f"--ready {ready}: {file} has times, not states of phones; leave it out")
    if max(log.ends.max(initial=0), log.finish_time or 0) / round_seconds >= 2**53:
        raise UserError(f"--round-seconds {round_seconds:g}: too short for {file}; expected more")
    clients, starts, ends = log.in_rounds(round_seconds)
    if not len(clients):
        raise UserError(
            f"activity log {file}: nobody is active when a round begins, with rounds of {round_seconds:g} "
            "seconds; try a smaller --round-seconds"
        )
    columns = {"client": clients, "start": starts, "end": ends}
    write_table(
        target,
        "trace",
        columns,
        {"format": "fedmpi-trace", "num_clients": log.num_clients, "round_seconds": round_seconds},
    )
    lost = len(log.clients) - len(clients)
    period = math.ceil(log.finish_time / round_seconds) if log.finish_time else None
    repeat = f", participation.trace_period = {period}" if period and period >= ends.max() else ""
    for note in log.notes:
        print(note)
    print(
        f"{target}: {log.num_clients:,} clients (0 to {log.num_clients - 1}), {len(clients):,} intervals, "
        f"rounds 0 to {ends.max() - 1:,} of {round_seconds:g} s\n"
        f"{lost:,} intervals too short to see a round begin; "
        f"{log.num_clients - len(np.unique(clients)):,} clients never available\n"
        f'use it with data.num_clients = {log.num_clients}, participation.availability = "trace", '
        f'participation.trace = "{target}"{repeat}'
    )
    return 0
