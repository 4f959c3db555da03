"""What the page and the figures for a paper have in common to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LIGHT = (
    *("#0072B2", "#D55E00", "#18954F", "#5D234E", "#855411"),
    *("#1C9EC7", "#9B8F8D", "#953A68", "#7301D4", "#334704"),
)
"""Colours on white, of methods and of classes.

Each has a contrast of 3 or more to its background (WCAG 2.2, 1.4.11). Any two are 0.08 or more apart in
OKLab, to who sees all colours and to who sees no red or no green (Machado et al., 2009).
"""
DARK = (
    *("#4AA8E0", "#F58A4B", "#64E99E", "#C110B7", "#FAC719"),
    *("#8BDBFF", "#FDF3EB", "#BD7397", "#7B6AFB", "#707630"),
)
"""The same on the page's dark background."""
DASHES: Sequence[tuple[Sequence[float], Sequence[float]]] = (
    ((), (3.7, 1.6)),
    ((1, 1.65), (6.4, 1.6, 1, 1.6)),
    ((8, 1), (5, 1, 1, 1, 1, 1)),
)
"""Strokes and gaps in widths of the line, with virtual data and without; others where colours begin anew."""
MOST_CLIENTS = 200
"""In a picture of who has what."""


def windows(runs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Rounds to average over: a twentieth of the longest run; one where it is short."""
    rounds = max(len(run["columns"]["round"]) for run in runs)
    twentieth = max(3, rounds // 40 * 2 + 1)
    return {name: twentieth if rounds >= least else 1 for name, least in (("accuracy", 20), ("training", 40))}
