"""The numbers that the paper published, as data.

``published.json`` holds every table of Tang et al., "Virtual Homogeneity Learning: Defending against Data
Heterogeneity in Federated Learning", ICML 2022, one row a line; ``null`` is a target never reached ("Nan") or
a number not given. Where the print contradicts itself, ``notes_on_source`` says how it was read.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def published() -> dict[str, Any]:
    text = resources.files("vhl.paper").joinpath("published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def learning_rate(
    dataset: str, alpha: float, epochs: int, clients: int, algorithm: str, *, vhl: bool
) -> float:
    """From the paper's table of learning rates, which it searched cell by cell."""
    cell = {"dataset": dataset, "alpha": alpha, "epochs": epochs, "clients": clients}
    cell |= {"algorithm": algorithm, "vhl": vhl}
    rates = [row["lr"] for row in published()["learning_rate"] if cell.items() <= row.items()]
    return float(rates[0])
