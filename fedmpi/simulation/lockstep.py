"""Runs side by side: what each asks for is done for all of them at once.

A run is a coroutine (loop.py). Whatever costs time it asks for by `yield`: an `Order` to have its clients
trained and their updates summed, a `Look` to have x evaluated. Here such wishes of all runs are collected
and fulfilled together; a run alone is a pack of one. Invariant: every rank carries the runs on in the same
order, so that their collectives match; what a run gets does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from fedmpi.mpi import Comm
from fedmpi.simulation.clock import Stopwatch
from fedmpi.simulation.evaluate import Look, look_all
from fedmpi.simulation.training import Order, Training
from fedmpi.storage.columns import EVALUATION

T = TypeVar("T")
Wish = Order | Look
Steps = Generator[Wish, Any, T]


def in_lockstep(
    comm: Comm,
    training: Training,
    clock: Stopwatch,
    runs: Sequence[Steps[T]],
    ended: Callable[[int, T | Exception], None] = lambda place, result: None,
) -> list[T | Exception]:
    """Collective. Carry all runs to their ends; what each returns, or the exception that ended it.

    `ended` is called as soon as one has ended. An exception of one rank alone is raised.
    """
    results: dict[int, T | Exception] = {}
    wishes: dict[int, Wish] = {}

    def carry_on(place: int, step: Callable[[], Wish]) -> None:
        """To the next wish of a run, or to its end."""
        wishes.pop(place, None)
        try:
            wishes[place] = step()
        except StopIteration as stop:
            results[place] = stop.value
        except Exception as error:
            if comm.size > 1 and not getattr(error, "agreed", False):
                raise
            results[place] = error
        if place in results:
            ended(place, results[place])

    for place, run in enumerate(runs):
        carry_on(place, lambda run=run: next(run))
    while wishes:
        # Runs that want x evaluated first; then all want their clients trained.
        looking = [place for place, wish in wishes.items() if isinstance(wish, Look)]
        if looking:
            with clock(EVALUATION):
                look_all(comm, [wishes[place] for place in looking])
            answers = dict.fromkeys(looking)
        else:
            asked = sorted(wishes)
            answers = dict(zip(asked, training.train([wishes[p] for p in asked]), strict=True))

        for place in sorted(answers):
            run, answer = runs[place], answers[place]
            if isinstance(answer, Exception):
                carry_on(place, lambda run=run, answer=answer: run.throw(answer))
            else:
                carry_on(place, lambda run=run, answer=answer: run.send(answer))
    return [results[place] for place in range(len(runs))]


def alone(comm: Comm, training: Training, clock: Stopwatch, run: Steps[T]) -> T:
    """Collective. What one run returns."""
    (result,) = in_lockstep(comm, training, clock, [run])
    if isinstance(result, Exception):
        raise result
    return result
