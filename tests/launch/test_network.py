"""Two hosts, and the network between them goes away in the middle of a round."""

from __future__ import annotations

import pytest

import fedmpi
from fedmpi.results.compare import first_difference
from fedmpi.storage.reader import peek
from tests.support.configs import SLOW
from tests.support.jobs import has_rounds, wait_until
from tests.support.two_hosts import TwoHosts, can_make_hosts

pytestmark = pytest.mark.skipif(not can_make_hosts, reason="two hosts need root, ip and unshare")


def test_the_network_goes_away(fedmpi_cli, tmp_path, slow_alone):
    """All that ran on either host ends; results are saved, said so, and go on to the same bits."""
    (tmp_path / "c.toml").write_text(SLOW)
    with TwoHosts(tmp_path) as hosts:
        words = ("run", "c.toml", "--out", "r.h5", "--set", "run.stall_minutes=0.05")
        job = hosts.start(*words, FEDMPI_TEST_SLEEP="0.1")
        wait_until(lambda: job.poll() is not None or has_rounds(tmp_path / "r.h5", 7), "7 rounds")
        hosts.cut()
        wait_until(lambda: not hosts.processes(), "the end of all processes on both hosts", 40)
        output, _ = job.communicate(timeout=10)
    # Both wait in the same call, or one of them in the next: the link may go between two messages.
    assert "stalled: rank" in output, output
    assert "wait for each other" in output or "but this does not end; waiting for it: rank" in output
    assert "go on with `fedmpi resume r.h5`" in output
    assert sorted(fedmpi.load_run(tmp_path / "r.h5").attributes["host_names"]) == ["host0", "host1"]
    assert peek(tmp_path / "r.h5")["status"] == "stopped"
    assert fedmpi_cli("resume", "r.h5", "--wait", "20").returncode == 0
    assert first_difference(fedmpi.load_run(tmp_path / "r.h5"), slow_alone) is None
