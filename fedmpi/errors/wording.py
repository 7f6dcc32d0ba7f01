"""How messages name options and commands: as the command line has them, or as a Python program does."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_in_python = contextvars.ContextVar("in_python", default=False)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Messages are for somebody who called `fedmpi.run` or one of its siblings."""
    token = _in_python.set(True)
    try:
        yield
    finally:
        _in_python.reset(token)


def option(name: str, value: object = None) -> str:
    """An option with its value, or a switch.

    >>> option("out", "a.h5"), option("force")
    ('--out a.h5', '--force')
    >>> with in_python():
    ...     option("out", "a.h5"), option("force")
    ("out='a.h5'", 'force=True')
    """
    if _in_python.get():
        return f"{name.replace('-', '_')}={True if value is None else str(value)!r}"
    return f"--{name}" if value is None else f"--{name} {value}"


def setting(text: str) -> str:
    """A setting of the config, `key=value`.

    >>> setting("run.num_rounds=20")
    '--set run.num_rounds=20'
    """
    key, _, value = text.partition("=")
    return f'overrides {{"{key}": {value}}}' if _in_python.get() else f"--set {text}"


def command(name: str, path: object) -> str:
    """A command on a file.

    >>> command("resume", "a.h5")
    '`fedmpi resume a.h5`'
    """
    return f"fedmpi.{name}({str(path)!r})" if _in_python.get() else f"`fedmpi {name} {path}`"
