"""The rates of Table 1 of the paper, on quadratic problems, by the script that draws them."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.support.configs import ROOT


@pytest.fixture(scope="module")
def found():
    """The panels of analysis/rates.py, shortened."""
    spec = importlib.util.spec_from_file_location("rates", ROOT / "analysis" / "rates.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rates"] = module  # where its dataclasses look for their annotations
    try:
        spec.loader.exec_module(module)
        yield module, module.panels(quick=True)
    finally:
        del sys.modules["rates"]


def test_errors_fall_as_the_table_says(found, tmp_path):
    """Slope -1/2 in S (linear speed-up), I and T if regularized, in N = 2 S if independent; a figure."""
    module, panels = found
    assert [panel.varied[0] for panel in panels] == ["S", "I", "T", "N"]
    for panel in panels:
        assert panel.slope() == pytest.approx(-0.5, abs=0.12), panel.title
        assert panel.values[-1] >= 4 * panel.values[0]
    module.draw(panels, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 20_000


def test_errors_are_below_the_bound(found):
    """The bound of Theorem 3.1 holds at each point; all of its conditions do."""
    for panel in found[1]:
        assert all(e < bound for e, bound in zip(panel.errors, panel.bounds, strict=True))


def test_the_constant_is_that_of_the_problem(found):
    """Regularized, the error is gamma eta rho^2 sigma^2 / 2, that of steps gamma eta with S I gradients."""
    panels = found[1]
    for point, error in zip(panels[0].points, panels[0].errors, strict=True):
        gamma_eta = (point.gap / (point.local_steps * point.rounds)) ** 0.5 * point.per_round**0.5
        assert error == pytest.approx(gamma_eta / point.per_round / 2, rel=0.25)
