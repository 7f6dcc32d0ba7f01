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


class PackError(Exception):
    """Runs that cannot go on in lockstep; raised on all ranks."""

    agreed = True


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
    answers: dict[int, Any] = dict.fromkeys(range(len(runs)))  # of runs that have something to go on with
    wishes: dict[int, Wish] = {}
    while answers or wishes:
        # Each to its next wish, or to its end.
        for place, answer in answers.items():
            try:
                if isinstance(answer, Exception):
                    wishes[place] = runs[place].throw(answer)
                else:
                    wishes[place] = runs[place].send(answer)
                continue
            except StopIteration as stop:
                results[place] = stop.value
            except Exception as error:
                if comm.size > 1 and not getattr(error, "agreed", False):
                    raise
                results[place] = error
            ended(place, results[place])

        # Runs that want x evaluated first; then all want their clients trained.
        answers, asked = {}, [place for place, wish in wishes.items() if isinstance(wish, Look)]
        if asked:
            with clock(EVALUATION):
                look_all(comm, [wishes.pop(place) for place in asked])
            answers = dict.fromkeys(asked)
        elif wishes:
            asked = sorted(wishes)
            found = training.train([wishes.pop(place) for place in asked])
            answers = dict(zip(asked, found, strict=True))
    return [results[place] for place in range(len(runs))]


def alone(comm: Comm, training: Training, clock: Stopwatch, run: Steps[T]) -> T:
    """Collective. What one run returns."""
    (result,) = in_lockstep(comm, training, clock, [run])
    if isinstance(result, Exception):
        raise result
    return result
