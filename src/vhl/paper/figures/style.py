"""What the figures look like."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""The colours of Okabe and Ito (2008), which colour-blind people can tell apart too."""
TITLE, TEXT, SMALL = 11, 9, 8
"""Sizes of letters in points."""
_LETTERS = 15  # small ones in an inch


def blank(
    title: str, subtitle: str, shape: tuple[int, int], size: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """A figure with a title, what there is to know about it in smaller letters, and empty panels."""
    figure = Figure(size, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=TITLE, fontweight="bold")
    inner = figure.add_subfigure(figure.add_gridspec(1, 1)[0])  # with a title of its own beneath the other
    lines = (
        textwrap.fill(line, int(size[0] * _LETTERS), subsequent_indent="   ") for line in subtitle.split("\n")
    )
    inner.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=SMALL, color="0.3")
    return figure, list(inner.subplots(*shape, squeeze=False).flat)


def add_legend(places: Sequence[Axes], handles: Sequence[Line2D]) -> None:
    """Beside all panels."""
    places[0].figure.legend(
        handles=handles, loc="outside right center", fontsize=SMALL, frameon=False, handlelength=3
    )


def say(axes: Axes, text: str) -> None:
    """Instead of data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.5", fontsize=TITLE)
    axes.set(xticks=[], yticks=[])
