"""The theorem's terms along runs of the paper's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vhl.paper.evidence import Evidence
from vhl.paper.markdown import markdown_table
from vhl.paper.row import MAIN
from vhl.paper.rows import rows

METHODS = {
    f"{MAIN}/fedavg": "FedAvg",
    "further/naive/fedavg": "FedAvg + naive VHL",
    f"{MAIN}/fedavg-vhl": "FedAvg + VHL",
}
"""Rows that the paper's argument is about."""
_HEADINGS = (
    "method",
    "setting",
    "round",
    "accuracy",
    "merged",
    "margin: natural",
    "virtual",
    "trained",
    "distance (floor)",
    "of length 1 (floor)",
    "lower bound",
)


@dataclass(frozen=True)
class Measured:
    """Terms of one run, by round."""

    method: str
    setting: str
    """Profile, and the virtual data that the run was measured against."""
    terms: tuple[dict[str, Any], ...]


def measured(evidence: Evidence) -> Iterator[Measured]:
    """Of each row and choice the first seed that has terms."""
    for name, method in METHODS.items():
        row = rows()[name]
        for choice, runs in evidence.choices(row).items():
            theories = (run.theory for _, run in sorted(runs.items()) if run.theory is not None)
            if (found := next(theories, None)) is not None:
                virtual = found["virtual"].get("source", found["virtual"])["name"]
                yield Measured(method, f"{choice.profile}, {virtual}", tuple(found["terms"]))


def terms_table(evidence: Evidence) -> str:
    """All terms as a Markdown table."""
    lines = [(one.method, one.setting, *_cells(terms)) for one in measured(evidence) for terms in one.terms]
    return markdown_table(_HEADINGS, lines, words=("method", "setting"))


def _cells(terms: dict[str, Any]) -> tuple[str, ...]:
    margins = (terms[f"margin_{kind}"] for kind in ("natural", "virtual", "virtual_train"))
    return (
        str(terms["round"]),
        f"{100 * terms['accuracy']:.1f}",
        f"{100 * terms['merged_accuracy']:.1f}",
        *(f"{margin:.2f}" for margin in margins),
        f"{terms['distance']:.1f} ({terms['distance_floor']:.1f})",
        f"{terms['normalised_distance']:.2f} ({terms['normalised_floor']:.2f})",
        f"{terms['lower_bound']:.1f}",
    )
