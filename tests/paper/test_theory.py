"""The theorem's terms in records: as a table, and drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vhl.paper.evidence import Evidence
from vhl.paper.figures import FIGURES
from vhl.paper.theory import measured, terms_table
from vhl.report.looks import DASHED, DOTTED, Look
from vhl.runs.digest import Digest

PLAIN, NAIVE = "cifar10/a0.1-e1-k10/fedavg", "further/naive/fedavg"


def terms(round_: int, margin: float) -> dict[str, Any]:
    return {
        "round": round_,
        "accuracy": 0.5,
        "merged_accuracy": 0.625,
        "margin_natural": margin,
        "margin_virtual": 7.0,
        "margin_virtual_train": 8.0,
        "distance": 30.0,
        "distance_floor": 3.0,
        "normalised_distance": 1.25,
        "normalised_floor": 0.25,
        "lower_bound": -23.0,
    }


@pytest.fixture
def evidence(digest: Callable[..., Digest]) -> Evidence:
    """FedAvg's second seed was measured, against noise; naive VHL's first, against its own."""
    noise = {"name": "noise"}
    first = {"virtual": noise, "terms": [terms(10, 1.0), terms(30, 2.0)]}
    second = {"virtual": {"name": "stylegan"}, "terms": [terms(10, 4.0)]}
    return Evidence(
        [
            digest(PLAIN, [0.1]),
            replace(digest(PLAIN, [0.2], 1), theory=first),
            replace(digest(NAIVE, [0.3]), theory=second),
        ]
    )


def test_terms_by_method_and_round(evidence: Evidence) -> None:
    found = [(one.method, one.setting, [t["round"] for t in one.terms]) for one in measured(evidence)]
    assert found == [("FedAvg", "paper, noise", [10, 30]), ("FedAvg + naive VHL", "paper, stylegan", [10])]


def test_every_cell(evidence: Evidence) -> None:
    lines = terms_table(evidence).splitlines()
    assert len(lines) == 5 and lines[0].startswith("| method | setting | round | accuracy | merged |")
    expected = (
        "| FedAvg | paper, noise | 30 | 50.0 | 62.5 | 2.00 | 7.00 | 8.00 | 30.0 (3.0) | 1.25 (0.25) | -23.0 |"
    )
    assert lines[3] == expected


def test_curves(evidence: Evidence) -> None:
    margin, _, distance = FIGURES["theory"](evidence, Path()).panels
    first, *_ = margin.series
    assert (list(first.places["round"]), list(first.bands[1].mean)) == ([10, 30], [1, 2])
    own, floor, *_ = distance.series
    assert (own.bands[1].mean[0], floor.bands[1].mean[0]) == (1.25, 0.25)
    assert floor.label == "" and floor.look == Look(0, DOTTED)


def test_settings_can_be_told_apart(evidence: Evidence) -> None:
    series = FIGURES["theory"](evidence, Path()).panels[0].series
    strokes = {own.label: own.look.strokes for own in series}
    assert strokes == {"FedAvg (paper, noise)": (), "FedAvg + naive VHL (paper, stylegan)": DASHED}


def test_nothing_measured() -> None:
    assert terms_table(Evidence([])).count("\n") == 2
    assert FIGURES["theory"](Evidence([]), Path()).panels[0].note == "not run"
