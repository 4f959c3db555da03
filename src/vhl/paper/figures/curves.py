"""Curves over rounds, with what several seeds make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vhl.paper.evidence import Runs, at, lengths
from vhl.report.figures.lines import Look, Numbers, Rounds, draw, running_mean
from vhl.report.figures.style import SMALL, TEXT, add_legend, blank, say

_UNITS = {
    "accuracy": ("test accuracy (%)", 100),
    "virtual_accuracy": ("training accuracy on virtual data (%)", 100),
    "drift": ("client drift (distance from the mean)", 1),
}
"""What a panel may show: its axis, and the factor to the axis's unit."""
_AXES = {"rounds": "communication round", "compute": "multiply-adds (1: a round of FedAvg)"}
"""Over what a panel may show it."""
_LETTERS = "abcd"  # of panels


@dataclass(frozen=True)
class Curve:
    """One experiment: the values of each of its seeds, a row each."""

    look: Look
    rounds: Rounds
    values: Numbers
    compute: float
    """Multiply-adds of a step relative to plain FedAvg."""

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
        compute = next(iter(longest.values())).records[-1].compute
        return cls(look, np.flatnonzero(measured) + 1, values[:, measured], compute)

    def places(self, over: str) -> Numbers:
        return self.rounds.astype(np.float64) * (self.compute if over == "compute" else 1.0)


@dataclass(frozen=True)
class Panel:
    """What one pair of axes shows; ``about`` says with which profile and virtual data."""

    title: str
    measure: str
    curves: Sequence[Curve]
    about: str
    over: str = "rounds"

    @property
    def drawn(self) -> list[Curve]:
        return [curve for curve in self.curves if curve.rounds.size]


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
    axes.set_xlabel(_AXES[panel.over], fontsize=TEXT)
    axes.set_ylabel(_UNITS[panel.measure][0], fontsize=TEXT)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    if not panel.drawn:
        say(axes, "not run")
        return
    for curve in panel.drawn:
        smooth = running_mean(curve.rounds, curve.values, window)
        draw(axes, curve.look, curve.places(panel.over), curve.values, smooth, "0.82")
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.grid(color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)
