"""What several launch tests compare with."""

from __future__ import annotations

import pytest

import fedmpi
from tests.support.commands import in_process
from tests.support.configs import SLOW


@pytest.fixture(scope="session")
def slow_alone(tmp_path_factory) -> fedmpi.Run:
    """The run SLOW on one rank, from its beginning to its end."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "c.toml").write_text(SLOW)
    done = in_process(folder, "run", "c.toml", "--out", "r.h5")
    assert done.returncode == 0, done.stderr
    return fedmpi.load_run(folder / "r.h5")
