"""Pictures that explain: drawn from fedmpi as it is, shipped as they are drawn, and shown on a page."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
from matplotlib import pyplot

from fedmpi.config import AVAILABILITIES, SELECTIONS
from tests.support.configs import ROOT

spec = importlib.util.spec_from_file_location("pictures", ROOT / "analysis" / "pictures.py")
pictures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pictures)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_shipped_and_shown(name):
    """Each stands in analysis/, small enough for a page, and a page shows it."""
    path = ROOT / "analysis" / f"{name}.png"
    assert 10_000 < path.stat().st_size < 200_000
    pages = [ROOT / folder / "README.md" for folder in ("analysis", "configs", "fedmpi")]
    assert any(re.search(rf"!\[[^\]]*\]\([./a-z]*{name}\.png\)", page.read_text()) for page in pages)


def test_every_pattern_has_its_panel():
    """A new availability or selection appears by itself; nobody else takes part than the pattern says."""
    figure = pictures.participation()
    titles = " ".join(axis.get_title() for axis in figure.axes)
    for name in [*AVAILABILITIES, *SELECTIONS]:
        shown = f'"{name}"' in titles
        assert shown == (name not in (*pictures._LEFT_OUT, "all")), name
    pyplot.close(figure)
    assert (pictures._who("always", "uniform").sum(axis=0) == 5).all()
    turns = pictures._who("periodic", "all").reshape(5, 6, -1)  # groups, members, rounds
    assert (turns.any(axis=1).sum(axis=0) == 1).all()


def test_amplification_ends_nearer():
    """The last frame shows what it says: amplified, x ends nearer to the star than FedAvg."""
    figure = pictures.amplification()
    slow, fast = (line.get_xydata()[-1] for line in figure.axes[3].get_lines()[2:4])
    star = figure.axes[3].get_lines()[1].get_xydata()[0]
    pyplot.close(figure)
    assert np.linalg.norm(fast - star) < 0.1 < np.linalg.norm(slow - star)


def test_the_round_has_its_three_ranks():
    """The drawn diagram names all ranks and the one sum."""
    figure = pictures.one_round()
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    pyplot.close(figure)
    assert all(f"rank {rank}" in words for rank in range(3))
    assert "one reduction, always called" in words
