"""How a curve of several seeds is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.typing import ColorType, LineStyleType
from numpy.typing import NDArray

Rounds = NDArray[np.int64]
Numbers = NDArray[np.float64]
WIDTH = 1.6


@dataclass(frozen=True)
class Look:
    """How a curve is drawn and called."""

    label: str
    colour: str
    style: LineStyleType = "solid"


def running_mean(rounds: Rounds, values: Numbers, window: int) -> Numbers:
    """Mean over the rounds up to ``window // 2`` before and after; at the ends over those that there are.

    >>> running_mean(np.array([1, 2, 3, 7]), np.array([[0.0, 3.0, 6.0, 9.0]]), 3).tolist()
    [[1.5, 3.0, 4.5, 9.0]]
    """
    near = np.abs(rounds[:, None] - rounds) <= window // 2
    means: Numbers = values @ near / near.sum(0)
    return means


def draw(
    axes: Axes,
    look: Look,
    places: NDArray[np.number],
    values: Numbers,
    smooth: Numbers,
    faint: ColorType | None,
) -> None:
    """The mean of running means in bold, a band from the lowest to the highest, and every round if ``faint``.

    ``values`` and ``smooth`` have a row for each seed.
    """
    if faint is not None:
        axes.plot(places, values.mean(0), color=faint, linewidth=0.5, zorder=1)
    if len(smooth) > 1:
        low, high = smooth.min(0), smooth.max(0)
        axes.fill_between(places, low, high, color=look.colour, alpha=0.2, linewidth=0, zorder=2)
    bold = axes.plot(places, smooth.mean(0), color=look.colour, linewidth=WIDTH, label=look.label, zorder=3)[
        0
    ]
    bold.set_linestyle(look.style)
    if len(places) < 3:
        bold.set(marker="o", markersize=4)  # one point alone is no line
