"""What all pictures share: colours, axes, files."""

from __future__ import annotations

from pathlib import Path

from fedmpi.errors import UserError

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_FORMATS = (".png", ".pdf", ".svg")


def colours(count: int) -> list:
    """Colours for lines: distinct ones, again for dashed lines, a ramp from dark to light for many."""
    if count <= 2 * len(COLOURS):
        return [*COLOURS, *COLOURS][:count]
    from matplotlib import colormaps

    return [colormaps["viridis"](0.95 * i / (count - 1)) for i in range(count)]


def dashes(count: int) -> list[str]:
    """Line styles that go with `colours`."""
    few, some = len(COLOURS), 2 * len(COLOURS)
    return ["-"] * count if count > some else ["-"] * min(count, few) + ["--"] * (count - few)


def tidy(axis: object) -> None:
    """Light grid, no frame above and to the right."""
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def figure_target(out: str, option: str) -> Path:
    """The file to draw into; an unsupported format is a UserError."""
    target = Path(out)
    if target.suffix not in _FORMATS:
        raise UserError(
            f"{option} {out}: format {target.suffix or 'missing'}; accepted: {', '.join(_FORMATS)}"
        )
    return target


def save_figure(figure: object, target: Path, option: str) -> None:
    """Write a figure; a place that cannot be written is a UserError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=150, bbox_inches="tight", pad_inches=0.08)
    except OSError as error:
        raise UserError(f"{option} {target}: cannot write there ({error.strerror})") from None
