"""The paper's figures from our numbers. Importing this imports Matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from vhl.errors import VHLError
from vhl.files import write_bytes
from vhl.paper.evidence import Evidence
from vhl.paper.figures.features import features_of
from vhl.paper.figures.plots import ablation, convergence, drift, main
from vhl.registry import suggest

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
}
"""Each takes what was measured and the folder of the runs."""
_METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Kinds of files; without a date, so that the same numbers give the same file."""
_DPI = 300


def draw(name: str, evidence: Evidence, runs: Path, output: Path) -> None:
    """Write a figure to a PNG, SVG or PDF file."""
    if name not in FIGURES:
        raise VHLError(f"The paper has no figure {name!r}{suggest(name, FIGURES)}")
    kind = output.suffix.lower()
    if kind not in _METADATA:
        raise VHLError(f"{output} cannot be drawn: its name must end in {', '.join(_METADATA)}.")
    figure, content = FIGURES[name](evidence, runs), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "vhl"}):  # else its identifiers are random
        figure.savefig(content, format=kind[1:], dpi=_DPI, metadata=_METADATA[kind])
    write_bytes(output, content.getvalue())
