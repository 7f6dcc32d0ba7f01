"""Pictures that explain, drawn from fedmpi itself: `python analysis/pictures.py [DIR]`.

amplification.png: what amplification does, step by step, in the appendix example. participation.png: every
availability and selection side by side. round.png: how a round travels over ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedmpi
from fedmpi.cli.participation import realised
from fedmpi.config import AVAILABILITIES, SELECTIONS, validate
from fedmpi.config.starting import starting_config
from fedmpi.experiments.advising import participation_of
from fedmpi.experiments.reproduce import path_of
from fedmpi.results.plots.style import COLOURS

HERE = Path(__file__).resolve().parent
ROUNDS, CLIENTS = 60, 30
_GAMMA, _ETA, _P = 0.05, 5.0, 3
_BLUE, _ORANGE, _GREEN = COLOURS[:3]
# Neither is a pattern by itself: one is a file, the other belongs to a method.
_LEFT_OUT = ("trace", "schedule", "by-method")


def amplification() -> Figure:
    """Four frames: three small steps, their sum, the sum enlarged, and where five cycles lead."""
    settings = {
        "algorithm.local_lr": _GAMMA, "algorithm.amplification": _ETA, "algorithm.amplify_every": _P,
    }  # fmt: skip
    amplified = fedmpi.run(path_of("appendix-base"), settings, progress=False)
    plain = fedmpi.run(path_of("appendix-base"), {"algorithm.local_lr": _GAMMA}, progress=False)
    centers = np.array(amplified.config["data"]["centers"])
    x, slow = amplified.params[1], plain.params[1]
    steps = slow[: _P + 1]  # the first cycle is that of FedAvg
    figure, frames = pyplot.subplots(
        1, 4, figsize=(13, 3.7), sharex=True, sharey=True, layout="constrained"
    )
    for frame in frames:
        frame.plot(*centers.T, "^", color="0.5", markersize=8)
        frame.plot(*centers.mean(axis=0), "*", color="black", markersize=11)
        frame.set(aspect="equal", xticks=[], yticks=[], xlim=(-1.25, 1.35), ylim=(-0.2, 2.2))
    for n, label in enumerate(("client 1", "client 2", "client 3")):
        side = (0, -13) if n < 2 else (-30, 6)
        frames[0].annotate(label, centers[n], side, textcoords="offset points", ha="center", fontsize=8)
    for frame in frames[:3]:
        frame.plot(*steps.T, "o-", color=_BLUE, markersize=3)
    for t in range(_P):
        frames[0].plot(*np.array([steps[t], centers[t]]).T, ":", color=_BLUE, linewidth=0.8)
    _arrow(frames[1], steps[0], steps[_P], _ORANGE)
    _arrow(frames[2], steps[0], x[_P], _ORANGE)
    frames[3].plot(*slow.T, "o-", color=_BLUE, markersize=3, label="FedAvg")
    frames[3].plot(*x[::_P].T, "s-", color=_ORANGE, markersize=4, label="amplified")
    frames[3].legend(frameon=False, fontsize=8, loc="upper left")
    titles = (
        f"1. {_P} rounds: each client pulls\nto its own optimum",
        "2. their sum u: all three\nagree on this step",
        f"3. so it may be enlarged:\nx + {_ETA:g} u",
        "4. after five cycles (15 rounds);\nstar: the optimum of all",
    )
    for frame, title in zip(frames, titles, strict=True):
        frame.set_title(title, fontsize=10)
    return figure


def _arrow(frame: Axes, begin: np.ndarray, end: np.ndarray, colour: str) -> None:
    frame.annotate("", end, begin, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2})


def participation() -> Figure:
    """Rounds to the right, clients upwards; black: takes part."""
    names = [name for name in AVAILABILITIES if name not in _LEFT_OUT]
    chosen = [name for name in SELECTIONS if name not in (*_LEFT_OUT, "all")]
    panels = [(name, "all") for name in names] + [("always", name) for name in chosen]
    columns = 4
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(12, 2.1 * rows), sharex=True, sharey=True, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (availability, selection) in zip(axes.flat, panels, strict=False):
        seen = _who(availability, selection)
        axis.imshow(seen, aspect="auto", cmap="Greys", origin="lower", vmin=0, vmax=1)
        kind = f'availability = "{availability}"' if selection == "all" else f'selection = "{selection}"'
        axis.set_title(kind, fontsize=9)
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("client", fontsize=10)
    return figure


def _who(availability: str, selection: str) -> np.ndarray:
    """Who takes part: clients x rounds, with the values that `fedmpi new` gives."""
    words = [f"data.num_clients={CLIENTS}", f"participation.selection={selection}"]
    if selection == "minimum-separation":
        words.append("participation.min_separation=4")
    if availability == "periodic":
        words.append("participation.rounds_per_group=5")
    config = validate.parse(starting_config("fedavg", availability), "new.toml", words)
    who, _ = participation_of(config)
    columns = realised(who, ROUNDS)
    seen = np.zeros((CLIENTS, ROUNDS))
    seen[columns["client"], columns["round"]] = 1.0
    return seen


def one_round() -> Figure:
    """Columns are ranks, time goes down."""
    figure, axis = pyplot.subplots(figsize=(9, 5.6), layout="constrained")
    axis.set(xlim=(-2.1, 8.2), ylim=(-0.6, 9.1))
    axis.axis("off")
    ranks = (0.0, 3.0, 6.0)
    for rank, x in enumerate(ranks):
        clients = ", ".join(str(rank + 3 * k) for k in range(3))
        axis.text(x + 1, 8.75, f"rank {rank}", ha="center", weight="bold")
        axis.text(x + 1, 8.4, f"owns clients {clients}, ...", ha="center", fontsize=8, color="0.3")
    lines = (
        (7.5, "who?", "weights(t): ids and q,\nthe same on all, no message", "white"),
        (6.1, "lend", "", "white"),
        (4.7, "train", "local_steps of SGD for each\nclient of its part", "#dbe9f6"),
        (3.3, "add", "sum of q * update, exact:\nfixed point in int64", "#dbe9f6"),
        (1.1, "apply", "x + weighted_sum,\nthe same bits", "white"),
    )
    for y, word, text, colour in lines:
        axis.text(-0.35, y + 0.4, word, ha="right", va="center", weight="bold", color=_BLUE)
        for x in ranks if text else ():
            box = pyplot.Rectangle((x, y), 2.0, 0.85, facecolor=colour, edgecolor="0.4")
            axis.add_patch(box)
            axis.text(x + 1, y + 0.42, text, ha="center", va="center", fontsize=7.5)
    arrow = {"arrowstyle": "-|>", "color": _GREEN, "linewidth": 1.6}
    axis.annotate("", (3.0, 6.4), (2.0, 6.4), arrowprops=arrow)
    axis.text(1, 6.4, "has more than its share:", ha="center", va="center", fontsize=8)
    axis.text(4, 6.4, "gets the samples of a\nclient, trains it", ha="center", va="center", fontsize=8)
    axis.plot([-0.2, 8.1], [2.65, 2.65], color=_ORANGE, linewidth=5, solid_capstyle="round")
    axis.text(
        4, 2.3, "one reduction, always called: sum, losses, stop requests; its order does not matter",
        ha="center", va="center", fontsize=8, color=_ORANGE,
    )  # fmt: skip
    axis.text(-0.35, 2.65, "sum", ha="right", va="center", weight="bold", color=_ORANGE)
    axis.text(
        4, 0.35, "after P rounds rank 0 amplifies and broadcasts; each rank evaluates its share when due;\n"
        "rank 0 writes results first, then the checkpoint that names them",
        ha="center", va="center", fontsize=8, color="0.3",
    )  # fmt: skip
    for x in ranks:
        for top, bottom in ((7.5, 6.95), (5.9, 5.6), (4.7, 4.2), (3.3, 2.75), (2.05, 1.97)):
            axis.annotate("", (x + 1, bottom), (x + 1, top), arrowprops={"arrowstyle": "-", "color": "0.6"})
    return figure


PICTURES = {"amplification": amplification, "participation": participation, "round": one_round}


def main(folder: str) -> None:
    """Draw all of them."""
    for name, draw in PICTURES.items():
        path = Path(folder) / f"{name}.png"
        draw().savefig(path, dpi=110)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(HERE))
