"""Every command with its options: as a page (configs/COMMANDS.md) and for `fedmpi help`.

Invariant: both are read from the parser that the commands themselves use.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fedmpi.cli.arguments import make_parser

_WORDS = {"sweep-best": "sweep best"}  # the name of a parser, and what people type


def commands() -> dict[str, argparse.ArgumentParser]:
    """Each command by the words that call it: `run`, `sweep best`, `data prepare`."""
    return dict(_leaves(make_parser(), ""))


def commands_page() -> str:
    """Markdown: for each command what it does and what it takes."""
    lines = [
        "# Every command",
        "",
        "Written by `fedmpi schema --page commands`; `fedmpi COMMAND --help` prints the same.",
        "A CONFIG is a TOML file, `--set` overrides one of [its keys](REFERENCE.md).",
    ]
    for name, parser in commands().items():
        lines += ["", f"## fedmpi {name}", "", f"{_sentence(parser.description)}", ""]
        lines += ["| takes | meaning |", "|---|---|"]
        lines += [_row(action) for action in parser._actions if action.dest != "help"]
    return "\n".join([*lines, ""])


def _leaves(parser: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Parsers without commands of their own, described by what the one above says of them."""
    branches = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for branch in branches:
        for said in branch._choices_actions:
            below = branch.choices[said.dest]
            below.description = _sentence(said.help)
            yield from _leaves(below, f"{words} {_WORDS.get(said.dest, said.dest)}".strip())
    if not branches:
        yield words, parser


def _row(action: argparse.Action) -> str:
    """One argument: how it is written, whether it must be given, what it means."""
    value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper())
    takes_value = action.nargs != 0
    if not action.option_strings:
        shown, is_needed = value, action.nargs != "?"
    else:
        shown = action.option_strings[-1] + (f" {value}" if takes_value else "")
        is_needed = action.required
    meaning = action.help or ""
    if is_needed and action.option_strings:
        meaning = f"{meaning} (needed)".strip()
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{shown}`", meaning)) + " |"


def _sentence(text: str | None) -> str:
    """With a capital and a full stop."""
    text = (text or "").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
