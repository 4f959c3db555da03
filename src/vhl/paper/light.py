"""What VHL at a quarter of its extra compute keeps of VHL's gain, and where the gain comes from."""

from __future__ import annotations

from collections.abc import Iterator

from vhl.paper.contrast import BEST, FINAL, contrast
from vhl.paper.evidence import Evidence
from vhl.paper.markdown import markdown_table, not_run
from vhl.paper.own import ELSEWHERE, light_elsewhere
from vhl.paper.row import MAIN
from vhl.paper.rows import rows
from vhl.text import points

_HEADINGS = ("comparison", "best", "last 10 %", "compute", "over")
_FEDAVG, _VHL, _LIGHT = f"{MAIN}/fedavg", f"{MAIN}/fedavg-vhl", "light/vhl-light/fedavg"
_VARIANTS = {
    "share-alone": "share without mosaics (32 images)",
    "mosaic-alone": "mosaics without share",
    "share-0.75": "share 0.75",
    "same-class": "tiles of one class",
    "half": "half as many mosaics",
    "half-no-virtual-loss": "half as many, without virtual cross-entropy",
    "quarter": "a quarter as many mosaics",
    "quarter-no-virtual-loss": "a quarter as many, without virtual cross-entropy",
    "4x4": "mosaics of 4×4",
    "no-supcon": "without SupCon",
    "no-virtual-loss": "without virtual cross-entropy",
    "statistics-alone": "statistics alone, without either",
}
_NORMS = {
    "group-norm": "group norm",
    "lower-rate": "a tenth of the rate after round 150",
    "fixed-statistics": "statistics fixed then, too",
    "fixed-usual-rate": "statistics fixed then, at the usual rate",
}
_OBJECTIVES = {"plain": "FedAvg", "naive": "naive", "vhl": "VHL", "vhl-light": "vhl-light"}
_ALGORITHMS = {"FedProx": "fedprox", "SCAFFOLD": "scaffold", "FedNova": "fednova"}


def _pairs() -> Iterator[tuple[str, str, str]]:
    """A label, and two rows: the first minus the second."""
    yield "VHL − FedAvg", _VHL, _FEDAVG
    yield "vhl-light − FedAvg", _LIGHT, _FEDAVG
    yield "**vhl-light − VHL**", _LIGHT, _VHL
    yield "four times the virtual images, as mosaics − VHL", "light/four-times/fedavg", _VHL
    for norm, words in _NORMS.items():
        for objective in ("naive", "vhl", "vhl-light"):
            row = f"light/{norm}/{objective}"
            yield f"{words}: {_OBJECTIVES[objective]} − FedAvg", row, f"light/{norm}/plain"
    for objective, usual in {"plain": _FEDAVG, "vhl": _VHL, "vhl-light": _LIGHT}.items():
        lower, fixed = f"light/lower-rate/{objective}", f"light/fixed-statistics/{objective}"
        yield f"{_OBJECTIVES[objective]}: a tenth of the rate − the usual rate", lower, usual
        yield f"{_OBJECTIVES[objective]}: a tenth and fixed statistics − a tenth", fixed, lower
    yield "FedAvg: fixed statistics − the usual ones", "light/fixed-usual-rate/plain", _FEDAVG
    for variant, words in _VARIANTS.items():
        yield f"{words} − vhl-light", f"light/{variant}/fedavg", _LIGHT
    for setting, words in ELSEWHERE.items():
        row = light_elsewhere(setting)
        yield f"{words}: vhl-light − FedAvg", row, f"{setting}/fedavg"
        yield f"{words}: vhl-light − VHL", row, f"{setting}/fedavg-vhl"
    for words, algorithm in _ALGORITHMS.items():
        row = f"light/vhl-light/{algorithm}"
        yield f"{words}: vhl-light − without", row, f"{MAIN}/{algorithm}"
        yield f"{words}: vhl-light − VHL", row, f"{MAIN}/{algorithm}-vhl"


def comparisons(evidence: Evidence) -> str:
    """Paired differences in points, with standard errors, as a Markdown table; below, rows not run yet."""
    lines = []
    for label, more, less in _pairs():
        best, final = (contrast(evidence, label, more, less, measure) for measure in (BEST, FINAL))
        if best is not None and final is not None:
            found = (one.difference for one in (best, final))
            cells = (points(own.mean, own.error, signed=True) for own in found)
            compute = " / ".join(f"×{value:.2f}" for value in best.compute)
            lines.append((label, *cells, compute, best.extent))
    table = markdown_table(_HEADINGS, lines, words=("comparison", "over"))
    named = dict.fromkeys(row for _, *pair in _pairs() for row in pair)
    missing = not_run({row: None for row in named if not evidence.choices(rows()[row])})
    return "\n".join([table, *missing, ""]) if missing else table
