"""Several values in one word."""

from __future__ import annotations


def split_values(text: str) -> list[str]:
    """Split at commas that stand outside brackets, braces and quotes.

    >>> split_values('fedavg,{name="fedprox", mu=0.1},[1,2]')
    ['fedavg', '{name="fedprox", mu=0.1}', '[1,2]']
    """
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (character in "[{") - (character in "]}") if not quote else 0
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
