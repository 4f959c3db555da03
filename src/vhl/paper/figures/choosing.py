"""Of several profiles and virtual data with which rows were run: those that a figure shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from vhl.paper.evidence import Choice, generator
from vhl.paper.row import GENERATOR, Row
from vhl.paper.rows import rows

Size = Callable[[Row, Choice], tuple[int, int]]
"""How much there is of a row: (rounds, repetitions)."""


def choose(names: Iterable[str], choices: Iterable[Choice], size: Size) -> dict[str, Choice]:
    """A choice for each row that was run: the same for all where there is one, else the row's own best.

    The best is that with the most rounds, then the most repetitions, then the paper's own virtual data.
    """
    wanted, choices = [rows()[name] for name in names], list(choices)

    def best(of: list[Row]) -> Choice:
        return max(choices, key=lambda choice: (*_total(size(row, choice) for row in of), _is_usual(choice)))

    chosen = {}
    common = best(wanted) if choices else None
    for row in wanted:
        choice = common if common is None or size(row, common)[0] else best([row])
        if choice is not None and size(row, choice)[0]:
            chosen[row.name] = choice
    return chosen


def _total(sizes: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*sizes, strict=True)))


def _is_usual(choice: Choice) -> bool:
    return choice.virtual is None or json.loads(choice.virtual)["name"] == GENERATOR


def described(chosen: Mapping[str, Choice], labels: Mapping[str, str]) -> str:
    """Profile and virtual data of most rows in words; and of the others, by their labels."""
    found = {
        name: (choice.profile, generator(choice.experiment(rows()[name]))) for name, choice in chosen.items()
    }
    profile = _most(profile for profile, _ in found.values())
    virtual = _most(virtual for _, virtual in found.values() if virtual != "–")
    others = [
        f"{labels[name]}: {_words(*own)}"
        for name, own in found.items()
        if own not in ((profile, virtual), (profile, "–"))
    ]
    return "; ".join([_words(profile, virtual), *others]) if found else ""


def _most(words: Iterable[str]) -> str:
    return next((word for word, _ in Counter(words).most_common(1)), "–")


def _words(profile: str, virtual: str) -> str:
    return f"profile {profile}" + (f", virtual data {virtual}" if virtual != "–" else "")
