"""What is looked at between and within rounds, when it is due: evaluations, and the terms of the theory."""

from __future__ import annotations

import itertools

from fedmpi.config import Config
from fedmpi.methods import Round
from fedmpi.simulation.cadence import is_due
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.energy import EnergyMeter
from fedmpi.simulation.evaluate import Evaluator, Look, Metrics
from fedmpi.simulation.lockstep import Steps
from fedmpi.simulation.outcome import Listener, Output
from fedmpi.simulation.probe import Probe
from fedmpi.simulation.shares import Vector
from fedmpi.storage.columns import PARTS, THEORY
from fedmpi.tasks.recorded import metric_columns


class Observer:
    """Evaluates x and measures gradients as the config asks for it; the run itself does not change."""

    def __init__(
        self, config: Config, evaluators: dict[str, Evaluator], probe: Probe, clock: Stopwatch,
        meter: EnergyMeter,
    ) -> None:  # fmt: skip
        """`evaluators` of the sets "train", "test" and, where clients are held out, "held-out"."""
        self._run, self._evaluators = config.run, evaluators
        self.on_train, self.on_test = evaluators["train"], evaluators["test"]
        self._probe, self._clock, self.meter = probe, clock, meter
        self._task = self.on_train.model.task
        self.metrics = metric_columns(self._task)
        self._names = [column.name for column in self.metrics]

    def evaluate_if_due(self, completed: int, x: Vector, output: Output, listener: Listener) -> Steps[None]:
        """Collective. Evaluate x after `completed` rounds, if the config asks for it."""
        # Which sets are due; both after the last round.
        self.meter.tick()
        run = self._run
        every = run.eval_train_every if run.eval_train_every is not None else run.eval_every
        is_last = completed == run.num_rounds
        train_is_due = is_last or is_due(completed, every)
        test_is_due = is_last or is_due(completed, run.eval_every)
        if is_due(completed, run.eval_clients_every) or (is_last and run.eval_clients_every):
            yield from self._evaluate_clients(completed, x, output)
        if not train_is_due and not test_is_due:
            return

        # A set that is not due is nan in the row.
        yield Look(x, [self.on_train] * train_is_due + [self.on_test] * test_is_due)
        train = self.on_train.found if train_is_due else self.on_train.nothing
        test = self.on_test.found if test_is_due else self.on_test.nothing
        row = {"round": completed, **self._named(train, test), "wall_time_s": self._clock.elapsed}
        output.add("eval", **row)
        listener.evaluated(row)
        if self.meter.is_there:  # the same on all ranks
            output.add("energy", round=completed, joules=self.meter.take())

    def _evaluate_clients(self, completed: int, x: Vector, output: Output) -> Steps[None]:
        """Collective. Evaluate x for each client; the means over all samples are known then, too."""
        closer = {part: evaluator for part, evaluator in self._evaluators.items() if evaluator.cells}
        yield Look(x, list(closer.values()), by_client=True)
        for part, evaluator in closer.items():
            found = evaluator.found_by_client
            output.add(
                "clients_eval",
                round=completed,
                client=found.clients,
                part=PARTS.index(part),
                samples=found.samples,
                **dict(zip(("loss", *self._task.names), found.metrics, strict=True)),
            )

    def evaluate_amplification(
        self, completed: int, x: Vector, output: Output, *, is_after: bool
    ) -> Steps[None]:
        """Collective. Evaluate x just before or just after an amplification, if the config asks for it."""
        if not self._run.eval_at_amplification:
            return
        yield Look(x, [self.on_train, self.on_test])
        metrics = self._named(self.on_train.found, self.on_test.found)
        output.add("amplification", round=completed, is_after=is_after, **metrics)

    def theory_if_due(self, current: Round, x: Vector, output: Output) -> None:
        """Collective. |grad f|^2 and the divergences at x_t, for the participants of round t."""
        if not is_due(current.t, self._run.record_theory_every):
            return
        with self._clock(THEORY):
            observed = self._probe.observe(x, current.clients, current.weights)
        output.add("theory", round=current.t, **observed)

    def _named(self, *found: Metrics) -> dict[str, float]:
        """The metrics of training and test set under the names of the result file."""
        return dict(zip(self._names, itertools.chain(*found), strict=True))
