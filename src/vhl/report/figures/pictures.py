"""What images look like, and where models put them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from vhl.report.figures.grids import NAME
from vhl.report.figures.style import CLASSES, SMALL, TEXT, blank, cut, legend_below, say

_MARKERS = ("o", "^", "s", "D", "P")
_PANEL = 3.2  # inches


def pictures(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Virtual images, and natural ones where the page has them."""
    for number, picture in enumerate(content["pictures"]):
        name = next(run["settings"]["virtual.name"] for run in content["runs"] if run["picture"] == number)
        yield f"virtual-{number + 1}", _picture(f"Virtual images ({name})", picture)
    for number, problem in enumerate(content["problems"]):
        if "natural" in problem:
            title = f"Natural training images ({problem['about']})"
            yield f"natural-{number + 1}", _picture(title, problem["natural"])


def _picture(title: str, address: str) -> Figure:
    """An image that an address holds: ``data:image/png;base64,…``."""
    with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as image:
        values = np.array(image.convert("RGB"))
    height, width = values.shape[:2]
    inches = min(5 / width, 8 / height)
    size = (max(3.5, inches * width), inches * height + 0.6)
    figure, (axes,) = blank(title, "one row a class", (1, 1), size)
    axes.imshow(values)
    axes.set_axis_off()
    return figure


def features(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """For each round a panel for each method: its first run that has features."""
    first: dict[int, Mapping[str, Any]] = {}
    for run in content["runs"]:
        if run["features"]:
            first.setdefault(run["group"], run)
    shown = [first[group] for group in sorted(first)]
    for round_ in sorted({saved["round"] for run in shown for saved in run["features"]}):
        yield f"features-{round_}", _features(content, shown, round_)


def _features(content: Mapping[str, Any], shown: Sequence[Mapping[str, Any]], round_: int) -> Figure:
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure, places = blank(
        f"Features after round {round_}",
        "t-SNE of what models make of test and virtual images; colour: class, shape: model, ring: virtual",
        (down, across),
        (max(4.5, _PANEL * across), (_PANEL + 0.7) * down + 0.6),
    )
    for axes, run in zip(places, shown, strict=False):
        axes.set_title(cut(content["groups"][run["group"]]["label"], 0.9 * _PANEL, 2, TEXT), fontsize=TEXT)
        axes.set(xticks=[], yticks=[])
        saved = [found["points"] for found in run["features"] if found["round"] == round_]
        if not saved:
            say(axes, "not saved")
        elif not saved[0]:
            say(axes, "diverged")
        else:
            _scatter(axes, saved[0])
    for axes in places[len(shown) :]:
        axes.remove()
    _name_classes(places[0], [content["problems"][run["problem"]]["classes"] for run in shown])
    return figure


def _scatter(axes: Axes, points: Sequence[Sequence[Any]]) -> None:
    models = sorted({point[3] for point in points}, key=lambda model: (model != "server", model))
    handles = []
    for model, marker in zip(models, cycle(_MARKERS), strict=False):
        for kind in ("test", "virtual"):
            own = [point for point in points if (point[3], point[4]) == (model, kind)]
            colours = [CLASSES[label % len(CLASSES)] for _, _, label, _, _ in own]
            x, y = [point[0] for point in own], [point[1] for point in own]
            if kind == "test":
                axes.scatter(x, y, s=8, marker=marker, facecolors=colours, alpha=0.85, linewidths=0)
            else:
                axes.scatter(x, y, s=16, marker=marker, facecolors="none", edgecolors=colours, linewidths=0.7)
        handles.append(_mark(marker, "0.4"))
    axes.legend(
        handles,
        [model.replace("client", "client ") for model in models],
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=2,
        fontsize=SMALL,
        frameon=False,
        handletextpad=0.1,
    )


def _mark(marker: str, colour: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, markersize=5, linestyle="none")


def _name_classes(axes: Axes, classes: Sequence[Sequence[str]]) -> None:
    """Where all methods have the same, and no more than there are colours."""
    if all(names == classes[0] for names in classes) and len(classes[0]) <= len(CLASSES):
        pairs = zip(CLASSES, classes[0], strict=False)
        legend_below(axes, [(_mark("o", colour), cut(name, NAME)) for colour, name in pairs])
