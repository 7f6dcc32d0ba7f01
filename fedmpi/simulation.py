"""The round loop: Algorithm 1 over MPI. The only place that knows the order of the collectives.

Invariant: every rank runs every line, with the same participants, the same model and the same decisions;
a rank without work contributes zeros. Only rank 0 accumulates, amplifies and writes.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from fedmpi.aggregate import NonFiniteUpdateError, WeightedSum, wave_size
from fedmpi.client import LocalTrainer
from fedmpi.config import Config
from fedmpi.data.shard import load_shards
from fedmpi.evaluate import evaluate
from fedmpi.lending import Loans
from fedmpi.methods import make_method
from fedmpi.models import MODELS, build_model
from fedmpi.mpi import Comm
from fedmpi.params import FlatModel
from fedmpi.participation import make_participation
from fedmpi.plan import assign
from fedmpi.storage.schema import DIVERGED, DONE
from fedmpi.storage.writer import RunWriter
from fedmpi.terminal import Progress
from fedmpi.timing import Stopwatch


class Simulation:
    """One run, on one rank of many."""

    def __init__(self, comm: Comm, config: Config, device: torch.device) -> None:
        """Collective. Load the data, build the model, agree on x_0."""
        self.comm = comm
        self.config = config
        self.writer: RunWriter | None = None  # on rank 0, once results are to be written
        self.clock = Stopwatch()
        clients, self.train_set, self.test_set, self.data = load_shards(comm, config, device)
        self.model = comm.where(True, lambda: self._build_model(device))
        self.participation = comm.where(
            True, lambda: make_participation(config, self.data.partition.num_clients)
        )
        self.trainer = LocalTrainer(self.model, clients, reseed=config.model.name not in MODELS)
        self.weighted_sum = WeightedSum(
            comm,
            self.model.num_params,
            self.model.values.dtype,
            device,
            on_device=config.run.cuda_aware,
        )
        self.loans = Loans(comm, clients)
        self.wave_size = wave_size(self.model.num_params)
        self.minibatches_drawn = np.zeros(self.data.partition.num_clients, np.int64)

        # x_0 is rank 0's: a model function of the user's own may draw what it likes.
        initial = self.model.initial.copy()
        comm.broadcast(initial)
        self.method = make_method(config)
        self.state = self.method.init(initial)

    def _build_model(self, device: torch.device) -> FlatModel:
        module = build_model(self.config, self.data.shape, self.data.num_classes)
        return FlatModel(module, getattr(torch, self.config.run.dtype), device)

    def run(self, progress: Progress) -> str:
        """Collective. All rounds; returns the status "done" or "diverged"."""
        self.clock = Stopwatch()
        status, completed = DONE, 0
        self._evaluate_if_due(completed, progress)
        self._record_if_due(completed)
        for t in range(self.config.run.num_rounds):
            try:
                self.round(t)
            except NonFiniteUpdateError as error:
                status = self._report_divergence(t, error)
                break
            completed = t + 1
            self._evaluate_if_due(completed, progress)
            self._record_if_due(completed)
            progress.show(completed)
        progress.close(completed)
        self._write(status=status)
        return status

    def round(self, t: int) -> None:
        """Collective. Round t of Algorithm 1: from x_t to x_{t+1}."""
        comm_before = self._comm_seconds()

        # Who takes part, and with what weight: the same answer on every rank.
        clients, weights = self.participation.weights(t)

        # Lines 3-8: participants take I local steps from x_t; their updates are summed over all ranks.
        weighted_sum, compute_time = self._train_clients(t, clients, weights)

        # Line 9: x_{t+1} = x_t + sum_n q_t^n Delta_t^n.
        state = self.method.update(self.state, weighted_sum)

        # Line 10: u = u + sum_n q_t^n Delta_t^n.
        if self.comm.is_root:
            state = self.method.accumulate(state, weighted_sum)

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

        norm = math.sqrt(np.square(weighted_sum).sum())
        times = self.clock.elapsed, compute_time, self._comm_seconds() - comm_before
        if self.writer:
            self.writer.add("train", t, len(clients), norm, is_amplification, *times)
            self.writer.add("participation", t, clients, weights)

    def _train_clients(self, t: int, clients: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
        """Collective. (weighted sum of the updates of round t, compute time of the slowest rank)."""
        self.trainer.start.copy_(torch.from_numpy(self.state.global_params))
        weighted_sum, slowest = np.zeros(self.model.num_params), 0.0
        for first in range(0, max(len(clients), 1), self.wave_size):  # a round without clients too
            wave = slice(first, first + self.wave_size)
            part, seconds = self._train_wave(t, clients[wave], weights[wave])
            weighted_sum += part
            slowest += seconds
        self.minibatches_drawn[clients] += self.config.algorithm.local_steps
        return weighted_sum, slowest

    def _train_wave(self, t: int, clients: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
        """Collective. Each rank trains its part of the plan; then one exact sum over all ranks."""
        # The plan is the same on every rank: owners train their own clients and lend the surplus.
        owners = clients % self.comm.size
        trainers = assign(owners, self.comm.size)
        mine = trainers == self.comm.rank
        updates = self.weighted_sum.buffers(int(mine.sum()))
        steps, begin = self.config.algorithm.local_steps, time.perf_counter()
        with self.clock("lending"):
            self.loans.start(clients, trainers, self.minibatches_drawn, steps)

        # Own clients first, while the samples of borrowed ones arrive.
        is_borrowed = (owners != trainers)[mine]
        for row in np.argsort(is_borrowed, kind="stable").tolist():
            client, samples = int(clients[mine][row]), None
            if is_borrowed[row]:
                with self.clock("lending"):
                    samples = self.loans.receive(client, steps)
            with self.clock("local SGD"):
                self.trainer.train(
                    updates[row], client, t, int(self.minibatches_drawn[client]), steps,
                    self.config.local_lr(t), samples,
                )  # fmt: skip
        with self.clock("lending"):
            self.loans.finish()
        seconds = time.perf_counter() - begin
        return self.weighted_sum.reduce(clients, weights, mine, seconds, self.clock)

    def _evaluate_if_due(self, completed: int, progress: Progress) -> None:
        """Collective. Evaluate x_t after `completed` rounds, if the config asks for it."""
        run = self.config.run
        due = completed % run.eval_every == 0 if run.eval_every else False
        if not due and completed != run.num_rounds:
            return
        with self.clock("evaluation"):
            x = self.state.global_params
            train_loss, train_accuracy = evaluate(self.comm, self.model, x, self.train_set)
            test_loss, test_accuracy = evaluate(self.comm, self.model, x, self.test_set)
        progress.note(train_loss, test_accuracy)
        if self.writer:
            self.writer.add(
                "eval", completed, train_loss, train_accuracy, test_loss, test_accuracy,
                self.clock.elapsed,
            )  # fmt: skip

    def _comm_seconds(self) -> float:
        return self.clock.seconds["idle"] + self.clock.seconds["reduction"]

    def _record_if_due(self, completed: int) -> None:
        """Rank 0: keep x_t, and bring results to disk, when it is time."""
        if not self.writer:
            return
        run = self.config.run
        if run.record_params_every and completed % run.record_params_every == 0:
            self.writer.add_snapshot(completed, self.state.global_params)
        with self.clock("output"):
            if run.checkpoint_every and completed % run.checkpoint_every == 0:
                self.writer.flush(self.state.global_params)
            else:
                self.writer.flush_if_due(self.state.global_params)

    def _write(self, **attributes: str) -> None:
        if self.writer:
            with self.clock("output"):
                self.writer.flush(self.state.global_params, **attributes)

    def _report_divergence(self, t: int, error: NonFiniteUpdateError) -> str:
        if self.comm.is_root:
            rank = error.client % self.comm.size
            print(
                f"\nfedmpi: diverged in round {t}: client {error.client} (rank {rank}) gave a non-finite "
                f"update; results and model of the {t} rounds before are kept. "
                f"Try a local_lr below {self.config.local_lr(t):g}"
            )
        return DIVERGED
