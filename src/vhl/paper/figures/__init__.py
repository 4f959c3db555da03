"""The paper's figures from our numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from vhl.config.registry import suggest
from vhl.errors import VHLError
from vhl.paper.evidence import Evidence
from vhl.paper.figures.features import features_of
from vhl.paper.figures.plots import ablation, convergence, drift, light, main
from vhl.paper.figures.theory import theory
from vhl.report.figure import Figure

__all__ = ["FIGURES", "draw"]

FIGURES: dict[str, Callable[[Evidence, Path], Figure]] = {
    **{
        f"convergence-{data}": partial(convergence, data)
        for data in ("cifar10", "fmnist", "svhn", "cifar100")
    },
    "main": main,
    "drift": drift,
    "ablation": ablation,
    "features-clients": partial(features_of, "clients"),
    "features-server": partial(features_of, "server"),
    "theory": theory,
    "light": light,
}
"""Each takes what was measured and the folder of the runs."""


def draw(name: str, evidence: Evidence, runs: Path, output: Path) -> None:
    """Write a figure to a PNG, SVG or PDF file."""
    from vhl.report.paint import KINDS, save  # Matplotlib takes a second to import

    if name not in FIGURES:
        raise VHLError(f"The paper has no figure {name!r}{suggest(name, FIGURES)}")
    if output.suffix.lower() not in KINDS:
        raise VHLError(f"{output} cannot be drawn: its name must end in {', '.join(KINDS)}.")
    save(FIGURES[name](evidence, runs), output)
