"""What the documents' parts are written with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from textwrap import wrap


def markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]], words: Collection[str]) -> str:
    """A table; columns of ``words`` begin at the left, those of numbers end at the right.

    >>> print(markdown_table(("row", "best"), [("one", "1.0")], words=["row"]), end="")
    | row | best |
    | :-- | --: |
    | one | 1.0 |
    """
    marks = [":--" if heading in words else "--:" for heading in headings]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, marks, *lines))


def not_run(best: Mapping[str, float | None]) -> list[str]:
    """Lines of a paragraph that names rows, with the paper's best accuracy where it has one."""
    named = [f"`{row}`" + ("" if value is None else f" ({value:.2f})") for row, value in best.items()]
    explained = "" if set(best.values()) <= {None} else ", with the paper's best"
    words = f"Not run{explained}: {', '.join(named)}."
    return wrap(words, 118, break_on_hyphens=False) if named else []
