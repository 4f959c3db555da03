"""What is kept of VHL's gain, by hand."""

from __future__ import annotations

import re
from collections.abc import Callable

from vhl.paper.evidence import Evidence
from vhl.paper.light import _pairs, comparisons
from vhl.paper.rows import rows
from vhl.runs.digest import Digest

LIGHT, VHL = "light/vhl-light/fedavg", "cifar10/a0.1-e1-k10/fedavg-vhl"
Make = Callable[..., Digest]


def test_paired_differences_in_both_measures_with_compute(digest: Make) -> None:
    """Best 70 and 60 against 65 and 59: +5 and +1, so 3 ± 2; last 50 and 40 against 50 and 50: 0 and −10."""
    ends = {LIGHT: [(0.7, 0.5), (0.6, 0.4)], VHL: [(0.65, 0.5), (0.59, 0.5)]}
    runs = [
        digest(row, [best] + [0.1] * 8 + [last], seed, compute={LIGHT: 1.25, VHL: 2.0}[row])
        for row, own in ends.items()
        for seed, (best, last) in enumerate(own)
    ]
    table, missing = comparisons(Evidence(runs)).split("\n\n")
    (line,) = table.splitlines()[2:]
    cells = "+3.0 ± 2.0 | -5.0 ± 5.0 | ×1.25 / ×2.00 | paper, stylegan, 2 seeds, 10 rounds |"
    assert line == f"| **vhl-light − VHL** | {cells}"
    named = re.findall("`(.*?)`", missing)
    assert missing.startswith("Not run: ") and len(named) == len(set(named))
    assert set(named) == {row for _, *pair in _pairs() for row in pair} - ends.keys()


def test_every_row_of_the_table_is_compared_with_something() -> None:
    compared = {row for _, more, less in _pairs() for row in (more, less)}
    assert compared <= rows().keys()
    assert {row.name for row in rows().values() if row.table == "light"} <= compared


def test_a_label_names_what_is_subtracted() -> None:
    objectives = {"VHL": "vhl", "vhl-light": "vhl-light", "FedAvg": "plain", "without": "plain"}
    for label, more, less in _pairs():
        left, right = label.strip("*").split(" − ")
        first, second = (rows()[row].experiment("release", "noise") for row in (more, less))
        if right not in objectives:  # not of objectives: "VHL: a tenth of the rate − the usual rate"
            assert first.objective == second.objective and left.split(":")[0] in objectives, label
            assert second.objective.name == objectives[left.split(":")[0]], label
            continue
        assert second.objective.name == objectives[right], label
        assert (
            first.algorithm == second.algorithm and first.data == second.data and first.model == second.model
        )
        words = left.rsplit(": ")[-1]
        if words in {"VHL", "vhl", "naive", "vhl-light"}:
            assert first.objective.name == words.lower(), label
