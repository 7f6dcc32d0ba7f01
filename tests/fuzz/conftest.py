"""`pytest tests/fuzz` runs the same cases every time; `--long` runs many more, different each time."""

from __future__ import annotations

import pytest

from tests.fuzz import cases


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option --long."""
    parser.addoption("--long", action="store_true", help="tests/fuzz: thousands of random cases")


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are imported: their number of cases is fixed then."""
    cases.is_long = config.getoption("--long", default=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases were run, and what became of them."""
    for what, outcomes in sorted(cases.outcomes.items()):
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
        terminalreporter.write_line(f"fuzz: {what}: {outcomes.total():,} cases ({words})")
    total = sum(outcomes.total() for outcomes in cases.outcomes.values())
    terminalreporter.write_line(f"fuzz: {total:,} cases in all")
