"""A figure as data: what there is to see, decided once.

The page (``static/painter.js``) and Matplotlib (``vhl.report.paint``) draw it and decide nothing but what
depends on the room that they have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vhl.report.looks import Look

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
_DIGITS = 6


@dataclass(frozen=True)
class Band:
    """Mean over seeds, and from the lowest to the highest where there are several."""

    mean: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


@dataclass(frozen=True)
class Series:
    """A line."""

    label: str
    """For the legend; an empty one is not named there."""
    look: Look
    places: Mapping[str, Numbers]
    """On each axis along which it can be drawn; ``round`` is one of them."""
    bands: Mapping[int, Band]
    """Running means by their numbers of rounds; that over one round is what was measured."""
    seeds: int = 1
    marked: bool = False
    """Points on the line show where it was measured."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What one pair of axes shows."""

    title: str = ""
    y: str = ""
    note: str = ""
    """Stands in the middle where there is nothing to draw."""


@dataclass(frozen=True, kw_only=True)
class Curves(Panel):
    axes: Mapping[str, str]
    """What the horizontal axis may be, each with its title; the first is the usual one."""
    series: Sequence[Series]
    window: int = 1
    """Rounds that the bold lines are means over; every round is faint behind them where these are several."""
    windows: Sequence[int] = (1,)
    """All that can be chosen."""
    percent: bool = False


@dataclass(frozen=True)
class Bar:
    """What bars of one kind have in common, and their heights: in percent, NaN for none."""

    label: str
    look: Look
    values: Numbers
    grey: int = 0
    """So many of them, the first, are grey."""


@dataclass(frozen=True, kw_only=True)
class Bars(Panel):
    """Bars of several kinds side by side at each name."""

    names: Sequence[str]
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Heat(Panel):
    """Counts as shades."""

    x: str = ""
    rows: Sequence[str]
    columns: Sequence[str]
    counts: Counts
    of: str
    """What a cell says beside the mouse, with ``{row}``, ``{column}`` and ``{count}``."""


@dataclass(frozen=True)
class Cloud:
    """Samples of one kind in one model's features: places in the plane, and their classes."""

    model: str
    virtual: bool
    x: Numbers
    y: Numbers
    classes: Counts


@dataclass(frozen=True, kw_only=True)
class Points(Panel):
    """A colour for each class, a shape for each model; virtual images are rings."""

    models: Sequence[str] = ()
    clouds: Sequence[Cloud] = ()
    classes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Picture(Panel):
    address: str
    """The image itself: ``data:image/png;base64,…``."""


AnyPanel = Curves | Bars | Heat | Points | Picture


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels that belong together."""

    name: str
    """Of its file, without an ending."""
    title: str
    subtitle: str = ""
    """How to read it, and what it is of."""
    panels: Sequence[AnyPanel]
    across: int = 3
    """Panels beside each other."""
    own_legends: bool = False
    """Each panel shows something else; otherwise there is one legend for all."""


def as_json(content: Any) -> str:
    """Figures and what else a page shows; numbers with a few digits, and nothing that JSON does not know."""
    return json.dumps(content, default=_plain, separators=(",", ":"), allow_nan=False)


def _plain(thing: Any) -> Any:
    if isinstance(thing, np.ndarray):
        return [short(v) for v in thing.tolist()] if thing.dtype.kind == "f" else thing.tolist()
    return {"kind": type(thing).__name__.lower(), **vars(thing)}


def short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
