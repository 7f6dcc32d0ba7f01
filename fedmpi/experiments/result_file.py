"""The result file of a run: created, reopened or forked, then filled during the run.

A `ResultFile` exists on all ranks; rank 0 writes the file, each rank writes its clients' tables for
checkpoints. Invariant: results reach the disk before the checkpoint that names them.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.config.user_code import describe_code
from fedmpi.data.ownership import owner_of
from fedmpi.experiments.signature import signature
from fedmpi.experiments.tensorboard import EventFiles, remove_events
from fedmpi.mpi.watch.watchdog import rescues
from fedmpi.simulation.cadence import is_due
from fedmpi.simulation.loop import Simulation
from fedmpi.simulation.outcome import Outcome, Output
from fedmpi.storage.checkpoint import (
    Checkpoint,
    remove_checkpoints,
    write_checkpoint,
    write_part,
)
from fedmpi.storage.columns import DIVERGED, METRICS_ATTRIBUTE, OUTPUT, STOPPED, metrics_text, tables
from fedmpi.storage.files import write_whole
from fedmpi.storage.segments import copy_segments, remove_segments
from fedmpi.storage.writer import RunWriter


class ResultFile(Output):
    """Decides what is written when."""

    def __init__(self, simulation: Simulation, path: Path, run_id: str, writer: RunWriter | None) -> None:
        """`writer` on rank 0 only; see `create`, `reopen` and `fork`."""
        self.path, self.run_id = path, run_id
        self.takes_rows = writer is not None
        self._has_checkpoints = True
        self._writer = writer
        self._config, self._clock = simulation.config.run, simulation.clock
        if writer:  # the files of a pack share the time for output
            writer.share /= simulation.num_packed
        self._last_checkpoint = time.monotonic()
        self._busy = threading.RLock()  # held while the writer is at work
        self._simulation = simulation
        own = tables(simulation.observer.metrics)
        self._columns = {name: [column.name for column in columns] for name, columns in own.items()}
        self._names = {name: set(columns) for name, columns in self._columns.items()}
        self._events = None
        if writer:
            rescues[path] = self._rescue
        if writer and self._config.tensorboard:
            self._events = EventFiles(path, self._clock.offset)

    @classmethod
    def create(
        cls,
        simulation: Simulation,
        path: Path,
        attributes: dict[str, Any],
        *,
        with_checkpoints: bool = True,
    ) -> ResultFile:
        """Collective. A new file, with everything known before the first round.

        A file that is removed again needs no checkpoints; its folder may exist on rank 0's node only.
        """

        def make() -> ResultFile:
            # Nothing of an overwritten run may stay.
            remove_checkpoints(path)
            remove_segments(path)
            remove_events(path)

            # The file, and its table of clients.
            described = _described(simulation, attributes)
            parameters, x = simulation.model.describe(), simulation.global_params
            data, clients = simulation.data, np.arange(simulation.data.partition.num_clients)
            owners = owner_of(clients, simulation.comm.size)
            columns = clients, data.partition.sizes, data.majority_labels, owners
            writer = RunWriter.create(path, described, parameters, x, columns)
            return cls(simulation, path, attributes["run_id"], writer)

        made = simulation.comm.try_on_root(make) or cls(simulation, path, attributes["run_id"], None)
        made._has_checkpoints = with_checkpoints
        return made

    @classmethod
    def reopen(
        cls,
        simulation: Simulation,
        path: Path,
        attributes: dict[str, Any],
        stored: dict[str, Any],
        checkpoint: Checkpoint | None,
    ) -> ResultFile:
        """Collective. An existing file, cut back to what the checkpoint names; it keeps its run id."""
        run_id = stored["run_id"]

        def make() -> ResultFile:
            # New provenance, under the old identity and with one more leg.
            rows = checkpoint.rows if checkpoint else {"clients": simulation.data.partition.num_clients}
            leg = json.loads(attributes["legs"])[0] | {"round": simulation.completed}
            changed = attributes | {
                "run_id": run_id,
                "created_utc": stored["created_utc"],
                "legs": json.dumps([*json.loads(stored["legs"]), leg]),
                "signature": signature(simulation.config, run_id),
            }

            if not simulation.config.run.tensorboard:
                remove_events(path)  # they may show rounds that are cut back
            return cls(simulation, path, run_id, RunWriter.reopen(path, rows, changed))

        return simulation.comm.try_on_root(make) or cls(simulation, path, run_id, None)

    @classmethod
    def fork(
        cls,
        simulation: Simulation,
        path: Path,
        attributes: dict[str, Any],
        source: Path,
        checkpoint: Checkpoint,
    ) -> ResultFile:
        """Collective. A new run that begins with the rows of another one up to its checkpoint."""

        def make() -> ResultFile:
            # A copy of the other file, cut back, with attributes of its own.
            (leg,) = json.loads(attributes["legs"])
            legs = json.dumps([leg | {"round": checkpoint.completed}])
            copy_segments(source, path)
            write_whole(path, source.read_bytes())
            described = _described(simulation, attributes) | {"legs": legs}
            writer = RunWriter.reopen(path, checkpoint.rows, described)
            return cls(simulation, path, attributes["run_id"], writer)

        return simulation.comm.try_on_root(make) or cls(simulation, path, attributes["run_id"], None)

    def wants_checkpoint(self, completed: int) -> bool:
        """By the number of rounds, or by time; rank 0 decides."""
        if not self._writer or not self._has_checkpoints:
            return False
        run = self._config
        minutes = (time.monotonic() - self._last_checkpoint) / 60
        return minutes > run.checkpoint_minutes > 0 or is_due(completed, run.checkpoint_every)

    def add(self, table: str, **values: Any) -> None:
        """Rows of a table; they reach the disk with the next flush."""
        if not self._writer:
            return
        columns = self._columns[table]
        if values.keys() != self._names[table]:
            raise TypeError(f"/{table} has the columns {columns}, got {list(values)}")

        self._writer.add(table, *map(values.__getitem__, columns))
        if self._events:
            self._events.add(table, **values)

    def after_round(self, simulation: Simulation, *, checkpoint: bool) -> None:
        """Collective. Store x_t and write results or a checkpoint, whatever is due."""
        # All ranks, before the checkpoint that names the parts.
        if checkpoint:
            self._write_part(simulation)
        if not self._writer:
            return

        # Rank 0 only; x is copied from a GPU only where it is needed.
        if is_due(simulation.completed, self._config.record_params_every):
            self._writer.add_snapshot(simulation.completed, simulation.global_params)
        with self._clock(OUTPUT), self._busy:
            if checkpoint:
                self._checkpoint(simulation)
            elif self._writer.is_flush_due:
                self._writer.flush(simulation.global_params)

    def finish(self, simulation: Simulation, outcome: Outcome) -> None:
        """Collective. The last flush and checkpoint, and where each rank's time went."""
        # After a divergence there is nothing to continue from.
        is_checkpoint = outcome.status != DIVERGED and self._has_checkpoints
        if is_checkpoint:
            self._write_part(simulation)
        if not self._writer:
            return

        # The status tells readers that the run is over.
        attributes = {"status": outcome.status, "phases": json.dumps(outcome.phases)}
        if simulation.training.recorded:  # on a GPU
            attributes["recorded"] = simulation.training.recorded
        rescues.pop(self.path, None)
        with self._clock(OUTPUT), self._busy:
            if is_checkpoint:
                self._checkpoint(simulation, **attributes)
            else:
                self._writer.flush(simulation.global_params, **attributes)
            if outcome.status != STOPPED:  # who has to stop has no time
                self._writer.close()
            if self._events:
                self._events.close()

    def _rescue(self) -> str:
        """Write what is not written yet, in another thread, while this one waits and the job is to end.

        The state of the round that goes on is not kept: the run goes on from its newest checkpoint.
        """
        if not self._busy.acquire(blocking=False):
            return ""
        simulation = self._simulation  # not released again: nobody writes after this
        self._writer.flush(simulation.global_params, status=STOPPED)
        return f"the results of {simulation.completed:,} rounds are in {self.path}"

    def _checkpoint(self, simulation: Simulation, **attributes: str) -> None:
        self._writer.flush(simulation.global_params, **attributes)
        write_checkpoint(self.path, simulation.checkpoint(self.run_id, self._writer.rows))
        self._last_checkpoint = time.monotonic()

    def _write_part(self, simulation: Simulation) -> None:
        """Collective. Each rank writes its clients' tables, before the checkpoint that needs them."""
        if simulation.tables:
            comm, memory = simulation.comm, simulation.population.memory
            place = self.path, self.run_id, simulation.completed, comm.rank, comm.size
            comm.try_on_all(lambda: write_part(*place, memory.dump()))


def _described(simulation: Simulation, attributes: dict[str, Any]) -> dict[str, Any]:
    """All attributes of a new file."""
    return (
        attributes
        | {f"{name}_digest": value for name, value in simulation.digests().items()}
        | {METRICS_ATTRIBUTE: metrics_text(simulation.observer.metrics)}
        | {"signature": signature(simulation.config, attributes["run_id"])}
        | {"traffic": json.dumps(_traffic(simulation))}
        | describe_code(simulation.config)
    )


def _traffic(simulation: Simulation) -> dict[str, int]:
    """What a participant would send and receive in a round, were it a device of its own; who trains."""
    method, model = simulation.method, simulation.model
    return {
        "vector": model.num_params * model.values.element_size(),
        "sent": method.sends,
        "received": method.receives,
        "absent_train": method.absent_train,
    }
