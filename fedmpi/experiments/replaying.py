"""One client's update of one round again, in one process without MPI: for hunting the client that diverged.

The state before the round comes from the nearest checkpoint, or from the model stored for that very
round; rounds between are done again, and compared with the file on the way. Invariant: nothing is written;
the bits are those that the run had, on any number of ranks, unless data, software or machine changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmpi.config import Config, validate
from fedmpi.config.records import replace
from fedmpi.config.user_code import require_same_objects, require_stored_names
from fedmpi.errors import UserError
from fedmpi.experiments.lifecycle import check_digests, device_of
from fedmpi.experiments.signature import require_own
from fedmpi.methods import Round
from fedmpi.mpi.alone import Alone
from fedmpi.simulation.client import Failures
from fedmpi.simulation.exact import magnitudes
from fedmpi.simulation.gpu_client import make_trainer
from fedmpi.simulation.loop import Simulation
from fedmpi.simulation.outcome import Listener, Output
from fedmpi.simulation.rank_report import RankReport
from fedmpi.simulation.training import Order, task_of
from fedmpi.storage.checkpoint import find_checkpoints, read_checkpoint, read_part
from fedmpi.storage.columns import DIVERGED
from fedmpi.storage.reader import Run, load_run


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What came of it."""

    source: str  # where the state before the round came from
    begin: int  # its round
    weight: float  # q, in the round
    local_lr: float
    update: np.ndarray  # y - x after the last local step
    largest: float  # magnitude in it, as the run's file has it
    recorded: float | None  # what the run had; None for the round in which it diverged
    bad_step: int | None  # the first local step after which the update is not finite
    first_difference: tuple[int, int] | None  # an earlier round and client with other bits than the file

    @property
    def is_same(self) -> bool:
        """Whether its bits equal what the run had, as far as the file tells."""
        if self.first_difference:
            return False
        if self.recorded is None:
            return not np.isfinite(self.largest)
        return self.largest == self.recorded


def replay(
    path: Path, t: int, client: int, *, trust: bool = False, listener: Listener | None = None
) -> Replayed:
    """The update of a client in round t of a run."""
    run = load_run(path)
    config = _config_of(run, trust=trust)
    recorded = _recorded(run, t, client)

    # Data, model and participation as the run had them.
    simulation = Simulation(Alone(), config, device_of(Alone(), config.run))
    check_digests(simulation, None, run.attributes)
    source = _restore(simulation, run, t)

    # Rounds before, compared with the file on the way.
    listener, begin = listener or Listener(), simulation.completed
    seen = _Seen(run)
    if t > begin:
        listener.expects(t - begin)
    while simulation.completed < t:
        simulation.run_round(simulation.completed, seen)
        simulation.completed += 1
        listener.round_done(simulation.completed - begin)
    if t > begin:
        listener.ended(t - begin)

    current = _round(simulation, t, client, path)
    update, bad_step = _train(simulation, current, client)
    largest = float(np.float32(magnitudes(update[None])[0]))
    return Replayed(
        source=source,
        begin=begin,
        weight=float(current.weights[current.clients == client][0]),
        local_lr=current.local_lr,
        update=update,
        largest=np.inf if np.isnan(largest) else largest,
        recorded=recorded,
        bad_step=bad_step,
        first_difference=seen.difference,
    )


def _config_of(run: Run, *, trust: bool) -> Config:
    """The config in the file; code that it names is run only if the user wrote the file, or trusts it."""
    config = validate.parse(run.attributes["config"], f"{run.path} (its config)")
    require_stored_names(config, {}, run.path)
    if not trust:
        require_own(config, run.attributes, run.path)
        require_same_objects(run.attributes, run.path)
    return config


def _recorded(run: Run, t: int, client: int) -> float | None:
    """The largest magnitude in the update that the run had; None for the round in which it diverged."""
    num_rounds, num_clients = len(run.train), len(run.clients)
    diverged = run.status == DIVERGED
    last = num_rounds if diverged else num_rounds - 1
    if not 0 <= t <= last:
        raise UserError(
            f"--round {t}: {run.path} has rounds 0 to {last}" + " (the last diverged)" * diverged
        )
    if not 0 <= client < num_clients:
        raise UserError(f"--client {client}: the run has clients 0 to {num_clients - 1}")
    if t == num_rounds:
        return None
    rows = run.participation[run.participation["round"] == t]
    own = rows[rows["client"] == client]
    if not len(own):
        raise _absent(t, client, rows["client"].tolist(), run.path)
    return float(own["update_max"].iloc[0])


def _absent(t: int, client: int, others: list[int], path: Path) -> UserError:
    some = ", ".join(map(str, others[:20])) + ", ..." * (len(others) > 20)
    return UserError(
        f"--client {client}: took no part in round {t} of {path}; those who did: {some or 'nobody'}"
    )


def _restore(simulation: Simulation, run: Run, t: int) -> str:
    """The nearest state at or before round t; returns where it comes from."""
    newest = None
    for path in find_checkpoints(run.path):
        try:
            checkpoint = read_checkpoint(path)
            parts = [read_part(run.path, checkpoint, rank) for rank in range(checkpoint.parts)]
        except UserError:
            continue
        if checkpoint.run_id == run.attributes["run_id"] and checkpoint.completed <= t:
            newest = checkpoint
            simulation.restore(checkpoint, parts.__getitem__)
            break
    if newest is None or newest.completed < t:
        source = _restore_snapshot(simulation, run, t)
        if source:
            return source
    return f"the checkpoint after {newest.completed:,} rounds" if newest else "x_0"


def _restore_snapshot(simulation: Simulation, run: Run, t: int) -> str:
    """x_t as the file has it, where the client's work depends on nothing else; empty if that is not so."""
    method = simulation.method
    if run.params is None or t not in run.params[0] or simulation.tables or simulation.extras:
        return ""
    x = run.params[1][run.params[0].tolist().index(t)]
    before = run.participation[run.participation["round"] < t]
    for earlier, rows in before.groupby("round"):
        simulation.population.go_on(earlier, rows["client"].to_numpy())
    simulation.state = simulation.placed(method.init(np.array(x, dtype=np.float64)))
    for earlier in range(simulation.completed, t):  # a selection may depend on the rounds before
        simulation.participation.weights(earlier)
    simulation.completed = t
    return f"the model stored for round {t:,}"


class _Seen(Output):
    """Compares the rounds that are done again with those of the file."""

    takes_rows = True

    def __init__(self, run: Run) -> None:
        self._rows = dict(iter(run.participation.groupby("round")))
        self.difference: tuple[int, int] | None = None

    def add(self, table: str, **values: Any) -> None:
        """Notes the first client whose update has another size than in the file."""
        rows = self._rows.get(values["round"])
        if table != "participation" or self.difference or rows is None:
            return
        for n, now, before in zip(
            values["client"], np.float32(values["update_max"]), rows["update_max"], strict=False
        ):
            if now != np.float32(before):
                self.difference = int(values["round"]), int(n)
                return


def _round(simulation: Simulation, t: int, client: int, path: Path) -> Round:
    """Who takes part in the round, with what weight."""
    current = simulation.choose(t, simulation.method_of(t))
    if client not in current.clients:
        raise _absent(t, client, current.clients.tolist(), path)
    late = simulation.participation.late(t)
    if late and client in late.arriving_set:
        raise UserError(
            f"--client {client}: its update of round {t} of {path} was late: computed in an earlier round, "
            "it cannot be done again by itself"
        )
    return current


def _train(simulation: Simulation, current: Round, client: int) -> tuple[np.ndarray, int | None]:
    """The client's update, and the first local step after which it is not finite."""
    population, method = simulation.population, simulation.method_of(current.t)
    order = Order(
        population=population, method=method, state=simulation.state, current=current, report=RankReport()
    )  # fmt: skip
    updates = simulation.training.weighted_sum.buffers(1)
    finite: list[bool] = []
    trainer = make_trainer(
        simulation.engine, simulation.model, may_draw=population.may_draw,
        after_step=lambda: finite.append(bool(torch.isfinite(updates).all())),
    )  # fmt: skip

    # As training.py does it for all participants.
    population.start_from(simulation.state.global_params)
    population.use_full_data(method.uses_full_data(current.t))
    task, failures = task_of(order, np.array([client]), updates), Failures()
    trainer.train(updates, [task], failures)
    failures.raise_first()
    method.finish_clients(task.local, replace(current, mine=np.flatnonzero(current.clients == client)))
    bad_step = finite.index(False) + 1 if False in finite else None
    return task.local["update"][0].cpu().numpy().copy(), bad_step
