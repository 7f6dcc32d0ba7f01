"""The round loop: Algorithm 1 over MPI. The only place that knows the order of the collectives.

Invariant: every rank runs every line, with the same participants, the same model and the same decisions;
a rank without work contributes zeros. Only rank 0 accumulates, amplifies and writes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedmpi.cli.progress import Progress
from fedmpi.config import Config
from fedmpi.data.shard import load_shards
from fedmpi.experiments.recorder import Recorder, is_due
from fedmpi.methods import Method, Round, ServerState, make_method
from fedmpi.models import build_model, may_be_random
from fedmpi.models.engines import choose_engine
from fedmpi.models.engines.layout import speed_up
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.participation import make_participation
from fedmpi.simulation.aggregate import NonFiniteUpdateError
from fedmpi.simulation.clock import Stopwatch, peak_memory_mb
from fedmpi.simulation.evaluate import Evaluator
from fedmpi.simulation.probe import Probe
from fedmpi.simulation.stopping import StopRequest
from fedmpi.simulation.training import Training
from fedmpi.storage.checkpoint import Checkpoint, read_part, write_part
from fedmpi.storage.schema import DIVERGED, DONE, STOPPED


class Simulation:
    """One run, on one rank of many."""

    def __init__(
        self, comm: Comm, config: Config, device: torch.device, stop: StopRequest | None = None
    ) -> None:
        """Collective. Load the data, build the model, agree on x_0."""
        self.comm = comm
        self.config = config
        self.recorder: Recorder | None = None  # on rank 0, once results are to be written
        self.path: Path | None = None  # of the result file, on all ranks
        self.run_id = ""
        self._checkpoint_due = False  # the same on all ranks after a round
        self.completed = 0  # rounds
        self.stop = stop or StopRequest()
        self.stop_code = 0  # the same on all ranks after a round
        self.clock = Stopwatch()
        self.phases: list[dict[str, float]] | None = None  # of each rank, on rank 0 at the end
        clients, self.train_set, self.test_set, self.data = load_shards(comm, config, device)
        self.model = comm.where(True, lambda: self._build_model(device))
        self.evaluate_train = Evaluator(comm, self.model, self.train_set)
        self.evaluate_test = Evaluator(comm, self.model, self.test_set)
        self.participation = comm.where(
            True,
            lambda: make_participation(config, self.data.partition.num_clients, self.data.labels),
        )
        on_cuda, is_random = device.type == "cuda", may_be_random(config)
        self.engine = comm.on_root(
            lambda: choose_engine(config.algorithm.engine, self.model, on_cuda=on_cuda, is_random=is_random)
        )
        # Fixed from here on: a run that goes on elsewhere must not choose again.
        self.config = config = config.with_engine(self.engine.name)
        # The warm-up is plain FedAvg, whatever comes after it.
        self.warmup_method = Method(config.plain(), self.data.partition.num_clients)
        self.method = comm.where(True, lambda: make_method(config, self.data.partition.num_clients))
        self.training = Training(
            comm, config, self.model, self.engine, clients, self.data, self.method.tables, self.clock
        )
        self.probe = Probe(comm, self.model, clients, self.data.partition.num_clients)

        # x_0 is rank 0's: a model function of the user's own may draw what it likes.
        initial = self.model.initial.copy()
        comm.broadcast(initial)
        self.state = self.method.init(initial)

    def _build_model(self, device: torch.device) -> FlatModel:
        module = build_model(self.config, self.data.shape, self.data.num_classes)
        model = FlatModel(module, getattr(torch, self.config.run.dtype), device)
        self.speed_up = speed_up(model, self.data.shape)
        return model

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the state of a checkpoint; the same on every rank, but for u, which is rank 0's."""
        self.completed = checkpoint.completed
        self.state = ServerState(
            checkpoint.global_params, checkpoint.accumulated, checkpoint.anchor_round, checkpoint.method
        )
        for rank in range(checkpoint.parts):
            self.training.memory.load(read_part(self.path, checkpoint, rank), self.comm.rank)
        self.training.minibatches_drawn = checkpoint.minibatches_drawn
        self.participation.restore(checkpoint.completed, checkpoint.participation)
        self.clock.offset = checkpoint.wall_time_s

    def digests(self) -> dict[str, str]:
        """What must be the same when a run goes on."""
        return {
            "data": self.data.digest,
            "model": self.model.digest(),
            "participation": self.participation.digest(),
        }

    def _make_checkpoint(self, rows: dict[str, int]) -> Checkpoint:
        return Checkpoint(
            self.run_id, self.completed, self.state.anchor_round, rows, self.clock.elapsed, self.digests(),
            self.state.global_params, self.state.accumulated, self.training.minibatches_drawn,
            self.participation.state(), dict(self.state.extras),
            self.comm.size if self.method.tables else 0,
        )  # fmt: skip

    def run(self, progress: Progress) -> str:
        """Collective. The rounds that are left; returns the status "done", "diverged" or "stopped"."""
        self.clock.start()
        status = DONE
        if self.completed == 0:
            self._evaluate_if_due(progress)
            self._record(progress)
        while self.completed < self.config.run.num_rounds:
            try:
                self.round(self.completed)
            except NonFiniteUpdateError as error:
                status = self._report_divergence(error)
                break
            self.completed += 1
            self._evaluate_if_due(progress)
            self._record(progress)
            self.stop.round_done()
            if self.stop_code and self.completed < self.config.run.num_rounds:
                status = STOPPED
                break
        progress.close(self.completed)
        self.phases = self.comm.gather(
            {**self.clock.seconds, "in all": self.clock.elapsed_here, "memory_mb": peak_memory_mb()}
        )
        if status != DIVERGED:
            self._write_parts()
        if self.recorder:
            self.recorder.finish(status, self.state.global_params, self._make_checkpoint, self.phases)
        return status

    def _record(self, progress: Progress) -> None:
        progress.show(self.completed)
        if self._checkpoint_due:
            self._write_parts()
        if self.recorder:
            self.recorder.after_round(
                self.completed, self.state.global_params, self._make_checkpoint,
                checkpoint=self._checkpoint_due,
            )  # fmt: skip

    def _wants_checkpoint(self) -> bool:
        return self.recorder is not None and self.recorder.checkpoint_due(self.completed + 1)

    def _write_parts(self) -> None:
        """Collective. What the clients remember, each rank its own, before the checkpoint that needs it."""
        if self.method.tables and self.path is not None:
            part = self.path, self.run_id, self.completed, self.comm.rank
            self.comm.where(True, lambda: write_part(*part, self.training.memory.dump()))

    def round(self, t: int) -> None:
        """Collective. Round t of Algorithm 1: from x_t to x_{t+1}."""
        comm_before = self._comm_seconds()
        method = self.warmup_method if t < self.config.warmup_rounds else self.method

        # Who takes part, and with what weight: the same answer on every rank.
        clients, weights = self.participation.weights(t)
        clients, weights = method.participants(self.state, t, clients, weights)
        round = Round(t, clients, weights, self.config.local_lr(t))
        self._observe_if_due(round)

        # Lines 3-8: participants take I local steps from x_t; their updates are summed over all ranks.
        wishes = self.stop.code, self._wants_checkpoint()
        reduced = self.training.train(method, self.state, round, wishes)

        # Line 9: x_{t+1} = x_t + sum_n q_t^n Delta_t^n, or what another method makes of the round.
        added, state = method.increment(self.state, replace(round, sums=reduced.sums))
        state = method.update(state, added)

        # Line 10: u = u + sum_n q_t^n Delta_t^n.
        if self.comm.is_root:
            state = method.accumulate(state, added)

        # Lines 11-14: after P rounds x_{t+1} = x_{t+1} + (eta - 1) u, then t_0 = t + 1 and u = 0.
        is_amplification = False
        if method.interval_ends(state, t):
            is_amplification = self.config.amplification(t) != 1
            if is_amplification:
                self._evaluate_amplification(t + 1, state.global_params, is_after=False)
            if is_amplification and self.comm.is_root:
                state = method.amplify(state, t)
            if is_amplification:
                with self.clock("reduction"):
                    self.comm.broadcast(state.global_params)
                self._evaluate_amplification(t + 1, state.global_params, is_after=True)
            state = self.training.end_interval(method, method.restart(state, t))
        self.state = state

        self.stop_code, self._checkpoint_due = reduced.stop, reduced.checkpoint
        if self.recorder:
            norm = math.sqrt(np.square(reduced.sums["weighted_sum"]).sum())
            communication = self._comm_seconds() - comm_before
            times = self.clock.elapsed, reduced.compute_time, communication, reduced.idle_time
            self.recorder.add("train", t, len(clients), norm, is_amplification, *times)
            self.recorder.add("participation", t, clients, weights, reduced.update_max)

    def _evaluate_if_due(self, progress: Progress) -> None:
        """Collective. Evaluate x_t after `completed` rounds, if the config asks for it."""
        run, completed = self.config.run, self.completed
        every = run.eval_train_every if run.eval_train_every is not None else run.eval_every
        is_last = completed == run.num_rounds
        on_train = is_last or is_due(completed, every)
        on_test = is_last or is_due(completed, run.eval_every)
        if not on_train and not on_test:
            return
        nothing, x = (math.nan, math.nan), self.state.global_params
        with self.clock("evaluation"):
            train = self.evaluate_train(x) if on_train else nothing
            test = self.evaluate_test(x) if on_test else nothing
        progress.note(train[0], test[1])
        if self.recorder:
            self.recorder.add("eval", completed, *train, *test, self.clock.elapsed)

    def _evaluate_amplification(self, completed: int, x: np.ndarray, *, is_after: bool) -> None:
        """Collective. The tooth of the sawtooth: x on either side of an amplification."""
        if not self.config.run.eval_at_amplification:
            return
        with self.clock("evaluation"):
            train = self.evaluate_train(x)
            test = self.evaluate_test(x)
        if self.recorder:
            self.recorder.add("amplification", completed, is_after, *train, *test)

    def _observe_if_due(self, round: Round) -> None:
        """Collective. |grad f|^2 and the divergences at x_t, for the participants of round t."""
        if not is_due(round.t, self.config.run.record_theory_every):
            return
        with self.clock("theory"):
            found = self.probe.observe(self.state.global_params, round.clients, round.weights)
        if self.recorder:
            self.recorder.add("theory", round.t, *found)

    def _comm_seconds(self) -> float:
        return self.clock.seconds["idle"] + self.clock.seconds["reduction"]

    def _report_divergence(self, error: NonFiniteUpdateError) -> str:
        if self.comm.is_root:
            t, rank = self.completed, error.client % self.comm.size
            print(
                f"\nfedmpi: diverged in round {t}: client {error.client} (rank {rank}) gave a non-finite "
                f"update; results and model of the {t} rounds before are kept. "
                f"Try a local_lr below {self.config.local_lr(t):g}"
            )
        return DIVERGED
