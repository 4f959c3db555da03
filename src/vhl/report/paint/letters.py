"""Names in the room that there is for them."""

from __future__ import annotations

from functools import cache
from itertools import accumulate

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

TITLE, TEXT, SMALL = 11, 9, 8
"""Sizes of letters in points."""
_FONT = FontProperties(family="DejaVu Sans", size=72)  # Matplotlib's own
_PIXELS = 1.03  # times as wide where letters are moved to whole pixels


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
