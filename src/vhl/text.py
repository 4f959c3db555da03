"""Numbers and lists of names as a person would say them."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(count: float) -> str:
    """
    >>> rounds(1), rounds(2), rounds(2.6)
    ('1 round', '2 rounds', '3 rounds')
    """
    return f"{count:.0f} round{'' if round(count) == 1 else 's'}"


def count(number: float) -> str:
    """Three digits, as people say them.

    >>> count(400), count(116_400), count(999_600)
    ('400', '116 thousand', '1 million')
    """
    if number < 1_000:
        return f"{number:.0f}"
    return f"{number / 1e6:.3g} million" if number >= 999_500 else f"{number / 1e3:.3g} thousand"


def points(share: float, spread: float | None = None, *, signed: bool = False) -> str:
    """A share, or with ``signed`` a difference of shares, in percentage points; and how much it varies.

    >>> points(0.4567), points(0.012, 0.004, signed=True)
    ('45.7', '+1.2 ± 0.4')
    """
    mean = f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"
    return mean if spread is None else f"{mean} ± {100 * spread:.1f}"


def first_of(names: Sequence[str], most: int, rest: str = "more") -> str:
    """
    >>> first_of(["a", "b"], 2), first_of(["a", "b", "c", "d"], 2), first_of(["a", "b", "c"], 1, "others")
    ('a, b', 'a, b and 2 more', 'a and 2 others')
    """
    left = f" and {len(names) - most} {rest}" if len(names) > most else ""
    return f"{', '.join(names[:most])}{left}"
