"""The table at the end of jobs/test.sh: `python -m tests.support.summary FOLDER SECONDS`.

FOLDER/parts has two lines for each part, of words that are separated by tabs: `begin NAME` and
`end NAME SECONDS STATUS REPORT`. The report is pytest's JUnit file; style has none. A part that began and
did not end has failed, as one has whose report is missing.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("passed", "failed", "skipped")


@dataclass
class Part:
    """What became of one part of the tests."""

    name: str
    seconds: int = 0
    status: int | None = None  # None: it did not end
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # test, reason
    wants_report: bool = False
    has_report: bool = False

    @property
    def is_good(self) -> bool:
        """It ended well, and its report says the same."""
        return self.status == 0 and not self.counts["failed"] and self.has_report == self.wants_report


def read_parts(folder: Path) -> list[Part]:
    """All parts that began, in that order."""
    parts: dict[str, Part] = {}
    for line in (folder / "parts").read_text().splitlines():
        event, name, *words = line.split("\t")
        part = parts.setdefault(name, Part(name))
        if event == "end":
            part.seconds, part.status = int(words[0]), int(words[1])
            part.wants_report = len(words) > 2
            if part.wants_report and (folder / words[2]).exists():
                _read_report(folder / words[2], part)
    return list(parts.values())


def _read_report(path: Path, part: Part) -> None:
    """Count the tests of a JUnit file."""
    part.has_report = True
    for case in ET.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            part.counts["failed"] += 1
            part.failed.append(name)
        elif skip is not None:
            part.counts["skipped"] += 1
            part.skipped.append((name, skip.get("message", "no reason given")))
        else:
            part.counts["passed"] += 1


def table(parts: list[Part], seconds: int) -> str:
    """Seconds and counts of each part, then what failed, then what was skipped and why."""
    width = max(len(part.name) for part in parts)
    lines = [f"{'part':{width}}  seconds  passed  failed  skipped"]
    for part in parts:
        counts = [part.counts[kind] if part.has_report else "-" for kind in KINDS]
        verdict = "" if part.is_good else "  FAILED" if part.status is not None else "  DID NOT END"
        numbers = f"{part.seconds:7}  {counts[0]:>6}  {counts[1]:>6}  {counts[2]:>7}"
        lines.append(f"{part.name:{width}}  {numbers}{verdict}")
    lines.append(f"{'in all':{width}}  {seconds:7}")
    lines += [f"failed: {name} ({part.name})" for part in parts for name in part.failed]
    return "\n".join([*lines, *_skips(parts)])


def _skips(parts: list[Part]) -> list[str]:
    """One line for each test that was skipped, with the reason and in which parts."""
    where = defaultdict(list)
    for part in parts:
        for test in part.skipped:
            where[test].append(part.name)
    if not where:
        return ["skipped: nothing"]
    return [f"skipped: {name}: {reason} ({', '.join(names)})" for (name, reason), names in where.items()]


def main(folder: str, seconds: str) -> None:
    """Print the table and the verdict."""
    parts = read_parts(Path(folder))
    print(f"\n{table(parts, int(seconds))}")
    skips = sum(part.counts["skipped"] for part in parts)
    if not all(part.is_good for part in parts):
        sys.exit("\nfedmpi tests: FAILED, see above")
    print(f"\nfedmpi tests: all passed{f', {skips} skipped' if skips else ''}")


if __name__ == "__main__":
    main(*sys.argv[1:])
