"""The ways a job can end, and the exit status of each.

0 done, 1 failure, 2 bad input, 3 diverged, 75 stopped with a checkpoint (EX_TEMPFAIL: try again).

Invariant: a mistake of the user is a `UserError` whose text alone helps; it is never a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

EXIT_DONE = 0
EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75


class UserError(Exception):
    """Bad config or bad input file. The message says what, the value, what is accepted, where.

    `agreed` is set once every rank is known to raise the same error, so that all can exit quietly; `ranks`
    is the number of these ranks, which may be a part of the job.
    """

    exit_code = EXIT_BAD_INPUT
    agreed = False
    ranks: int | None = None  # all

    @classmethod
    def on_all_ranks(
        cls, message: str, exit_code: int = EXIT_BAD_INPUT, ranks: int | None = None
    ) -> UserError:
        """An error that every rank raises at the same place."""
        error = cls(message)
        error.agreed, error.exit_code, error.ranks = True, exit_code, ranks
        return error


class ConfigError(UserError):
    """All problems of one config in one report."""

    def __init__(self, problems: list[str], source: str) -> None:
        self.problems = problems
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        super().__init__("\n  ".join([f"{count} in {source}:", *problems]))


class OutputError(UserError):
    """Results or a checkpoint cannot be written: disk full, folder gone, no permission."""

    exit_code = EXIT_FAILURE

    @classmethod
    def from_os(cls, error: OSError, path: Path) -> OutputError:
        """From an error of the operating system."""
        return cls(f"cannot write {path}: {error.strerror or error}; what was written before is kept")


class ClientError(Exception):
    """An exception while training a client, with its place in the simulation.

    `agreed` is set once all `ranks` of a group raise it together; `rank` is the one where it occurred.
    """

    agreed = False
    ranks: int | None = None
    rank = 0


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint such as `did you mean amplify_every?`, otherwise the list of all names.

    >>> did_you_mean("amplfy_every", ["amplify_every", "local_lr"])
    'did you mean amplify_every?'
    >>> did_you_mean("zzz", ["b", "a"])
    'accepted: a, b'
    """
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)
    if close:
        return f"did you mean {close[0]}?"
    return "accepted: " + ", ".join(sorted(names))
