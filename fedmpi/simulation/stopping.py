"""When to stop before the last round: a signal, or an approaching time limit.

Invariant: handlers only set a code. It travels with the round's reduction, so that all ranks learn of it
in the same round, finish that round, write results and checkpoint, and exit together.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator

_REASONS = {
    1: "the time limit is near",
    2: "signal USR1",
    3: "signal USR2",
    4: "signal TERM",
    5: "Ctrl-C",
    6: "a callback asked for it",
}
_SIGNALS = {signal.SIGUSR1: 2, signal.SIGUSR2: 3, signal.SIGTERM: 4, signal.SIGINT: 5}
_INTERRUPT, _BY_CALLBACK = 5, 6
_AT_ONCE_AFTER = 0.5  # seconds after the first Ctrl-C; launchers may deliver one and the same twice
_MARGIN_SECONDS = 30.0  # before SLURM ends the job, in addition to the time of two rounds


class StopRequest:
    """Collects reasons to stop on one rank."""

    def __init__(self) -> None:
        self._code = 0
        self.obeyed = False  # the caller does what the signal asks for
        self._second_is_at_once = False
        self._interrupted = math.inf  # when Ctrl-C came
        self._deadline = math.inf  # on the monotonic clock, which never goes backwards
        self._longest = 0.0  # seconds between two rounds' ends, evaluation and output included
        self._last = time.monotonic()

    def listen(self) -> StopRequest:
        """Handle signals from now on, instead of being killed by them."""
        for number in _SIGNALS:
            signal.signal(number, self._note)
        return self

    @contextlib.contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """As `listen`, during a `with` block; only the main thread receives signals.

        A second Ctrl-C is a KeyboardInterrupt at once. A signal that was not obeyed is delivered again to
        the handler before.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        # Put the earlier handlers back at the end.
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._second_is_at_once = True
        try:
            yield self.listen()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self.signal_code and not self.obeyed:
            signal.raise_signal(next(n for n, code in _SIGNALS.items() if code == self.signal_code))

    def request(self) -> None:
        """Stop because a user's function asked for it."""
        self._code = self._code or _BY_CALLBACK

    def limit(self, max_minutes: float | None) -> None:
        """Stop before `max_minutes` from now have passed, and before SLURM ends the job."""
        now = self._last = time.monotonic()
        minutes = math.inf if max_minutes is None else max_minutes
        self._deadline = min(now + 60 * minutes, now + _slurm_seconds_left() - _MARGIN_SECONDS)

    def _note(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self._second_is_at_once:
            if now > self._interrupted + _AT_ONCE_AFTER:
                raise KeyboardInterrupt
            self._interrupted = min(self._interrupted, now)
        self._code = self._code or _SIGNALS[signal.Signals(number)]  # a second signal changes nothing

    def round_done(self) -> None:
        """Measure how long a round takes."""
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now

    @property
    def signal_code(self) -> int:
        """The number of the signal that this rank received, as `code` has it; 0 for none."""
        return self._code if self._code in _SIGNALS.values() else 0

    @property
    def code(self) -> int:
        """0 to continue; the number of the reason to stop after this round."""
        if time.monotonic() + 2 * self._longest > self._deadline:
            self._code = self._code or 1
        return self._code


def is_callback(code: int) -> bool:
    """Whether a stop code stands for a user's function that asked for it."""
    return code == _BY_CALLBACK


def is_interrupt(code: int) -> bool:
    """Whether a stop code stands for Ctrl-C."""
    return code == _INTERRUPT


def reason(code: int) -> str:
    """A stop code in words."""
    return _REASONS[code]


def _slurm_seconds_left() -> float:
    """Seconds until SLURM ends this job; infinite without SLURM."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return int(end) - time.time() if end.isdecimal() else math.inf
