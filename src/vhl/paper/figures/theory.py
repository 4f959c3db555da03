"""The theorem's terms over rounds."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import LineStyleType

from vhl.paper.evidence import Evidence
from vhl.paper.theory import METHODS, Measured, measured
from vhl.report.figures.lines import Look
from vhl.report.figures.style import PALETTE, SMALL, TEXT, add_legend, blank, say

_PANELS = {
    "margin_natural": ("margin on natural images", None),
    "margin_virtual": ("margin on held-out virtual images", None),
    "normalised_distance": ("distance of features of length 1", "normalised_floor"),
}
"""A term: its title, and the floor that is drawn below it."""
_STYLES: tuple[LineStyleType, ...] = ("solid", "dashed", "dashdot")  # of settings


def theory(evidence: Evidence, runs: Path) -> Figure:
    """Margins, and the distance of natural and virtual features, where `vhl theory` measured them."""
    found = list(measured(evidence))
    settings = list(dict.fromkeys(one.setting for one in found))
    about = f"{'; '.join(settings)}; dotted: the distance of two halves of one kind" if found else ""
    figure, places = blank("The theorem's terms on CIFAR-10 with α = 0.1", about, (1, len(_PANELS)), (12, 4))
    colours = dict(zip(METHODS.values(), PALETTE, strict=False))
    for axes, (term, (title, floor)) in zip(places, _PANELS.items(), strict=True):
        axes.set_title(title, fontsize=TEXT)
        if not found:
            say(axes, "not run")
        for one in found:
            style = _STYLES[settings.index(one.setting) % len(_STYLES)]
            label = one.method if len(settings) == 1 else f"{one.method} ({one.setting})"
            _draw(axes, one, term, floor, Look(label, colours[one.method], style))
        axes.set_xlabel("communication round", fontsize=TEXT)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=SMALL)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.93", linewidth=0.6)
    if found:
        lines = [line for line in places[0].lines if not str(line.get_label()).startswith("_")]
        add_legend(places, lines)
    return figure


def _draw(axes: Axes, one: Measured, term: str, floor: str | None, look: Look) -> None:
    rounds = [terms["round"] for terms in one.terms]
    values = [terms[term] for terms in one.terms]
    axes.plot(rounds, values, "o", ls=look.style, color=look.colour, label=look.label, markersize=4)
    if floor is not None:
        axes.plot(rounds, [terms[floor] for terms in one.terms], ":", color=look.colour)
