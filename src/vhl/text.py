"""Numbers and lists of names as a person would say them."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(count: float) -> str:
    """
    >>> rounds(1), rounds(2), rounds(2.6)
    ('1 round', '2 rounds', '3 rounds')
    """
    return f"{count:.0f} round{'' if round(count) == 1 else 's'}"


def first_of(names: Sequence[str], most: int, rest: str = "more") -> str:
    """
    >>> first_of(["a", "b"], 2), first_of(["a", "b", "c", "d"], 2), first_of(["a", "b", "c"], 1, "others")
    ('a, b', 'a, b and 2 more', 'a and 2 others')
    """
    left = f" and {len(names) - most} {rest}" if len(names) > most else ""
    return f"{', '.join(names[:most])}{left}"
