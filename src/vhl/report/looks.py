"""Colours and strokes of methods and classes, on the page and in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LIGHT = (
    *("#0072B2", "#D55E00", "#18954F", "#5D234E", "#855411"),
    *("#1C9EC7", "#9B8F8D", "#953A68", "#7301D4", "#334704"),
)
"""Colours on white.

Each has a contrast of 3 or more to its background (WCAG 2.2, 1.4.11). Any two are 0.08 or more apart in
OKLab, to who sees all colours and to who sees no red or no green (Machado et al., 2009).
"""
DARK = (
    *("#4AA8E0", "#F58A4B", "#64E99E", "#C110B7", "#FAC719"),
    *("#8BDBFF", "#FDF3EB", "#BD7397", "#7B6AFB", "#707630"),
)
"""The same on the page's dark background."""
Strokes = Sequence[float]
"""Strokes and gaps in turn, in widths of the line; nothing for a whole line."""
DASHED: Strokes = (3.7, 1.6)
DOTTED: Strokes = (1, 1.65)
DASHDOT: Strokes = (6.4, 1.6, 1, 1.6)
STROKES: Sequence[tuple[Strokes, Strokes]] = (
    ((), DASHED),
    (DOTTED, DASHDOT),
    ((8, 1), (5, 1, 1, 1, 1, 1)),
)
"""With virtual data and without; others where colours begin anew."""


@dataclass(frozen=True)
class Look:
    """How something is drawn."""

    colour: int
    """Its place among the colours."""
    strokes: Strokes = ()
    turn: int = 0
    """How often the colours began anew: bars have hatches by it."""


def look(number: int, plain: bool = False) -> Look:
    """Of the method of this number; ``plain``: trained without virtual data."""
    turn, colour = divmod(number, len(LIGHT))
    turn %= len(STROKES)
    return Look(colour, STROKES[turn][plain], turn)
