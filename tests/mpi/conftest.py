"""MPI tests: run under `mpirun -n R python -m pytest tests/mpi --with-mpi`, with any R.

A test that fails on one rank fails on all, and a session that ran no MPI test fails when
`--require-mpi-tests` is given, since markers skip silently.
"""

from __future__ import annotations

import faulthandler

import pytest

from fedmpi.mpi import Comm
from fedmpi.mpi.world import launched_rank

_LIMIT = 120  # seconds a single test may take; then the job is ended, with the stacks shown
_passed = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """--require-mpi-tests."""
    parser.addoption("--require-mpi-tests", action="store_true", help="fail unless MPI tests ran")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """All ranks agree on the outcome, so rank 0 alone writes the report of --junitxml."""
    if launched_rank() != 0:
        config.option.xmlpath = None


@pytest.fixture(scope="session")
def comm() -> Comm:
    """All ranks of this test session."""
    from mpi4py import MPI

    return Comm(MPI.COMM_WORLD)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    """End the whole job when a test hangs."""
    faulthandler.dump_traceback_later(_LIMIT, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """All ranks agree on the outcome of each test."""
    global _passed
    report = yield
    if report.when == "call":
        from mpi4py import MPI

        failed = MPI.COMM_WORLD.allgather(report.failed)
        if any(failed) and not report.failed:
            report.outcome = "failed"
            report.longrepr = f"failed on rank {failed.index(True)}"
        _passed += report.passed
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """No MPI test passed: that is a failure, not a success."""
    if session.config.getoption("--require-mpi-tests") and not _passed:
        session.exitstatus = 1
        print("\nno MPI test ran")
