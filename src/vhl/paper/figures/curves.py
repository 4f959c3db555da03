"""Curves over rounds, with what several seeds make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from vhl.paper.evidence import Runs, at, lengths
from vhl.paper.figures.style import SMALL, TEXT, add_legend, blank, say

Rounds = NDArray[np.int64]
Numbers = NDArray[np.float64]
_UNITS = {
    "accuracy": ("test accuracy (%)", 100),
    "virtual_accuracy": ("training accuracy on virtual data (%)", 100),
    "drift": ("client drift (distance from the mean)", 1),
}
"""What a panel may show: its axis, and the factor to the axis's unit."""
_LETTERS = "abcd"  # of panels


@dataclass(frozen=True)
class Look:
    """How a curve is drawn and called."""

    label: str
    colour: str
    style: Literal["solid", "dashed", "dotted"] = "solid"


@dataclass(frozen=True)
class Curve:
    """One experiment: the values of each of its seeds, a row each."""

    look: Look
    rounds: Rounds
    values: Numbers

    @classmethod
    def of(cls, look: Look, runs: Runs, measure: str) -> Curve:
        """The rounds in which every seed has a finite value.

        Where seeds had different numbers of rounds, they are cut to that which shows most rounds altogether.
        """
        cuts = [at(runs, rounds) for rounds in lengths(runs)]
        longest = max(cuts, key=lambda cut: sum(len(run.records) for run in cut.values()))
        seeds = [[getattr(record, measure) for record in run.records] for run in longest.values()]
        values = np.array(seeds, dtype=float) * _UNITS[measure][1]
        measured = np.isfinite(values).all(0)
        return cls(look, np.flatnonzero(measured) + 1, values[:, measured])


@dataclass(frozen=True)
class Panel:
    """What one pair of axes shows; ``about`` says with which profile and virtual data."""

    title: str
    measure: str
    curves: Sequence[Curve]
    about: str

    @property
    def drawn(self) -> list[Curve]:
        return [curve for curve in self.curves if curve.rounds.size]


def running_mean(rounds: Rounds, values: Numbers, window: int) -> Numbers:
    """Mean over the rounds up to ``window // 2`` before and after; at the ends over those that there are.

    >>> running_mean(np.array([1, 2, 3, 7]), np.array([[0.0, 3.0, 6.0, 9.0]]), 3).tolist()
    [[1.5, 3.0, 4.5, 9.0]]
    """
    near = np.abs(rounds[:, None] - rounds) <= window // 2
    means: Numbers = values @ near / near.sum(0)
    return means


def figure_of(
    title: str, panels: Sequence[Panel], rows: int, size: tuple[float, float], *, legends: bool = False
) -> Figure:
    """Panels in some rows; one legend beside them all, or ``legends``: one beneath each."""
    curves = [curve for panel in panels for curve in panel.drawn]
    window = _window(curves)
    figure, places = blank(title, _subtitle(panels, window), (rows, len(panels) // rows), size)
    for panel, axes, letter in zip(panels, places, _LETTERS, strict=False):
        axes.set_title(f"({letter}) {panel.title}", fontsize=TEXT)
        _fill(axes, panel, window)
        if legends and panel.drawn:
            axes.legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=SMALL, frameon=False
            )
    lines = [line for axes in places for line in axes.lines if not str(line.get_label()).startswith("_")]
    if lines and not legends:
        add_legend(places, list({line.get_label(): line for line in lines}.values()))
    return figure


def _window(curves: Sequence[Curve]) -> int:
    """Rounds to average over: a fortieth of the longest curve, odd, 3 or more."""
    longest = max((int(curve.rounds[-1]) for curve in curves), default=0)
    return max(3, longest // 40 // 2 * 2 + 1)


def _subtitle(panels: Sequence[Panel], window: int) -> str:
    """How to read the curves, and with which profile and virtual data each panel was run."""
    seeds = max((len(curve.values) for panel in panels for curve in panel.drawn), default=0)
    several = f"; mean of up to {seeds} seeds, band from the lowest to the highest" if seeds > 1 else ""
    letters: dict[str, list[str]] = {}
    for panel, letter in zip(panels, _LETTERS, strict=False):
        if panel.drawn:
            letters.setdefault(panel.about, []).append(letter)
    if not letters:
        return ""
    lines = [f"({', '.join(own)}) {about}" for about, own in letters.items()] if len(letters) > 1 else letters
    return "\n".join([f"grey: every round; bold: running mean over {window} rounds{several}", *lines])


def _fill(axes: Axes, panel: Panel, window: int) -> None:
    axes.set_xlabel("communication round", fontsize=TEXT)
    axes.set_ylabel(_UNITS[panel.measure][0], fontsize=TEXT)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    if not panel.drawn:
        say(axes, "not run")
        return
    for curve in panel.drawn:
        _draw(axes, curve, window)
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.grid(color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw(axes: Axes, curve: Curve, window: int) -> None:
    rounds, look = curve.rounds, curve.look
    smooth = running_mean(rounds, curve.values, window)
    axes.plot(rounds, curve.values.mean(0), color="0.82", linewidth=0.5, zorder=1)
    if len(smooth) > 1:
        low, high = smooth.min(0), smooth.max(0)
        axes.fill_between(rounds, low, high, color=look.colour, alpha=0.2, linewidth=0, zorder=2)
    bold = axes.plot(rounds, smooth.mean(0), color=look.colour, linewidth=1.6, label=look.label, zorder=3)[0]
    bold.set_linestyle(look.style)
