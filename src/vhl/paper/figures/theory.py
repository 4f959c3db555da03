"""The theorem's terms over rounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vhl.paper.evidence import Evidence
from vhl.paper.theory import METHODS, Measured, measured
from vhl.report.curves import ROUNDS, Seed, series
from vhl.report.figure import Curves, Figure, Series
from vhl.report.looks import DASHDOT, DASHED, DOTTED, Look, Strokes

_PANELS = {
    "margin_natural": ("margin on natural images", None),
    "margin_virtual": ("margin on held-out virtual images", None),
    "normalised_distance": ("distance of features of length 1", "normalised_floor"),
}
"""A term: its title, and the floor that is drawn below it."""
_STROKES: tuple[Strokes, ...] = ((), DASHED, DASHDOT)  # of settings


def theory(evidence: Evidence, runs: Path) -> Figure:
    """Margins, and the distance of natural and virtual features, where `vhl theory` measured them."""
    found = list(measured(evidence))
    settings = list(dict.fromkeys(one.setting for one in found))
    return Figure(
        name="theory",
        title="The theorem's terms on CIFAR-10 with α = 0.1",
        subtitle=f"{'; '.join(settings)}; dotted: the distance of two halves of one kind" if found else "",
        panels=[
            Curves(
                title=title,
                note="" if found else "not run",
                axes=ROUNDS,
                series=[own for one in found for own in _curves(one, settings, term, floor)],
            )
            for term, (title, floor) in _PANELS.items()
        ],
    )


def _curves(one: Measured, settings: list[str], term: str, floor: str | None) -> Iterator[Series]:
    colour = list(METHODS.values()).index(one.method)
    look = Look(colour, _STROKES[settings.index(one.setting) % len(_STROKES)])
    label = one.method if len(settings) == 1 else f"{one.method} ({one.setting})"
    rounds = {"round": np.array([terms["round"] for terms in one.terms], dtype=float)}
    for name, own, wanted in ((label, look, term), ("", Look(colour, DOTTED), floor)):
        seed = Seed.of([terms[wanted] for terms in one.terms] if wanted else [], rounds if wanted else {})
        if line := series(name, own, [seed]):
            yield line
