"""Numbers and lists on the command line, and what they accept."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> int:
    """An integer >= 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= 1")
    return int(text)


def index(text: str) -> int:
    """An integer >= 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= 0")
    return int(text)


def seconds(text: str) -> float:
    """A number > 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number > 0")
    return seconds


def share(text: str) -> float:
    """A number from 0 to below 1."""
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return share


def names(text: str) -> list[str]:
    """Words between commas."""
    return [part.strip() for part in text.split(",")]


def rank_list(text: str) -> list[int]:
    """Integers >= 1 between commas."""
    return [positive(part) for part in names(text)]


def seed_list(text: str) -> list[int]:
    """Integers >= 0 between commas, and ranges of them."""
    seeds: dict[int, None] = {}
    for part in names(text):
        first, _, last = part.partition("-")
        low = index(first)
        seeds |= dict.fromkeys(range(low, (index(last) if last else low) + 1))
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} has no seed")
    return list(seeds)
