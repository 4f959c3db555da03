"""What figures look like."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextToPath

from vhl.report import looks

PALETTE = CLASSES = looks.LIGHT
TITLE, TEXT, SMALL = 11, 9, 8
"""Sizes of letters in points."""
LINE = 0.155  # inches that a line of small letters takes
_LETTERS = 15  # small ones in an inch
_BOLD = 1.15  # times as wide
_FONT = FontProperties(family="DejaVu Sans", size=72)  # Matplotlib's own
_PIXELS = 1.03  # times as wide where letters are moved to whole pixels
_HANDLE = 0.6  # inches that a legend's line takes


def blank(
    title: str, subtitle: str, shape: tuple[int, int], size: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """A figure with a title, what there is to know about it in smaller letters, and empty panels."""
    figure = Figure(size, layout="constrained")
    heading = cut(title, size[0] - 0.2, 2, _BOLD * TITLE)
    figure.suptitle(heading, x=0.01, ha="left", fontsize=TITLE, fontweight="bold")
    inner = figure.add_subfigure(figure.add_gridspec(1, 1)[0])  # with a title of its own beneath the other
    lines = (
        textwrap.fill(line, int(size[0] * _LETTERS), subsequent_indent="   ") for line in subtitle.split("\n")
    )
    inner.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=SMALL, color="0.3")
    return figure, list(inner.subplots(*shape, squeeze=False).flat)


def add_legend(places: Sequence[Axes], handles: Sequence[Line2D]) -> None:
    """Beside all panels."""
    places[0].figure.legend(
        handles=handles, loc="outside right center", fontsize=SMALL, frameon=False, handlelength=3
    )


def legend_below(axes: Axes, entries: Sequence[tuple[Artist, str]]) -> None:
    """Beneath all panels, in as many columns as there is room for; the figure grows by as much."""
    whole = axes.get_figure(root=True)
    assert whole is not None and axes.figure is not None
    room, height = whole.get_size_inches()
    names = [cut(name, room - _HANDLE, 2) for _, name in entries]
    widest = max(width(line) for name in names for line in name.split("\n"))
    rows = -(-len(names) // max(1, int(room / (widest + _HANDLE))))
    columns = -(-len(names) // rows)
    lines = -(-sum(name.count("\n") + 1 for name in names) // columns)
    whole.set_size_inches(room, height + LINE * (lines + 1))
    axes.figure.legend(
        [handle for handle, _ in entries],
        names,
        loc="outside lower left",
        ncols=columns,
        fontsize=SMALL,
        frameon=False,
        handlelength=2.5,
    )


def say(axes: Axes, text: str) -> None:
    """Instead of data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.5", fontsize=TITLE)
    axes.set(xticks=[], yticks=[])


def width(text: str, size: float = SMALL) -> float:
    """In inches, of letters of a size."""
    return sum(map(_width, text)) * size


@cache
def _width(letter: str) -> float:
    """Of a letter of one point, with the space around it, which none is alone."""
    inside, around = (
        TextToPath().get_text_width_height_descent(text, _FONT, False)[0] for text in (f"|{letter}|", "||")
    )
    return _PIXELS * (inside - around) / 72**2


def cut(text: str, room: float, lines: int = 1, size: float = SMALL) -> str:
    """In lines that are no longer than ``room`` inches; what does not fit is left out before its end.

    >>> cut("the name of a run", 0.6, 3)
    'the name\\nof a run'
    >>> cut("the name of a run", 0.6)
    'the…run'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    made: list[str] = []
    rest = " ".join(printable.split())
    while rest:
        end = _fitting(rest, room, size)
        if end < len(rest) and len(made) + 1 == lines:
            half = (room - width("…", size)) / 2
            start, stop = _fitting(rest, half, size), _fitting(rest[::-1], half, size)
            return "\n".join([*made, f"{rest[:start].rstrip()}…{rest[-stop:].lstrip()}"])
        if end < len(rest) and " " in rest[: end + 1]:
            end = rest.rindex(" ", 0, end + 1)
        made.append(rest[:end])
        rest = rest[end:].lstrip()
    return "\n".join(made)


def _fitting(text: str, room: float, size: float) -> int:
    """How many letters, at least one."""
    return max(1, sum(end <= room for end in accumulate(width(letter, size) for letter in text)))


def short(value: float, _position: float = 0) -> str:
    """Three digits and a prefix, as on the page.

    >>> [short(0), short(0.25), short(12_345), short(999_600)]
    ['0', '0.25', '12.3 k', '1 M']
    """
    for power, prefix in enumerate(("", " k", " M", " G", " T")):
        if abs(value) < 999.5 * 1000**power:
            return f"{value / 1000**power:.3g}{prefix}"
    return f"{value:.3g}"
