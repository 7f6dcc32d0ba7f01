"""The round loop: Algorithm 1 over MPI. The only place that knows the order of the collectives.

Invariant: every rank runs every line, with the same participants, the same model and the same decisions;
a rank without work contributes zeros. Only rank 0 accumulates, amplifies and writes.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import torch

from fedmpi.aggregate import NonFiniteUpdateError, Reduced, WeightedSum, wave_size
from fedmpi.client import LocalTrainer
from fedmpi.config import Config
from fedmpi.data.shard import Work, load_shards
from fedmpi.engines import choose_engine, make_gradients
from fedmpi.engines.layout import speed_up
from fedmpi.evaluate import evaluate
from fedmpi.lending import Loans
from fedmpi.methods import ServerState, make_method
from fedmpi.models import MODELS, build_model
from fedmpi.mpi import Comm
from fedmpi.params import FlatModel
from fedmpi.participation import make_participation
from fedmpi.plan import assign
from fedmpi.recorder import Recorder, is_due
from fedmpi.stopping import StopRequest
from fedmpi.storage.checkpoint import Checkpoint
from fedmpi.storage.schema import DIVERGED, DONE, STOPPED
from fedmpi.terminal import Progress
from fedmpi.timing import Stopwatch, peak_memory_mb


class Simulation:
    """One run, on one rank of many."""

    def __init__(
        self, comm: Comm, config: Config, device: torch.device, stop: StopRequest | None = None
    ) -> None:
        """Collective. Load the data, build the model, agree on x_0."""
        self.comm = comm
        self.config = config
        self.recorder: Recorder | None = None  # on rank 0, once results are to be written
        self.run_id = ""
        self.completed = 0  # rounds
        self.stop = stop or StopRequest()
        self.stop_code = 0  # the same on all ranks after a round
        self.clock = Stopwatch()
        self.phases: list[dict[str, float]] | None = None  # of each rank, on rank 0 at the end
        clients, self.train_set, self.test_set, self.data = load_shards(comm, config, device)
        self.model = comm.where(True, lambda: self._build_model(device))
        self.participation = comm.where(
            True,
            lambda: make_participation(config, self.data.partition.num_clients, self.data.labels),
        )
        is_random = config.model.name not in MODELS  # a user's model may draw random numbers
        self.engine = comm.on_root(
            lambda: choose_engine(
                config.algorithm.engine, self.model, on_cuda=device.type == "cuda", is_random=is_random
            )
        )
        # Fixed from here on: a run that goes on elsewhere must not choose again.
        self.config = config = config.with_engine(self.engine.name)
        gradients = make_gradients(self.engine, self.model)
        self.loans = Loans(comm, clients)
        self.trainer = LocalTrainer(
            gradients, clients, self.model.values, reseed=is_random, after_step=self.loans.keep_moving
        )
        self.weighted_sum = WeightedSum(
            comm,
            self.model.num_params,
            self.model.values.dtype,
            device,
            on_device=config.run.cuda_aware,
        )
        self.wave_size = wave_size(self.model.num_params)
        self.minibatches_drawn = np.zeros(self.data.partition.num_clients, np.int64)

        # x_0 is rank 0's: a model function of the user's own may draw what it likes.
        initial = self.model.initial.copy()
        comm.broadcast(initial)
        self.method = make_method(config)
        self.state = self.method.init(initial)

    def _build_model(self, device: torch.device) -> FlatModel:
        module = build_model(self.config, self.data.shape, self.data.num_classes)
        model = FlatModel(module, getattr(torch, self.config.run.dtype), device)
        self.speed_up = speed_up(model, self.data.shape)
        return model

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the state of a checkpoint; the same on every rank, but for u, which is rank 0's."""
        self.completed = checkpoint.completed
        self.state = ServerState(checkpoint.global_params, checkpoint.accumulated, checkpoint.anchor_round)
        self.minibatches_drawn = checkpoint.minibatches_drawn
        self.participation.restore(checkpoint.completed, checkpoint.participation)
        self.clock = Stopwatch(offset=checkpoint.wall_time_s)

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
            self.state.global_params, self.state.accumulated, self.minibatches_drawn,
            self.participation.state(),
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
        if self.recorder:
            self.recorder.finish(status, self.state.global_params, self._make_checkpoint, self.phases)
        return status

    def _record(self, progress: Progress) -> None:
        progress.show(self.completed)
        if self.recorder:
            self.recorder.after_round(self.completed, self.state.global_params, self._make_checkpoint)

    def round(self, t: int) -> None:
        """Collective. Round t of Algorithm 1: from x_t to x_{t+1}."""
        comm_before = self._comm_seconds()

        # Who takes part, and with what weight: the same answer on every rank.
        clients, weights = self.participation.weights(t)

        # Lines 3-8: participants take I local steps from x_t; their updates are summed over all ranks.
        reduced = self._train_clients(t, clients, weights)

        # Line 9: x_{t+1} = x_t + sum_n q_t^n Delta_t^n.
        state = self.method.update(self.state, reduced.weighted_sum)

        # Line 10: u = u + sum_n q_t^n Delta_t^n.
        if self.comm.is_root:
            state = self.method.accumulate(state, reduced.weighted_sum)

        # Lines 11-14: after P rounds x_{t+1} = x_{t+1} + (eta - 1) u, then t_0 = t + 1 and u = 0.
        is_amplification = False
        if self.method.interval_ends(state, t):
            is_amplification = self.config.amplification(t) != 1
            if is_amplification and self.comm.is_root:
                state = self.method.amplify(state, t)
            if is_amplification:
                with self.clock("reduction"):
                    self.comm.broadcast(state.global_params)
            state = self.method.restart(state, t)
        self.state = state

        self.stop_code = reduced.stop
        if self.recorder:
            norm = math.sqrt(np.square(reduced.weighted_sum).sum())
            communication = self._comm_seconds() - comm_before
            times = self.clock.elapsed, reduced.compute_time, communication, reduced.idle_time
            self.recorder.add("train", t, len(clients), norm, is_amplification, *times)
            self.recorder.add("participation", t, clients, weights, reduced.update_max)

    def _train_clients(self, t: int, clients: np.ndarray, weights: np.ndarray) -> Reduced:
        """Collective. The weighted sum of the updates of round t, in waves that bound the memory."""
        self.trainer.start.copy_(torch.from_numpy(self.state.global_params))
        parts = []
        for first in range(0, max(len(clients), 1), self.wave_size):  # a round without clients too
            wave = slice(first, first + self.wave_size)
            parts.append(self._train_wave(t, clients[wave], weights[wave]))
        self.minibatches_drawn[clients] += self.config.algorithm.local_steps
        return Reduced(
            sum(part.weighted_sum for part in parts),
            np.concatenate([part.update_max for part in parts]),
            sum(part.compute_time for part in parts),
            sum(part.idle_time for part in parts),
            max(part.stop for part in parts),
        )

    def _train_wave(self, t: int, clients: np.ndarray, weights: np.ndarray) -> Reduced:
        """Collective. Each rank trains its part of the plan; then one exact sum over all ranks."""
        # The plan is the same on every rank: owners train their own clients and lend the surplus.
        owners = clients % self.comm.size
        costs = self.data.costs(clients, self.config.algorithm.batch_size)
        trainers = assign(owners, self.comm.size, costs)
        mine = np.flatnonzero(trainers == self.comm.rank)
        is_borrowed = owners[mine] != self.comm.rank
        mine = np.concatenate([mine[~is_borrowed], mine[is_borrowed]])
        updates = self.weighted_sum.buffers(len(mine))
        works = [Work(n, int(self.minibatches_drawn[n])) for n in clients[mine].tolist()]
        steps, local_lr = self.config.algorithm.local_steps, self.config.local_lr(t)
        begin = time.perf_counter()
        with self.clock("lending"):
            self.loans.start(clients, trainers, self.minibatches_drawn, steps)

        # Own clients first, while the samples of borrowed ones arrive; in groups, all at once.
        num_own = len(mine) - int(is_borrowed.sum())
        first = num_own if self.engine.name == "loop" else 0
        with self.clock("local SGD"):
            self.trainer.train(updates[:first], works[:first], t, steps, local_lr)
        with self.clock("lending"):
            works[num_own:] = [
                replace(work, samples=self.loans.receive(work.client, steps)) for work in works[num_own:]
            ]
        with self.clock("local SGD"):
            self.trainer.train(updates[first:], works[first:], t, steps, local_lr)
        with self.clock("lending"):
            self.loans.finish()
        seconds = time.perf_counter() - begin
        return self.weighted_sum.reduce(clients, weights, mine, seconds, self.stop.code, self.clock)

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
            train = evaluate(self.comm, self.model, x, self.train_set) if on_train else nothing
            test = evaluate(self.comm, self.model, x, self.test_set) if on_test else nothing
        progress.note(train[0], test[1])
        if self.recorder:
            self.recorder.add("eval", completed, *train, *test, self.clock.elapsed)

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
