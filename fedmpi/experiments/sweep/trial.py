"""Time and memory of a sweep, from a few rounds of each kind of run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedmpi.config import Config
from fedmpi.experiments.lifecycle import prepare
from fedmpi.experiments.sweep.points import Point
from fedmpi.mpi import Comm
from fedmpi.results.text import duration
from fedmpi.simulation.clock import peak_memory_mb
from fedmpi.storage.columns import EVALUATION

_ROUNDS = 10
_MOST_TRIALS = 8


@dataclass(frozen=True)
class Cost:
    """What a kind of run costs."""

    round_seconds: float
    eval_seconds: float
    memory_mb: float  # of the largest rank

    def seconds(self, config: Config) -> float:
        """A whole run."""
        run = config.run
        evaluations = run.num_rounds // run.eval_every if run.eval_every else 1
        return run.num_rounds * self.round_seconds + evaluations * self.eval_seconds


def measure(group: Comm, config: Config) -> Cost:
    """Collective in the group. A few rounds without warm-up or output, and one evaluation."""
    rounds = min(_ROUNDS, config.run.num_rounds)
    short = replace(config.run, num_rounds=rounds, eval_every=0, eval_train_every=0)
    data = replace(config.data, stage=None)  # this may be a login node
    simulation, _ = prepare(group, replace(config, run=short, data=data, warmup=None))
    simulation.run()  # a rate may diverge; that does not matter here
    evaluation = simulation.clock.seconds[EVALUATION]
    rounds = (simulation.clock.elapsed_here - evaluation) / max(simulation.completed, 1)
    most = group.gather_on_all(peak_memory_mb())
    return Cost(*group.gather_on_all((rounds, evaluation))[0], max(most))


def dry_run(world: Comm, group: Comm, points: list[Point], num_groups: int) -> list[str]:
    """Collective. All runs and what they will cost, in lines; the first group tests one of each kind."""
    kinds = list({point.cost_key: point for point in reversed(points)}.values())[::-1][:_MOST_TRIALS]
    costs = {p.cost_key: measure(group, p.config) for p in kinds} if world.rank < group.size else {}
    world.wait_asleep()
    return _lines(points, costs, group.size, num_groups) if world.is_root else []


def _lines(points: list[Point], costs: dict[str, Cost], width: int, num_groups: int) -> list[str]:
    typical = next(iter(costs.values()))
    seconds = [costs.get(p.cost_key, typical).seconds(p.config) for p in points]
    lines = [f"{p.index:5d}  {duration(s):>7s}  {p.name}" for p, s in zip(points, seconds, strict=True)]
    wall = max(sum(seconds) / num_groups, max(seconds))
    memory = max(cost.memory_mb for cost in costs.values())
    return [
        *lines,
        f"{len(points)} runs, {num_groups} at a time on {width} rank{'s' * (width > 1)} each: "
        f"about {duration(wall)} in total, longest run {duration(max(seconds))}; {memory:,.0f} MB a rank "
        f"(from {len(costs)} trials of {_ROUNDS} rounds)",
    ]
