"""Counts as shades: who has what, and what is taken for what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vhl.report.figures.style import LINE, SMALL, blank, cut, short, width
from vhl.report.looks import MOST_CLIENTS

NAME = 1.2
"""Inches for a name beside an axis."""
_SHADES = LinearSegmentedColormap.from_list("blues", ["#f4f8fb", "#9cc9e6", "#2f86bd", "#08385c"])
_LEAST = 4.5  # points of letters that can be read


def partitions(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Training images of each class at each client."""
    for number, problem in enumerate(content["problems"]):
        title = f"Who has what: {problem['about']}"
        counts = np.array(problem["counts"])
        names = [f"{client_name(problem, i)}: {row.sum():,}" for i, row in enumerate(counts[:MOST_CLIENTS])]
        classes = [cut(name, NAME) for name in problem["classes"]]
        across = min(6.0, max(3.5, 0.5 * counts.shape[1]))
        down = min(7.5, max(1.5, 0.25 * len(names)))
        size = (across + max(map(width, names)) + 0.5, down + max(map(width, classes)) + 1.3)
        figure, (axes,) = blank(title, _about(problem), (1, 1), size)
        heat(axes, counts[:MOST_CLIENTS], names, classes, (across, down))
        axes.set_xlabel("class", fontsize=SMALL)
        axes.set_ylabel("client: its training images", fontsize=SMALL)
        yield f"partition-{number + 1}", figure


def _about(problem: Mapping[str, Any]) -> str:
    clients, images = len(problem["counts"]), sum(map(sum, problem["counts"]))
    more = f"; the first {MOST_CLIENTS} of them" if clients > MOST_CLIENTS else ""
    return (
        f"{clients:,} clients{more}, {images:,} training images, {problem['test_samples']:,} test images\n"
        f"heterogeneity {problem['heterogeneity']:.2f}: mean distance of a client's class shares from "
        "those of all (0: alike, 1: nothing in common)"
    )


def client_name(problem: Mapping[str, Any], client: int) -> str:
    sites = problem["sites"]
    return cut(sites[client], NAME) if client < len(sites) else f"client {client}"


def heat(
    axes: Axes,
    counts: NDArray[np.int64],
    rows: Sequence[str],
    columns: Sequence[str],
    room: tuple[float, float],
) -> None:
    """``room`` is about how many inches there are across and down; counts stand in cells that hold them."""
    image = axes.imshow(counts, cmap=_SHADES, vmin=0, vmax=max(1, counts.max()), aspect="auto")
    across, down = room[0] / len(columns), room[1] / len(rows)
    widest = max(width(short(int(count)), 1) for count in np.unique(counts))
    size = min(SMALL, 0.85 * across / widest, 0.6 * 72 * down)
    if size >= _LEAST:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if count > 0.55 * counts.max() else "black"
            if count:
                axes.text(column, row, short(int(count)), size=size, color=colour, ha="center", va="center")
    else:
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, aspect=30)
        bar.ax.tick_params(labelsize=SMALL)
    name_axis(axes, "y", rows, down)
    name_axis(axes, "x", columns, across)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def name_axis(axes: Axes, which: str, names: Sequence[str], room: float) -> None:
    """As many of the names as there is place for, ``room`` inches each; slanted below where they are long.

    The last, which may be of another kind, is always there.
    """
    step = max(1, math.ceil(LINE / room))
    axis, last = axes.xaxis if which == "x" else axes.yaxis, len(names) - 1
    places = [*range(0, last - step + 1, step), last]
    axis.set_ticks(places, labels=[names[place] for place in places], fontsize=SMALL)
    if which == "x" and max(map(width, names)) > 0.9 * room * step:
        for label in axis.get_ticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
