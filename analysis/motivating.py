"""The paper's appendix example: run its settings and draw the eight panels of its two figures.

python analysis/motivating.py appendix.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import fedmpi
from fedmpi.results.plots.trajectory import plot_trajectories

# Upper row: gamma without amplification. Lower row: small gamma, amplified to the same gamma * eta.
PANELS = [(gamma, 1) for gamma in (0.05, 0.1, 0.25, 0.5)] + [(0.05, eta) for eta in (1, 2, 5, 10)]


def main(out: str) -> None:
    """Run each setting once, draw, and print how near each comes."""
    with TemporaryDirectory() as folder:
        fedmpi.sweep("appendix", out=folder, progress=False)
        done = {
            (gamma, eta): fedmpi.load_run(Path(folder) / f"gamma-{gamma}-eta-{eta}_seed-1.h5")
            for gamma, eta in dict.fromkeys(PANELS)
        }
        runs = [done[panel] for panel in PANELS]
        plot_trajectories(runs, out)
    print(f"\n{out}: f(x_15) - f* by panel")
    optimum = 2 / 3  # mean over clients of |x* - z_n|^2 / 2
    for (gamma, eta), run in zip(PANELS, runs, strict=True):
        print(f"  gamma {gamma:<5g} eta {eta:<3g} {run.eval.train_loss.iloc[-1] - optimum:.3g}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "appendix.png")
