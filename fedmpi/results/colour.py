"""Colour for people: the states of runs in a terminal. Plain text everywhere else.

Invariant: no control code reaches a log file, a pipe, a terminal that cannot show it (TERM=dumb), or
anybody who asked for none (NO_COLOR, https://no-color.org).
"""

from __future__ import annotations

import os
import re

_CODES = {"done": 32, "running": 36, "stopped": 33, "silent": 33, "diverged": 31, "failed": 31}
_STATES = re.compile(rf"(?<![\w.-])({'|'.join(_CODES)})(?![\w.-])")


def with_colour(line: str, *, is_terminal: bool) -> str:
    """A line with its states in colour, whose width stays the same.

    >>> with_colour("2 done, 1 failed", is_terminal=False)
    '2 done, 1 failed'
    """
    if not is_terminal or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return line
    return _STATES.sub(lambda found: f"\x1b[{_CODES[found[1]]}m{found[1]}\x1b[0m", line)
