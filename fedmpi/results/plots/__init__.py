"""Pictures, as PNG, PDF or SVG; on matplotlib axes, so that a notebook can work on them further.

style.py: colours, axes, files. curves.py: curves with bands over seeds, and comparisons of a config value.
regularized.py: independent or regularized participation. presets.py: participation, timing, trajectories.
picture.py: runs into a file. trajectory.py: paths in the plane, all panels of the appendix.
clients_figure.py: how each client is served.
participation_figure.py, advice_figure.py: pictures of participation and theory, for `check` and `advise`.
Invariant: neither torch nor MPI is needed, and matplotlib is loaded when something is drawn.
"""

from fedmpi.results.plots.clients_figure import draw_clients
from fedmpi.results.plots.curves import draw_comparison, draw_curves
from fedmpi.results.plots.picture import plot
from fedmpi.results.plots.presets import draw_appendix, draw_participation, draw_timing
from fedmpi.results.plots.regularized import draw_regularized, evenness

__all__ = [
    "draw_appendix", "draw_clients", "draw_comparison", "draw_curves", "draw_participation",
    "draw_regularized", "draw_timing", "evenness", "plot",
]  # fmt: skip
