"""`fedmpi check`: validate a config and show what it would do and cost, without training."""

from __future__ import annotations

from collections.abc import Sequence

from fedmpi.config import validate
from fedmpi.config.effects import config_text
from fedmpi.experiments.preview import preview
from fedmpi.results.plots.participation_figure import plot_participation
from fedmpi.results.plots.style import figure_target


def check(
    config_path: str,
    overrides: Sequence[str],
    num_ranks: int,
    plot: str | None = None,
    *,
    everything: bool = False,
) -> int:
    """Print the resolved config, who owns what, memory and bytes per rank, and who takes part."""
    if plot:
        figure_target(plot, "--plot")  # a bad name is reported before the work
    config = validate.load(config_path, overrides)
    planned = preview(config, num_ranks)
    print(config_text(config, everything=everything))
    for note in planned.notes:
        print(f"note: {note}")
    print(f"{config_path}: valid\n")
    print("\n".join(planned.lines))
    if plot:
        plot_participation(planned.survey, f"Participation of {config.run.name}", plot)
        print(f"picture        {plot}")
    return 0
