"""Each kind of panel on Matplotlib's axes."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from itertools import cycle
from typing import Literal, assert_never

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import LineStyleType
from numpy.typing import NDArray
from PIL import Image

from vhl.report.figure import AnyPanel, Bars, Curves, Heat, Picture, Points, Series
from vhl.report.looks import LIGHT, Look
from vhl.report.paint.letters import SMALL, TEXT, TITLE, cut, short, width

LINE = 0.155
"""Inches that a line of small letters takes."""
Size = tuple[float, float]
"""Inches across and down."""
Legend = dict[str, Artist]
"""A handle for each name."""
_NAME = 1.2  # inches for a name beside an axis
_MARKERS = ("o", "^", "s", "D", "P")
_HATCHES = ("", "////", "....")
_SHADES = LinearSegmentedColormap.from_list("blues", ["#f4f8fb", "#9cc9e6", "#2f86bd", "#08385c"])
_LEAST = 4.5  # points of letters that can be read
_WIDTH = 1.6


def size_of(panel: AnyPanel, across: int) -> Size:
    """Room for a panel without its title, where so many are beside each other."""
    match panel:
        case Curves():
            return {1: (6.5, 3.6), 2: (4.8, 3.2)}.get(across, (3.9, 2.7))
        case Bars():
            return (7, 3.4) if across == 1 else (4.8, 3.6)
        case Heat(rows=rows, columns=columns):
            names = _widest(rows)
            return min(6, max(3.5, 0.5 * len(columns))) + names + 0.5, min(
                7.5, max(2.4, 0.25 * len(rows))
            ) + 1
        case Points():
            return 3.2, 3.9
        case Picture():
            height, breadth = _pixels(panel).shape[:2]
            inches = min(5 / breadth, 8 / height)
            return max(3.5, inches * breadth), inches * height
    assert_never(panel)


def title_of(panel: AnyPanel, size: Size) -> str:
    """As long as there is room above the panel, without the names beside it."""
    names = _widest(panel.rows) if isinstance(panel, Heat) else 0
    return cut(panel.title, 0.9 * (size[0] - names - 0.3), 2, TEXT)


def draw(panel: AnyPanel, axes: Axes, size: Size) -> Legend:
    """Returns what is to stand in the legend."""
    if panel.note:
        axes.text(
            0.5, 0.5, panel.note, transform=axes.transAxes, ha="center", va="center", color="0.5", size=TITLE
        )
        axes.set(xticks=[], yticks=[])
    axes.set_ylabel(panel.y, fontsize=TEXT)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    match panel:
        case Curves():
            return _curves(panel, axes)
        case Bars():
            return _bars(panel, axes, size)
        case Heat():
            return _heat(panel, axes, size)
        case Points():
            return _points(panel, axes)
        case Picture():
            axes.imshow(_pixels(panel))
            axes.set_axis_off()
            return {}
    assert_never(panel)


def _colour(look: Look) -> str:
    return LIGHT[look.colour]


# --- curves --------------------------------------------------------------------------------------------


def _curves(panel: Curves, axes: Axes) -> Legend:
    axis = next(iter(panel.axes))
    axes.set_xlabel(panel.axes[axis], fontsize=TEXT)
    if not panel.series:
        return {}
    legend = {own.label: _line(axes, panel, own, axis) for own in panel.series}
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=axis == "round"))
    if axis != "round":
        axes.xaxis.set_major_formatter(short)
    axes.grid(color="0.93", linewidth=0.6)
    return legend


def _line(axes: Axes, panel: Curves, own: Series, axis: str) -> Artist:
    """The running mean in bold, a band where there are seeds, and every round faintly behind it."""
    colour, places, band = _colour(own.look), own.places[axis], own.bands[panel.window]
    style: LineStyleType = (0, tuple(own.look.strokes)) if own.look.strokes else "solid"
    if panel.window > 1:
        axes.plot(places, own.bands[1].mean, color=(colour, 0.2), linewidth=0.5, zorder=1)
    if band.low is not None and band.high is not None:
        axes.fill_between(places, band.low, band.high, color=colour, alpha=0.2, linewidth=0, zorder=2)
    (bold,) = axes.plot(places, band.mean, color=colour, linewidth=_WIDTH, zorder=3, label=own.label)
    bold.set_linestyle(style)
    if own.marked:
        bold.set(marker="o", markersize=4)
    return Line2D([], [], color=colour, linestyle=style, linewidth=_WIDTH)


# --- bars and counts -----------------------------------------------------------------------------------


def _bars(panel: Bars, axes: Axes, size: Size) -> Legend:
    legend: Legend = {}
    breadth = 0.8 / len(panel.bars)
    for number, own in enumerate(panel.bars):
        colour, hatch = _colour(own.look), _HATCHES[own.look.turn]
        places = np.arange(len(panel.names)) - 0.4 + (number + 0.5) * breadth
        colours = ["0.6" if i < own.grey else colour for i in range(len(panel.names))]
        axes.bar(places, own.values, breadth, color=colours, hatch=hatch, edgecolor="white", linewidth=0)
        if not own.grey:
            legend[own.label] = Patch(facecolor=colour, hatch=hatch, edgecolor="white")
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color="0.93", linewidth=0.6)
    axes.margins(x=0.01)
    _name(axes, "x", panel.names, (size[0] - 0.8) / len(panel.names))
    return legend


def _heat(panel: Heat, axes: Axes, size: Size) -> Legend:
    """Counts stand in the cells where these hold them; else there is a bar of shades."""
    counts = panel.counts
    across, down = (size[0] - _widest(panel.rows) - 0.5) / len(panel.columns), (size[1] - 1) / len(panel.rows)
    image = axes.imshow(counts, cmap=_SHADES, vmin=0, vmax=max(1, counts.max()), aspect="auto")
    widest = max(width(short(int(count)), 1) for count in np.unique(counts))
    letters = min(SMALL, 0.85 * across / widest, 0.6 * 72 * down)
    if letters >= _LEAST:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if count > 0.55 * counts.max() else "black"
            if count:
                text = short(int(count))
                axes.text(column, row, text, size=letters, color=colour, ha="center", va="center")
    else:
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, aspect=30)
        bar.ax.tick_params(labelsize=SMALL)
    axes.set_xlabel(panel.x, fontsize=TEXT)
    _name(axes, "y", panel.rows, down)
    _name(axes, "x", panel.columns, across)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return {}


def _widest(names: Sequence[str]) -> float:
    return max(width(cut(name, _NAME)) for name in names)


def _name(axes: Axes, which: Literal["x", "y"], names: Sequence[str], room: float) -> None:
    """As many of the names as there is place for, ``room`` inches each; slanted below where they are long.

    The last, which may be of another kind, is always there.
    """
    step, last = max(1, math.ceil(LINE / room)), len(names) - 1
    places = [*range(0, last - step + 1, step), last]
    shown = [cut(names[place], _NAME) for place in places]
    (axes.xaxis if which == "x" else axes.yaxis).set_ticks(places, labels=shown, fontsize=SMALL)
    if which == "x" and max(map(width, shown)) > 0.9 * room * step:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")


# --- images --------------------------------------------------------------------------------------------


def _points(panel: Points, axes: Axes) -> Legend:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    markers = dict(zip(panel.models, cycle(_MARKERS), strict=False))
    for cloud in panel.clouds:
        colours, marker = [LIGHT[label % len(LIGHT)] for label in cloud.classes], markers[cloud.model]
        if cloud.virtual:
            axes.scatter(
                cloud.x, cloud.y, s=16, marker=marker, facecolors="none", edgecolors=colours, linewidths=0.7
            )
        else:
            axes.scatter(cloud.x, cloud.y, s=8, marker=marker, facecolors=colours, alpha=0.85, linewidths=0)
    if len(markers) > 1:
        names = [model.replace("client", "client ") for model in markers]
        shapes = [_mark(marker, "0.4") for marker in markers.values()]
        legend_under(axes, dict(zip(names, shapes, strict=True)), 0)
    known = panel.classes if len(panel.classes) <= len(LIGHT) else ()
    return {cut(name, _NAME): _mark("o", colour) for name, colour in zip(known, LIGHT, strict=False)}


def legend_under(axes: Axes, entries: Legend, below: float) -> None:
    """One panel's own; ``below`` is a share of its height."""
    axes.legend(
        [*entries.values()],
        [*entries],
        loc="upper center",
        bbox_to_anchor=(0.5, -below),
        ncols=2,
        fontsize=SMALL,
        frameon=False,
    )


def _mark(marker: str, colour: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, markersize=5, linestyle="none")


def _pixels(panel: Picture) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(base64.b64decode(panel.address.partition(",")[2]))) as image:
        return np.array(image.convert("RGB"))
