"""The page's figures for a paper. Importing this imports Matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure

from vhl.report.figures.bars import last_rounds, per_class
from vhl.report.figures.curves import accuracy, theory, training
from vhl.report.figures.files import save
from vhl.report.figures.grids import partitions
from vhl.report.figures.pictures import features, pictures

__all__ = ["figures", "write_figures"]

_STYLE: list[str | Path | dict[str, Any]] = ["default", {"text.parse_math": False}]
"""Names are no formulas; and nothing depends on the settings of who draws."""


def write_figures(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every figure of a page as PNG and as SVG; returns the files."""
    files = []
    with matplotlib.style.context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a letter that the font lacks is drawn as a box
        for name, figure in figures(content):
            for kind in ("png", "svg"):
                file = folder / f"{name}.{kind}"
                save(figure, file)
                files.append(file)
    return files


def figures(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Each with the name of its file; of many runs the accuracy alone."""
    yield from accuracy(content)
    if content["whole"]:
        for part in (training, partitions, pictures, features, per_class, last_rounds, theory):
            yield from part(content)
