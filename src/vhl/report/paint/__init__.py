"""Figures as files, drawn by Matplotlib, which is imported with this."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet

from vhl.files import write_bytes
from vhl.report.figure import Curves, Figure
from vhl.report.paint.letters import SMALL, TEXT, TITLE, cut, width
from vhl.report.paint.panels import LINE, Legend, draw, legend_under, size_of, title_of

__all__ = ["KINDS", "paint", "save", "write_figures"]

KINDS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Kinds of files; without a date, so that the same numbers give the same file."""
_STYLE: list[str | Path | dict[str, Any]] = [
    "default",
    {"text.parse_math": False, "svg.hashsalt": "vhl", "savefig.dpi": 300},
]
"""Names are no formulas; and nothing depends on the settings of who draws, or on chance."""
_LETTERS = 15  # small ones in an inch
_BOLD = 1.15  # times as wide
_HANDLE = 0.6  # inches that a legend's line takes


def write_figures(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write each as PNG and as SVG; returns the files."""
    files = []
    for figure in figures:
        own = [folder / f"{figure.name}{kind}" for kind in (".png", ".svg")]
        save(figure, *own)
        files += own
    return files


def save(figure: Figure, *files: Path) -> None:
    """Write a figure to files of the kinds that their names say."""
    with matplotlib.style.context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a letter that the font lacks is drawn as a box
        sheet = paint(figure)
        for file in files:
            kind, content = file.suffix.lower(), io.BytesIO()
            sheet.savefig(content, format=kind[1:], metadata=KINDS[kind])
            write_bytes(file, content.getvalue())


@matplotlib.style.context(_STYLE)
def paint(figure: Figure) -> Sheet:
    """A title, what there is to know in smaller letters, panels in rows, and a legend below."""
    across = min(figure.across, len(figure.panels))
    down = -(-len(figure.panels) // across)
    size = tuple(map(max, zip(*(size_of(panel, across) for panel in figure.panels), strict=True)))
    room = max(4.5, across * size[0])
    titles = [title_of(panel, size) for panel in figure.panels]
    heading = cut(figure.title, room - 0.2, 2, _BOLD * TITLE)
    about = "\n".join(
        textwrap.fill(line, int(room * _LETTERS), subsequent_indent="   ")
        for line in figure.subtitle.split("\n")
    )
    lines = heading.count("\n") + about.count("\n") + 4 + down * (max(t.count("\n") for t in titles) + 1)
    sheet = Sheet((room, down * size[1] + LINE * lines), layout="constrained")
    sheet.suptitle(heading, x=0.01, ha="left", fontsize=TITLE, fontweight="bold")
    inner = sheet.add_subfigure(sheet.add_gridspec(1, 1)[0])  # with a title of its own beneath the other
    inner.suptitle(about, x=0.01, ha="left", fontsize=SMALL, color="0.3")
    places = list(inner.subplots(down, across, squeeze=False).flat)
    legends = []
    for panel, title, axes in zip(figure.panels, titles, places, strict=False):
        axes.set_title(title, fontsize=TEXT)
        legends.append(draw(panel, axes, size))
    for axes in places[len(figure.panels) :]:
        axes.remove()
    _add_legends(figure, places, legends, room)
    return sheet


def _add_legends(figure: Figure, places: Sequence[Axes], legends: Sequence[Legend], room: float) -> None:
    if figure.own_legends:
        for axes, own in zip(places, legends, strict=False):
            if own:
                legend_under(axes, own, 0.18)
        return
    same = isinstance(figure.panels[0], Curves) or all(own.keys() == legends[0].keys() for own in legends)
    entries = {name: handle for own in legends for name, handle in own.items() if name} if same else {}
    if entries:
        _legend_below(places[0], entries, room)


def _legend_below(axes: Axes, entries: Legend, room: float) -> None:
    """Beneath all panels, in as many columns as there is room for; the figure grows by as much."""
    names = [cut(name, room - _HANDLE, 2) for name in entries]
    widest = max(width(line) for name in names for line in name.split("\n"))
    rows = -(-len(names) // max(1, int(room / (widest + _HANDLE))))
    columns = -(-len(names) // rows)
    lines = -(-sum(name.count("\n") + 1 for name in names) // columns)
    sheet = axes.get_figure(root=True)
    assert sheet is not None and axes.figure is not None
    sheet.set_size_inches(room, sheet.get_size_inches()[1] + LINE * (lines + 1))
    axes.figure.legend(
        [*entries.values()],
        names,
        loc="outside lower left",
        ncols=columns,
        fontsize=SMALL,
        frameon=False,
        handlelength=2.5,
    )
