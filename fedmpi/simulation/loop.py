"""The round loop: Algorithm 1 over MPI. The only place that knows the order of the collectives.

A run is a coroutine: what takes time, local training and evaluation, it asks for by `yield`, and gets it
together with the other runs of its pack (lockstep.py). Invariant: every rank runs every line, with the same
participants, the same model and the same decisions; a rank without work contributes zeros. Only rank 0
accumulates, amplifies and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from fedmpi.config import Config
from fedmpi.config.records import replace
from fedmpi.data.loading import Shards, load_shards
from fedmpi.data.ownership import parts_for
from fedmpi.methods import Method, Round, ServerState, WarmUp, make_method
from fedmpi.models import build_model, may_be_random
from fedmpi.models.engines import choose_engine
from fedmpi.models.engines.layout import speed_up
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.watch import pulse
from fedmpi.participation import make_participation
from fedmpi.simulation import late
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.energy import EnergyMeter
from fedmpi.simulation.evaluate import Evaluator
from fedmpi.simulation.lockstep import PackError, Steps, alone
from fedmpi.simulation.observer import Observer
from fedmpi.simulation.outcome import Listener, Outcome, Output, divergence
from fedmpi.simulation.population import Population
from fedmpi.simulation.probe import Probe
from fedmpi.simulation.rank_report import RankReport
from fedmpi.simulation.round_rows import add_rows
from fedmpi.simulation.server_vectors import broadcast, may_stay_on_device, on_host, to_device
from fedmpi.simulation.shares import NonFiniteUpdateError
from fedmpi.simulation.stopping import StopRequest
from fedmpi.simulation.training import Order, Training
from fedmpi.storage.checkpoint import Checkpoint
from fedmpi.storage.columns import DIVERGED, DONE, IDLE, REDUCTION, STOPPED
from fedmpi.tasks import make_task

_NOWHERE = Output()


class Simulation:
    """One run, on one rank of many."""

    def __init__(
        self,
        comm: Comm,
        config: Config,
        device: torch.device,
        stop: StopRequest | None = None,
        *,
        shards: Shards | None = None,
        beside: Simulation | None = None,
        num_packed: int = 1,
    ) -> None:
        """Collective. Load the data, build the model, agree on x_0.

        In a pack of `num_packed` runs: `shards`, its data, loaded already; `beside`, the first run.
        """
        self.comm = comm
        self.config = config
        self._checkpoint_due = False  # the same on all ranks after a round
        self.completed = 0  # rounds
        self.stop = stop or StopRequest()
        self.stop_code = 0  # the same on all ranks after a round
        self.clock = Stopwatch(shared=beside.clock if beside else None)
        self.num_packed = num_packed

        # Data, model and participation; an error on any rank is raised on all.
        own = shards or load_shards(comm, config, device)
        self.data = own.info
        self.model = comm.try_on_all(lambda: self._build_model(device, beside))
        num_clients = self.data.partition.num_clients
        self.participation = comm.try_on_all(
            lambda: make_participation(config, num_clients, self.data.labels)
        )

        # Rank 0 chooses the engine for all.
        on_cuda, is_random = device.type == "cuda", may_be_random(config)
        self.engine = comm.on_root(
            lambda: choose_engine(config.algorithm.engine, self.model, on_cuda=on_cuda, is_random=is_random)
        )
        if beside and self.engine.name != beside.engine.name:
            raise PackError("they were begun with other engines")
        # Fixed from here on: a run that is resumed elsewhere must not choose again.
        self.config = config = config.with_engine(self.engine.name)

        # The warm-up is plain FedAvg, whatever method follows.
        self.method = comm.try_on_all(lambda: make_method(config, num_clients))
        self.warmup_method = WarmUp(config, num_clients, self.method)
        self._stays_on_device = may_stay_on_device(self.method, device)

        # Its clients, and what trains them: the runs of a pack share that.
        self.population = Population(
            comm, config, self.model, own.clients, own.info, self.tables, num_packed
        )
        self.training = beside.training if beside else Training(
            comm, config, self.model, self.engine, self.clock,
            may_draw=is_random, stays_on_device=self._stays_on_device,
        )  # fmt: skip
        self.probe = Probe(comm, self.model, own.clients, num_clients)
        meter = EnergyMeter(comm, num_packed)
        evaluators = {
            part: Evaluator(self.model, data, own.clients_of.get(part))
            for part, data in own.eval_sets.items()
        }
        self.observer = Observer(config, evaluators, self.probe, self.clock, meter)

        # All ranks take x_0 from rank 0: a user's model function may draw other numbers on each rank.
        initial = self.model.initial.copy()
        comm.broadcast(initial)
        self.state = self.placed(self.method.init(initial))

    def _build_model(self, device: torch.device, beside: Simulation | None) -> FlatModel:
        data = self.data
        module = build_model(self.config, data.shape, data.num_outputs, data.num_tokens, data.label)
        model = FlatModel(module, getattr(torch, self.config.run.dtype), device, make_task(self.config))
        if beside and model.describe() != beside.model.describe():
            raise PackError("their models have other parameters")
        self.speed_up = speed_up(model, self.data.shape, is_known=bool(beside and beside.speed_up))
        return model

    def placed(self, state: ServerState) -> ServerState:
        """The state with its vectors where this run keeps them."""
        return to_device(state, self.model.values.device) if self._stays_on_device else state

    @property
    def tables(self) -> tuple[str, ...]:
        """What clients keep with their owners: what the method wants, and updates that come later."""
        return late.with_late(self.config, self.method.tables)

    @property
    def global_params(self) -> np.ndarray:
        """x as a numpy array, wherever it lies."""
        return on_host(self.state.global_params)

    @property
    def extras(self) -> dict[str, np.ndarray]:
        """The method's own state as numpy arrays."""
        return {name: on_host(values) for name, values in self.state.extras.items()}

    def restore(
        self, checkpoint: Checkpoint, read_part: Callable[[int], Iterable[dict[str, np.ndarray]]]
    ) -> None:
        """Continue from a checkpoint; the same on every rank, except for u, which only rank 0 uses.

        `read_part(rank)` gives the client tables that this rank wrote, piece by piece.
        """
        # The server's state.
        self.completed = checkpoint.completed
        state = ServerState(
            checkpoint.global_params, checkpoint.accumulated, checkpoint.anchor_round, checkpoint.method
        )
        self.state = self.placed(state)

        # Client tables: each rank picks its clients from the parts that may have them, some rows at a time.
        for part in parts_for(self.comm.rank, self.comm.size, checkpoint.parts):
            for rows in read_part(part):
                self.population.memory.load(rows, self.comm.rank)

        # Positions in the data and in the participation, and the clock.
        self.population.minibatches_drawn = checkpoint.minibatches_drawn
        self.participation.restore(checkpoint.completed, checkpoint.participation)
        self.clock.offset = checkpoint.wall_time_s

    def digests(self) -> dict[str, str]:
        """Digests of what must not change when a run is resumed."""
        return {
            "data": self.data.digest,
            "model": self.model.digest(),
            "participation": self.participation.digest(),
        }

    def checkpoint(self, run_id: str, rows: dict[str, int]) -> Checkpoint:
        """The state after `completed` rounds; `rows`: how many rows of each result table belong to it."""
        return Checkpoint(
            run_id=run_id,
            completed=self.completed,
            anchor_round=self.state.anchor_round,
            rows=rows,
            wall_time_s=self.clock.elapsed,
            digests=self.digests(),
            global_params=self.global_params,
            accumulated=on_host(self.state.accumulated),
            minibatches_drawn=self.population.minibatches_drawn,
            participation=self.participation.state(),
            method=self.extras,
            parts=self.comm.size if self.tables else 0,
        )

    def method_of(self, t: int) -> Method:
        """The warm-up's, or the one that follows."""
        return self.warmup_method if t < self.config.warmup_rounds else self.method

    def run(self, output: Output | None = None, listener: Listener | None = None) -> Outcome:
        """Collective. Run the remaining rounds; returns how they ended. Prints nothing."""
        return alone(self.comm, self.training, self.clock, self.rounds(output, listener))

    def run_round(self, t: int, output: Output = _NOWHERE) -> None:
        """Collective. Round t alone."""
        alone(self.comm, self.training, self.clock, self.one_round(t, output))

    def rounds(self, output: Output | None = None, listener: Listener | None = None) -> Steps[Outcome]:
        """Collective. As `run`, step by step."""
        output, listener = output or Output(), listener or Listener()
        status, diverged = DONE, None
        listener.expects(self.config.run.num_rounds, self.completed)
        self.clock.start()
        self.observer.meter.start()

        # A new run evaluates and stores x_0 first.
        if self.completed == 0:
            yield from self._after_round(output, listener)

        # Until the last round, divergence or a request to stop.
        while self.completed < self.config.run.num_rounds:
            try:
                yield from self.one_round(self.completed, output)
            except NonFiniteUpdateError as error:
                t = self.completed
                status = DIVERGED
                diverged = divergence(t, error.client, self.comm.size, self.config.local_lr_at(t))
                break
            self.completed += 1
            yield from self._after_round(output, listener)
            self.stop.round_done()
            if self.stop_code and self.completed < self.config.run.num_rounds:
                status = STOPPED
                break

        # How it ended, and where each rank's time went.
        listener.ended(self.completed)
        outcome = Outcome(
            status=status,
            completed=self.completed,
            stop_code=self.stop_code if status == STOPPED else 0,
            divergence=diverged,
            phases=self.comm.gather(self.clock.phases(self.model.values.device)),
        )
        output.finish(self, outcome)
        return outcome

    def _after_round(self, output: Output, listener: Listener) -> Steps[None]:
        """Collective. Evaluate, report progress and store, whatever is due."""
        yield from self.observer.evaluate_if_due(self.completed, self.state.global_params, output, listener)
        listener.round_done(self.completed)
        output.after_round(self, checkpoint=self._checkpoint_due)

    def one_round(self, t: int, output: Output = _NOWHERE) -> Steps[None]:
        """Collective. Round t of Algorithm 1: from x_t to x_{t+1}."""
        pulse.here.in_round(t)
        comm_before = self._comm_seconds()
        method = self.method_of(t)

        # Who takes part, and with what weight: the same answer on every rank.
        current = self.choose(t, method)
        self.observer.theory_if_due(current, self.state.global_params, output)

        # Lines 3-8: participants take I local steps from x_t; their updates are summed over all ranks.
        reduced = yield Order(
            population=self.population,
            method=method,
            state=self.state,
            current=current,
            report=RankReport(stop=self.stop.code, wants_checkpoint=output.wants_checkpoint(t + 1)),
            late=self.participation.late(t),
        )

        # Line 9: x_{t+1} = x_t + sum_n q_t^n Delta_t^n, or what another method makes of the round.
        current = replace(current, sums=reduced.sums, numbers=reduced.numbers)
        added, state = method.increment(self.state, current)
        if method.moves(current):  # otherwise x and u stay the very same vectors
            state = method.update(state, added)

        # Line 10: u = u + sum_n q_t^n Delta_t^n.
        if method.moves(current) and self.comm.is_root:
            state = method.accumulate(state, added)

        # Lines 11-14: after P rounds x_{t+1} = x_{t+1} + (eta - 1) u, then t_0 = t + 1 and u = 0.
        is_amplification = False
        if method.interval_ends(state, t):
            is_amplification = self.config.amplification_at(t) != 1
            if is_amplification:
                yield from self.observer.evaluate_amplification(
                    t + 1, state.global_params, output, is_after=False
                )
            if is_amplification and self.comm.is_root:
                state = method.amplify(state, t)
            if is_amplification:
                with self.clock(REDUCTION):
                    state = replace(state, global_params=broadcast(self.comm, state.global_params))
                yield from self.observer.evaluate_amplification(
                    t + 1, state.global_params, output, is_after=True
                )
            state = self.training.end_interval(self.population, method, method.restart(state, t))
        self.training.take_back(self.population, method, state, current)
        self.state = state

        # What the ranks agreed on, and this round's rows of the result file.
        self.stop_code, self._checkpoint_due = reduced.stop, reduced.checkpoint
        if output.takes_rows:
            times = self.clock.elapsed, self._comm_seconds() - comm_before
            undelivered = self.participation.undelivered(t)
            add_rows(output, current, reduced, undelivered, *times, is_amplification=is_amplification)

    def choose(self, t: int, method: Method) -> Round:
        """Collective. Who takes part in round t: what participation says and the method makes of it."""
        clients, weights = self.participation.weights(t)
        losses = self.probe.losses(self.state.global_params, clients) if method.asks_losses else None
        self.state = method.notice(self.state, t, clients, losses)
        clients, weights = method.participants(self.state, t, clients, weights)
        return Round(t, clients, weights, self.config.local_lr_at(t))

    def _comm_seconds(self) -> float:
        return self.clock.seconds[IDLE] + self.clock.seconds[REDUCTION]
