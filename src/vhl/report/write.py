"""Writing a report's files."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vhl.data.sources.base import data_directory
from vhl.files import write_bytes
from vhl.report.content import content, evaluated
from vhl.report.page import page
from vhl.runs.compare import LAST
from vhl.runs.folder import RunFolder
from vhl.virtual.inspection import picture


def write_report(
    runs: Sequence[RunFolder],
    file: Path,
    *,
    target: float | None = None,
    last: float = LAST,
    title: str = "",
    natural_from: Path | None = None,
) -> dict[str, Any]:
    """Write the page and return what is on it.

    ``last`` is the share of the rounds that methods are judged by.
    ``natural_from`` is the data directory to take natural images from; unset, none are shown.
    """
    found = content(runs, target, last, title)
    if natural_from is not None:
        _add_natural(found, runs, natural_from)
    write_bytes(file, page(found).encode())
    return found


def _add_natural(found: dict[str, Any], runs: Sequence[RunFolder], directory: Path) -> None:
    for run, shown in zip(evaluated(runs), found["runs"], strict=True):
        problem = found["problems"][shown["problem"]] if found["whole"] else None
        if problem is not None and "natural" not in problem:
            experiment = run.experiment()
            dataset = experiment.data.load(data_directory(directory), experiment.seeds.data)
            drawn = io.BytesIO()
            picture(dataset.train).save(drawn, "PNG")
            problem["natural"] = "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode()
