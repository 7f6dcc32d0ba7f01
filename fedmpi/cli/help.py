"""`fedmpi help`: what a command, a config key, or a name means, in the terminal."""

from __future__ import annotations

import difflib

from fedmpi.cli.commands_page import commands
from fedmpi.config.explain import explain, overview, topics
from fedmpi.errors import UserError


def show_help(topic: str) -> int:
    """Print everything that has this name; without one, all names there are."""
    known = commands()
    if not topic:
        print(f"{overview()}\n\nCommands: {', '.join(known)}\n\n`fedmpi help NAME` explains each of these.")
        return 0
    found = explain(topic)
    if topic in known:
        found.insert(0, known[topic].format_help().rstrip())
    if not found:
        raise UserError(f"help {topic}: nothing has this name; {_hint(topic, topics() | set(known))}")
    print("\n\n".join(found))
    return 0


def _hint(topic: str, names: set[str]) -> str:
    close = difflib.get_close_matches(topic, sorted(names), n=1, cutoff=0.7)
    accepted = "a config key, a section, a name that a key accepts, a command; `fedmpi help` lists all"
    return f"did you mean {close[0]}?" if close else f"expected {accepted}"
